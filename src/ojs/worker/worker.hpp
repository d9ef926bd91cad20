// worker: fetches jobs, runs them, and stops without losing one. [GS 4, 5]
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../base/detail/sync.hpp"
#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "../core/shutdown_sequence.hpp"
#include "job_context.hpp"
#include "transport.hpp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {

// Exit statuses of run(), and so of a program that returns them from main.
namespace exit_status {
inline constexpr int settled = 0;  // every claimed job was acked, failed or handed back
inline constexpr int usage = 64;   // a bad option, no handler, no signals: nothing was started
inline constexpr int stuck = 70;   // a handler did not return, where dialect::stuck_status says so [River]
inline constexpr int steps_not_run = 71;  // a worker::on_shutdown() step did not run: out of memory
inline constexpr int unreported = 75;     // a job was not reported, or stuck handlers stopped the worker
inline constexpr int signal_base = 128;   // plus the number of the third stop signal
}  // namespace exit_status

// What became of the jobs a worker claimed.
struct worker_report {
    std::uint64_t claimed = 0;
    std::uint64_t completed = 0;          // ACK
    std::uint64_t failed = 0;             // FAIL: the handler's own verdict, its timeout, a malformed job
    std::uint64_t interrupted = 0;        // FAIL because of the stop
    std::uint64_t handed_back = 0;        // never started: came too late, or no handler has its type
    std::uint64_t gone = 0;               // the backend had taken it back already, or its lease ran out
    std::vector<std::string> unreported;  // ids of jobs that were not reported, the first 10,000
    std::vector<std::string> stuck;       // ids of reported jobs whose handler has not returned
    std::vector<step_result> steps;       // of on_shutdown(), once they have run
};

// How a call that stops a worker, and waits for it, ended.
enum class stop_status {
    ended,         // no handler runs any more but those that report().stuck names, and every job was reported
    unreported,    // the same, but not every job: report().unreported names them
    timed_out,     // the deadline came first; the worker goes on stopping
    cancelled,     // the token was cancelled first; the worker goes on stopping
    never_started  // nothing runs; a later run() or start() stops at once
};
// "ended", "unreported", "timed out", ... Never null. Thread-safe.
const char* to_string(stop_status status) noexcept;

// True only where all is well. [River: a nil error]
struct stop_result {
    stop_status status = stop_status::ended;
    explicit operator bool() const noexcept { return status == stop_status::ended; }
};

namespace detail {
struct worker_body;

template <class F, class = void>
inline constexpr bool takes_job = false;
template <class F>
inline constexpr bool
    takes_job<F, decltype(static_cast<void>(std::declval<F&>()(std::declval<job_context&>())))> = true;

template <class Answer>
inline constexpr bool is_answer = std::is_constructible<outcome, Answer>::value;
template <>
inline constexpr bool is_answer<void> = true;

template <class F>
job_handler make_handler(F&& callable) {
    using body = std::decay_t<F>;
    static_assert(takes_job<body>, "a handler is called with an ojs::job_context&");
    if constexpr (takes_job<body>) {
        static_assert(is_answer<decltype(std::declval<body&>()(std::declval<job_context&>()))>,
                      "a handler returns nothing, a result (std::string of JSON or picojson::value) or an "
                      "ojs::outcome");
    }
    if (is_empty<body>(callable)) return nullptr;
    return job_handler([body = body(std::forward<F>(callable))](job_context& job) mutable -> outcome {
        if constexpr (std::is_same_v<decltype(body(job)), void>) {
            body(job);
            return outcome();
        } else {
            return outcome(body(job));
        }
    });
}
}  // namespace detail

class worker {
  public:
    // The scheme of options.url picks the transport. A transport given here is used instead, whatever the
    // URL, and must outlive the worker. A lifecycle given here is followed: several workers may share one,
    // with one signal installer. Nothing is opened or started; what is wrong with the options is said by
    // run() or start(). It belongs to the process that starts it, which may be a child made by fork() since.
    explicit worker(worker_options options);
    worker(worker_options options, lifecycle& shared);
    worker(worker_options options, ojs::transport& outside);
    worker(worker_options options, ojs::transport& outside, lifecycle& shared);
    worker(const worker&) = delete;
    worker& operator=(const worker&) = delete;
    // Stops a running worker first, as stop() does. Abandoned handlers keep what they use. Waits for calls in
    // flight, at most request_timeout and a second. After that no thread calls the transport, log.hook,
    // on_transition or on_stuck_job: abandoned threads get errors, and log to standard error.
    // A callback of stopped_token(), on_transition or on_stuck_job may destroy the worker, a log hook must
    // not. It then stops in the background, and unreported jobs come back after their visibility timeout. The
    // shared lifecycle, and what shutdown steps use, must then live until stopped_token() is cancelled.
    ~worker();

