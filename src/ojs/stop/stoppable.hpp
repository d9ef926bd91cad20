// stoppable: what a worker and a loop have in common, and how they end.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "../base/function.hpp"
#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "../core/shutdown_sequence.hpp"
#include "detail/worker_extension.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Exit statuses of run(), and so of a program that returns them from main.
namespace exit_status {
inline constexpr int settled = 0;  ///< every claimed job was acked, failed or requeued
inline constexpr int usage = 64;   ///< start refused until a change: an option, no handler, another's signals
inline constexpr int stuck = 70;   ///< a handler did not return, with river_profile(); a loop's consumer threw [River]
inline constexpr int unavailable = 71;   ///< start refused for now: a port in use, an absent disk
inline constexpr int unreported = 75;    ///< a job was not reported, or stuck handlers stopped the worker
inline constexpr int signal_base = 128;  ///< plus the number of the third stop signal
}  // namespace exit_status

/// How the claimed jobs ended. At the end of a stop, claimed = completed + failed + requeued + gone + unreported.
struct worker_report {
    std::uint64_t claimed = 0;            ///< the sum
    std::uint64_t completed = 0;          ///< ACK
    std::uint64_t failed = 0;             ///< FAIL that uses up an attempt
    std::uint64_t interrupted = 0;        ///< runs, of these jobs, cut short by the stop or outcome::interrupted()
    std::uint64_t requeued = 0;           ///< FAIL with `requeue`: interrupted, never started, or no handler
    std::uint64_t gone = 0;               ///< the backend had already reassigned it, or its lease ran out
    std::vector<std::string> unreported;  ///< ids of jobs that were not reported, the first 10,000
    std::vector<std::string> stuck;       ///< ids of reported jobs whose handler has not returned
    std::vector<step_result> steps;       ///< steps of on_shutdown() that have run
};

/// What a worker and a loop have in common. All but on_shutdown() is thread-safe, also in handlers.
class stoppable : detail::non_copyable {
  public:
    /// Takes nothing more until resume(), as SIGTSTP does; what is in flight continues. This and the next three return
    /// true if they changed anything. [GS 4.2]
    bool quiet() { return apply(event::quiet_request); }
    bool resume() { return apply(event::resume_request); }      ///< undoes quiet(), as SIGCONT does
    bool request_stop() { return apply(event::stop_request); }  ///< begins a drain, as SIGTERM does, without waiting
    /// Begins a drain that cancels what is in flight at once; it has cancel_grace, or 1 s if that is 0, to return.
    bool request_stop_and_cancel() { return apply(event::cancel_request); }

    /// Adds a step that runs after the last report or item and before run() returns or calls _exit(): to close what
    /// handlers use. Steps run in order, each on its own thread. One that exceeds its timeout is abandoned (run() then
    /// calls _exit()); exceptions are logged. The timeouts come on top of stop_timeout. A third stop signal skips the
    /// steps. False after the start, or if `step` is empty.
    template <class F>
    bool on_shutdown(std::string name, F&& step, detail::any_ms timeout = std::chrono::milliseconds(5000)) {
        return add_step(std::move(name), function<void()>(std::forward<F>(step)), timeout);
    }

    /// A token that is cancelled once it has ended. [River Stopped()]
    cancel_token stopped_token() const;
    /// Its phase; up to the drain that of the shared lifecycle, if further.
    ojs::phase phase() const noexcept;
    /// The counts so far. Of a loop, `claimed` are all items, `completed` those that ended, `requeued` those that ended
    /// cancelled, `gone` the lost ones; the others are in flight, or `unreported` at the end of the stop.
    worker_report report() const;
    int exit_code() const noexcept;  ///< what run() returns, once it has ended

  protected:
    stoppable() = default;
    ~stoppable() = default;
    bool apply(event request);
    bool add_step(std::string name, function<void()> step, std::chrono::milliseconds timeout);
    detail::ref<detail::machine> machine_;
};
}  // namespace v0_1_0
}  // namespace ojs
