// worker: fetches jobs, runs them, and stops without losing one. [GS 4, 5]
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../base/detail/sync.hpp"
#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "../stop/stoppable.hpp"
#include "job_context.hpp"
#include "transport.hpp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
class worker;

namespace detail {
class worker_core;
const worker_core& core_of(const worker& one) noexcept;

template <class F>
job_handler make_handler(F&& callable) {
    using body = std::decay_t<F>;
    static_assert(std::is_invocable_v<body&, job_context&>, "a handler is called with an ojs::job_context&");
    if constexpr (std::is_invocable_v<body&, job_context&>) {
        using returned = std::invoke_result_t<body&, job_context&>;
        static_assert(std::is_void_v<returned> || std::is_constructible_v<outcome, returned>,
                      "a handler returns nothing, a result (std::string of JSON or picojson::value) or an "
                      "ojs::outcome");
        if (is_empty<body>(callable, 0)) return nullptr;
        return job_handler(
            [body = body(std::forward<F>(callable))](job_context& job) mutable { return call_as<outcome>(body, job); });
    }
}
}  // namespace detail

/// Fetches jobs, runs their handlers, and reports every claimed job exactly once.
///
/// The destructor stops a running worker, as stop() does, and waits for calls in flight, at most request_timeout plus 1 s.
/// After that no thread calls the transport, log.hook or on_transition: abandoned handlers get errors and log to standard
/// error. In a handler, callback, hook, extension or transport call of this worker it aborts the process.
class worker : public stoppable {
  public:
    /// The scheme of options.url selects the transport; one given here is used instead and must outlive the worker. A
    /// lifecycle given here is followed: several workers may share one, with one signal installer. Starts nothing: run()
    /// or start() report invalid options. The worker belongs to the process that starts it, as after a fork().
    explicit worker(const worker_options& options) : worker(options, nullptr, nullptr) {}
    worker(const worker_options& options, lifecycle& shared) : worker(options, nullptr, &shared) {}
    worker(const worker_options& options, ojs::transport& transport) : worker(options, &transport, nullptr) {}
    worker(const worker_options& options, ojs::transport& transport, lifecycle& shared)
        : worker(options, &transport, &shared) {}
    ~worker();

    /// Runs `handler(job_context&)` for jobs of this type, on several threads at once. It returns void, a result (JSON
    /// text or picojson::value) or an outcome; an exception fails the attempt, retryable. pthread_exit() and
    /// pthread_cancel() end the process. False for a second handler of a type, an empty handler or type, which run() and
    /// start() report; also after the start, which is logged. Not thread-safe.
    template <class F>
    bool register_handler(std::string type, F&& handler, handler_options options = {}) {
        return add_handler(std::move(type), detail::make_handler(std::forward<F>(handler)), options);
    }
    /// Calls `around(job_context&, const next_handler& next)` for each job, the first one outermost. It calls next()
    /// once: then the handler decides the outcome, also if `around` catches what it throws. What `around` itself throws
    /// counts as thrown by the handler. False if `around` is empty; also, and logged, after the start. Not thread-safe.
    bool wrap(detail::handler_wrapper around);

    /// Works in the calling thread until stopped, and returns main's exit status (see exit_status). Installs signal
    /// handlers meanwhile, unless the program has done so for the shared lifecycle. Returns 64 if another handler of a
    /// signal is installed, or another run() of the process has not ended: other workers use start(). Calls _exit() if a
    /// handler, a step, a callback or a call to the backend does not return: after the drains of other workers, and with
    /// 75 if one of them is not done. A third stop signal ends the process at once; a second does not, see ~signals().
    [[nodiscard]] int run();

    /// Works in the background until stopped, without signals, and never ends the process. errc::invalid_argument
    /// (an option or a refused handler), unsupported, busy (started before) or system.
    result<void> start();
    bool stopped() const noexcept;  ///< the worker has ended: only handlers that report().stuck names still run

    /// Waits until the worker has ended, at most until the deadline. True: it has, see exit_code(). False at once if it
    /// was not started; and, with a line in the log, in a handler, callback, hook, extension or transport call of this
    /// worker, which would wait for itself. A step must not wait. Thread-safe, as the rest.
    bool wait(time_point deadline = time_point::max());
    /// request_stop(), then wait(). The deadline does not change the grace period. Before run() or start() the request
    /// is kept: those then drain at once. [River Stop]
    bool stop(time_point deadline = time_point::max()) { return request_stop(), wait(deadline); }
    bool stop(detail::any_ms timeout) { return stop(deadline_after(timeout)); }
    /// stop() that cancels all at once. [River StopAndCancel]
    bool stop_and_cancel(time_point deadline = time_point::max()) { return request_stop_and_cancel(), wait(deadline); }
    bool stop_and_cancel(detail::any_ms timeout) { return stop_and_cancel(deadline_after(timeout)); }

    std::size_t active_jobs() const;  ///< claimed and not settled; thread-safe

  private:
    friend const detail::worker_core& detail::core_of(const worker& one) noexcept;
    worker(const worker_options& options, ojs::transport* transport, lifecycle* shared);
    bool add_handler(std::string type, detail::job_handler handler, handler_options options);
    detail::ref<detail::worker_core> core_;
    detail::thread background_;  // start()'s; joined when the worker is destroyed
};
}  // namespace v0_1_0
}  // namespace ojs