    // Runs `handler(job_context&)` for jobs of this type, on several threads at once. It returns void, a
    // result (JSON text or picojson::value) or an outcome. False where it is refused: a second handler of a
    // type, an empty one or no type, which run() and start() then report, naming the type; or one that comes
    // after them, which is an error in the log. Of one thread at a time.
    template <class F>
    bool register_handler(std::string type, F&& handler, handler_options options = {}) {
        return add_handler(std::move(type), detail::make_handler(std::forward<F>(handler)), options);
    }

    // Works until stopped, in the calling thread, and returns main's exit status (see exit_status). Takes the
    // signals for that long; an installer of the shared lifecycle gets the `stop_signals` that it lacks. 64:
    // a signal has a foreign handler. A repeated stop signal does not end the process, see ~signals(). If a
    // handler, a step or a call to the backend does not return, it calls _exit(). With other calls to run()
    // in flight it blocks instead, and the last of them calls _exit() with the highest status of all. A third
    // stop signal ends the process at once.
    [[nodiscard]] int run();

    // The same in the background, without signals and without ever ending the process. errc::invalid_argument
    // (an option, a handler that was refused), unsupported, busy (started before) or system.
    result<void> start();
    // Waits until the worker has ended: then no handler runs any more but those that report().stuck names.
    // False at the deadline, and at once where nothing was started. Thread-safe.
    bool wait(time_point deadline = time_point::max());
    bool stopped() const noexcept;
    // Cancelled once the worker has ended: to wait for that beside signals, deadlines, condition variables
    // and descriptors. [River Stopped()]
    cancel_token stopped_token() const;
    // Cancelled once the backend has answered a heartbeat or a FETCH for the first time, as /readyz tells.
    // Its callbacks run after a heartbeat.
    cancel_token connected_token() const;
    // run()'s status, once stopped() is true.
    int exit_code() const noexcept;

    // Thread-safe, and callable from handlers. True if it changed anything. [GS 4.2]
    bool quiet();   // fetch no more, work on
    bool resume();  // undo quiet, that of single queues too, as SIGCONT does
    // The same for one queue: no FETCH asks for it any more, the others go on. Jobs of it that come with a
    // FETCH under way are run. A backend may ask for it: `quiet` in the answer to a heartbeat, with `queues`;
    // where those are all of the worker's, it is the worker that is quiet.
    bool pause(const std::string& queue);
    bool resume(const std::string& queue);
    // Asks for a drain, without waiting, and for one that cancels jobs in flight at once: those have
    // cancel_wait, or a second, to return.
    bool request_stop();
    bool request_stop_and_cancel();

    // The same, and waits for the end of the worker: as long as the options allow, or until the deadline, or
    // until the token is cancelled. The grace period of the options applies whatever the deadline. Handlers
    // that noticed their cancellation have what is left of stop_timeout to return, others 100 ms. Before
    // run() or start() it stays asked for: those then drain at once. A handler, a callback or a step of this
    // worker must not wait for it. [River Stop, StopAndCancel]
    stop_result stop(time_point deadline = time_point::max(), const cancel_token& until = {});
    stop_result stop_and_cancel(time_point deadline = time_point::max(), const cancel_token& until = {});
    stop_result stop(std::chrono::milliseconds timeout, const cancel_token& until = {}) {
        return stop(deadline_after(timeout), until);
    }
    stop_result stop_and_cancel(std::chrono::milliseconds timeout, const cancel_token& until = {}) {
        return stop_and_cancel(deadline_after(timeout), until);
    }

    // Runs `step` after the last report and before run() returns, or leaves by _exit() because of a handler
    // that does not return: the place to close what handlers use. Steps run in the order they were added,
    // each on a thread of its own, and at its limit is left behind (run() then leaves by _exit(), too); what
    // they throw is logged. The limits come on top of stop_timeout, as the check of the container's grace
    // period knows. A third stop signal leaves without them. False after the start, or without a function. Of
    // one thread at a time, like register_handler().
    template <class F>
    bool on_shutdown(std::string name, F&& step,
                     std::chrono::milliseconds limit = std::chrono::milliseconds(5000)) {
        return add_step(std::move(name), function<void()>(std::forward<F>(step)), limit);
    }

    ojs::phase phase() const noexcept;  // or that of a given lifecycle, as far as the drain
    std::size_t active_jobs() const;    // claimed and not settled
    worker_report report() const;
    const log_options& log() const noexcept;  // as its options have it

  private:
    worker(worker_options options, ojs::transport* outside, lifecycle* shared);
    bool add_handler(std::string type, job_handler handler, handler_options options);
    bool add_step(std::string name, function<void()> step, std::chrono::milliseconds limit);
    detail::ref<detail::worker_body> body_;
    detail::thread background_;  // start()'s; joined when the worker is destroyed
};

}  // namespace v0_1_0
}  // namespace ojs
