// stoppable: what a worker and a loop have in common.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "../base/function.hpp"
#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "detail/worker_extension.hpp"
#include "worker_report.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// What a worker and a loop have in common. All but on_shutdown() is thread-safe, also in handlers.
class stoppable {
  public:
    stoppable(const stoppable&) = delete;
    stoppable& operator=(const stoppable&) = delete;

    /// Takes nothing more until resume(), as SIGTSTP does; what is in flight continues. This and the next three return
    /// true if they changed anything. [GS 4.2]
    bool quiet() { return apply(event::quiet_request); }
    bool resume() { return apply(event::resume_request); }      ///< undoes quiet(), as SIGCONT does
    bool request_stop() { return apply(event::stop_request); }  ///< begins a drain, as SIGTERM does, without waiting
    /// Begins a drain that cancels what is in flight at once; it has cancel_wait, or 1 s if that is 0, to return.
    bool request_stop_and_cancel() { return apply(event::cancel_request); }

    /// Adds a step that runs after the last report or item and before run() returns or calls _exit(): the place to close
    /// what handlers use. Steps run in order, each on its own thread. One that exceeds its timeout is abandoned (run()
    /// then calls _exit()); exceptions are logged. The timeouts come on top of stop_timeout; the check of the container's
    /// grace period includes them. A third stop signal skips the steps. False after the start, or if `step` is empty.
    template <class F>
    bool on_shutdown(std::string name, F&& step, detail::any_ms timeout = std::chrono::milliseconds(5000)) {
        return add_step(std::move(name), function<void()>(std::forward<F>(step)), timeout);
    }

    /// Cancelled once it has ended: to wait for that along with other things. [River Stopped()]
    cancel_token stopped_token() const;
    /// Or that of the shared lifecycle, up to the drain, if that is further.
    ojs::phase phase() const noexcept;
    /// So far. Of a loop, `claimed` are all items, `completed` those that ended, `requeued` those that ended cancelled,
    /// `gone` the lost ones; the others are in flight, or `unreported` at the end of the stop.
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
