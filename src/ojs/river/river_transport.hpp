// river_transport: River's queue in PostgreSQL, by libpq. Link with -lpq.
//
// A worker in C++ shares the tables of River (riverqueue/river) with River's own clients in Go; see docs/backends.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "../base/detail/light.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../stop/loop_options.hpp"
#include "../worker/job_context.hpp"
#include "../worker/transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// River's three stages, for options.apply_profile(): a soft stop of 10 s; a hard stop, in which cancelled jobs have
/// 10 s to return; the exit, with 70 if a handler has not returned. A signal in one stage begins the next.
inline profile river_profile() {
    using std::chrono::seconds;
    profile out;
    out.stop = {false, exit_status::stuck, {seconds(10), seconds(0), seconds(10), seconds(0), seconds(15)}};
    return out;
}

/// Options of a river_transport.
struct river_options {
    std::string schema;                       ///< of River's tables; empty: the search_path is used
    std::vector<std::string> kinds;           ///< to claim; empty: all, see worker_options::on_unknown_type
    std::size_t max_bytes = 4 * 1024 * 1024;  ///< of args and of metadata as text; no larger job is claimed
    /// What needs an operator and no call returns. Called from any thread; must be short and must not throw.
    log_hook log;
};

class river_transport;
using river_ref = detail::ref<river_transport>;  ///< shared ownership of a transport

/// River's queue for one worker. A child made by fork() must neither use nor destroy it. Concurrent FETCHes share one
/// transaction, and so do concurrent ACKs and FAILs.
class river_transport : public transport {
  public:
    /// `url` is a URI (postgres://...) or a connection string of libpq. Connects and checks the tables. Errors:
    /// invalid_argument, if libpq cannot read the URL; unsupported, if the tables are missing or of an unknown version.
    /// A database that cannot be reached within `timeout` is no error: the worker retries.
    static result<river_ref> create(std::string url, river_options options = {},
                                    detail::any_ms timeout = std::chrono::seconds(5));

    /// A handler returns it: the job runs again after `delay`, and the attempt does not count. Thread-safe.
    virtual outcome snooze(const job_context& job, detail::any_ms delay) = 0;
    /// A handler returns it: the job, if it has attempts left, runs again after `delay`. Thread-safe.
    virtual outcome retry_after(const job_context& job, detail::any_ms delay, std::string reason) = 0;
    /// A handler returns it: the job is cancelled. Thread-safe.
    virtual outcome cancel(const job_context& job, std::string reason) = 0;
};
}  // namespace v0_1_0
}  // namespace ojs
