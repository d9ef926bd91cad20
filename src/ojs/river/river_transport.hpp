// river_transport: River's queue in PostgreSQL, by libpq. Link with -lpq.
//
// A worker in C++ shares the tables of River (riverqueue/river) with River's own clients in Go. docs/river.md says what holds.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "../base/detail/ref.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../worker/job_context.hpp"
#include "../worker/transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct river_options {
    std::string schema;  // of River's tables; empty: the search_path finds them
    std::vector<std::string>
        kinds;  // claims only these; empty: all, as River does, where a job without a handler fails
    std::size_t max_bytes = 4 * 1024 * 1024;  // of args and of metadata as text; a larger job is not claimed
    // Receives one line for each event that needs an operator and that no return value reports. Called from any thread;
    // must be short and must not throw.
    function<void(const std::string&)> on_notice;
};

namespace detail {
namespace river {
class transport_body;
}
}  // namespace detail

// For one worker, in the process that made it: a child made by fork() must neither use nor destroy it.
class river_transport : public transport {
  public:
    // `url` is a URI (postgres://...) or a connection string of libpq.
    explicit river_transport(std::string url, river_options options = {});
    OJS_SHUTDOWN_INLINE ~river_transport() override;

    // Connects and checks the tables. Errors: invalid_argument, where libpq cannot read the URL; unsupported, where the tables are
    // missing or of an unknown version. A database that cannot be reached within `timeout` is no error: the worker retries.
    result<void> open(std::chrono::milliseconds timeout = std::chrono::seconds(5));

    // For a handler to return. snooze: the job runs again after `delay`, and the attempt does not count. retry_after: it
    // runs again after `delay` instead of River's back-off, unless its attempts are used up. cancel: it is cancelled.
    // Thread-safe.
    outcome snooze(const job_context& job, std::chrono::milliseconds delay);
    outcome retry_after(const job_context& job, std::chrono::milliseconds delay, std::string reason);
    outcome cancel(const job_context& job, std::string reason);

    // Concurrent FETCHes share one transaction, and so do concurrent ACKs and FAILs.
    OJS_SHUTDOWN_INLINE result<std::vector<job>> fetch(const fetch_request& request,
                                                       time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> ack(const ack_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> fail(const fail_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<heartbeat_answer> heartbeat(const heartbeat_request& request,
                                                           time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<void> register_worker(const worker_identity& worker,
                                                     time_point deadline) override;
    // Releases the worker's lock: other workers rescue what could not be reported.
    OJS_SHUTDOWN_INLINE result<void> deregister_worker(const worker_identity& worker,
                                                       time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> save_checkpoint(const checkpoint_request& request,
                                                        time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<std::string> load_checkpoint(const std::string& job_id,
                                                            time_point deadline) override;
    OJS_SHUTDOWN_INLINE void when_work_may_wait(function<void()> tell) override;
    OJS_SHUTDOWN_INLINE void when_jobs_are_revoked(function<void(const std::string&)> tell) override;

  private:
    const detail::ref<detail::river::transport_body> body_;
};

}  // namespace v0_1_0
}  // namespace ojs
