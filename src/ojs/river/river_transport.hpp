// river_transport: River's queue in PostgreSQL, by libpq. Link with -lpq.
//
// A worker in C++ shares the tables of River (riverqueue/river) with River's own clients in Go; see docs/river.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "../base/detail/light.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../worker/job_context.hpp"
#include "../worker/transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct river_options {
    std::string schema;                       // of River's tables; empty: the search_path finds them
    std::vector<std::string> kinds;           // to claim; empty: all, and those without a handler fail
    std::size_t max_bytes = 4 * 1024 * 1024;  // of args and of metadata as text; a larger job is not claimed
    // Receives one line for each event that needs an operator and that no return value reports. Called from any thread;
    // must be short and must not throw.
    function<void(const std::string&)> on_notice;
};

class river_transport;
using river_ref = detail::ref<river_transport>;

// For one worker, in the process that made it: a child made by fork() must neither use nor destroy it. Concurrent
// FETCHes share one transaction, and so do concurrent ACKs and FAILs.
class river_transport : public transport {
  public:
    // `url` is a URI (postgres://...) or a connection string of libpq. Connects and checks the tables. Errors:
    // invalid_argument, where libpq cannot read the URL; unsupported, where the tables are missing or of an unknown
    // version. A database that cannot be reached within `timeout` is no error: the worker retries.
    static result<river_ref> create(std::string url, river_options options = {},
                                    std::chrono::milliseconds timeout = std::chrono::seconds(5));

    // For a handler to return. snooze: the job runs again after `delay`, and the attempt does not count. retry_after:
    // it runs again after `delay` instead of River's back-off, unless its attempts are used up. cancel: it is
    // cancelled. Thread-safe.
    virtual outcome snooze(const job_context& job, std::chrono::milliseconds delay) = 0;
    virtual outcome retry_after(const job_context& job, std::chrono::milliseconds delay,
                                std::string reason) = 0;
    virtual outcome cancel(const job_context& job, std::string reason) = 0;
};

}  // namespace v0_1_0
}  // namespace ojs
