// call_threads: the threads that report jobs for other threads, run callbacks, and query claims.
#pragma once

#include "../../base/detail/light.hpp"
#include "pool_threads.ipp"
#include "send_report.ipp"

namespace ojs::detail {

// What a thread does next: a report goes before its log line.
enum class call_action : std::uint8_t { run_task, report, log, wait, end };
struct call_facts {
    bool closed = false;
    std::size_t tasks = 0;      // each may block
    std::size_t reports = 0;    // due
    bool has_reported = false;  // jobs whose reports are not logged
    std::size_t running = 1;    // threads
    std::size_t busy = 0;       // of these, in a call
    std::size_t starting = 0;   // of these: there may be no thread, or it begins with a task
    std::size_t max_waiting = 2;
};
inline call_action plan_call(const call_facts& calls) noexcept {
    const std::size_t free = calls.running - calls.busy - calls.starting;  // this one included
    if (calls.tasks > 0 && free > 1) return call_action::run_task;         // the other takes reports
    if (calls.reports > 0) return call_action::report;
    if (calls.has_reported) return call_action::log;
    if (calls.tasks > 0 && calls.closed) return call_action::run_task;  // no report will be due
    return calls.closed || free > calls.max_waiting ? call_action::end : call_action::wait;
}

// A thread that takes a call leaves another one waiting for the next. Thread-safe.
class call_threads {
  public:
    // Calls `on_settled` after each job.
    call_threads(worker_context& worker, pool_threads& threads, function<void()> on_settled)
        : worker_(worker), threads_(threads), on_settled_(std::move(on_settled)) {}

    // Starts one thread; calls start more as needed. That one reports all jobs if no other can be created.
    result<void> start() {
        unique_lock held(guard_);
        return start_thread(held);
    }

    // For a stop: until handlers keep all processors busy, starting a thread is fast.
    void prestart(std::size_t waiting) {
        unique_lock held(guard_);
        max_waiting_ = waiting;
        while (running_ < busy_ + waiting && start_thread(held)) {
        }
    }

    // Has a job reported that the caller has taken; after close(), reports it here. Allocates nothing.
    void report(ref<active_job> job, job_report report) {
        job->report = std::move(report);
        {
            const unique_lock held(guard_);
            if (!closed_) {
                call_due_.notify_one();
                return taken_.push(std::move(job));
            }
        }
        settle(worker_, *job, std::move(job->report));  // of a FETCH that ended late
    }
    // Reports as interrupted all jobs whose handlers do not return first. Allocates nothing.
    void interrupt_all(cancel_reason reason) {
        const unique_lock held(guard_);
        reason_ = reason;
        interrupting_ = true;
        call_due_.notify_one();
    }

    // Calls what may block on one of these threads, but not on the last that waits. False: there is none for it.
    template <class Body>
    bool run(const Body& body) {
        function<void()> task;
        if (!attempt([&] { task = body; })) return false;
        unique_lock held(guard_);
        if (running_ < busy_ + max_waiting_) return start_thread(held, task).has_value();
        if (!attempt([&] { tasks_.push_back(task); })) return false;
        call_due_.notify_one();
        return true;
    }
    // Ends the waits of cancelled jobs, the oldest first, and calls their callbacks. Where no thread can be created, the
    // calling thread does: a job that misses its cancellation might wait forever.
    void deliver_cancellation(const array<ref<active_job>>& jobs) {
        for (const ref<active_job>& job : jobs) job->cancel.wake_waiters();
        for (const ref<active_job>& job : jobs) run_callbacks(job->cancel, job);
    }
    // On another thread, if there is one for it. `owner` has `source`.
    template <class Owner>
    void run_callbacks(cancel_source& source, const ref<Owner>& owner) {
        if (!source.has_pending_callbacks()) return;
        const auto task = [this, &source, owner] {
            const user_call entered(worker_.cancel_callbacks);
            source.run_callbacks();
        };
        if (!run(task)) task();
    }

    // The threads end when nothing is left to do.
    void close() {
        const unique_lock held(guard_);
        closed_ = true;
        call_due_.notify_all();
    }

  private:
    static constexpr std::size_t max_reports = 128;  // at a time

    // The guard is held in all of these, and unlocked during calls.

    result<void> start_thread(unique_lock& held, const function<void()>& first_task = nullptr) {
        ++running_;
        ++starting_;
        held.unlock();
        threads_.join_ended();
        result<void> started =
            threads_.start(worker_.service_thread("ojs-call"), [this, first_task] { work(first_task); });
        held.lock();
        if (!started) --running_, --starting_;
        return started;
    }

    void work(const function<void()>& first_task) {
        report_queue reported;  // and not logged: a slow log delays no report
        unique_lock held(guard_);
        --starting_;
        if (first_task) call(held, [&] { attempt(first_task); });
        for (call_action next; (next = plan(reported)) != call_action::end;) {
            switch (next) {
                case call_action::run_task: run_task(held); break;
                case call_action::report: report_next(held, reported); break;
                case call_action::log: call(held, [&] { log_all(reported); }); break;
                case call_action::wait: call_due_.wait(held); break;
                case call_action::end: break;
            }
        }
        --running_;
    }

    call_action plan(const report_queue& reported) const noexcept {
        return plan_call({closed_, tasks_.size(), pending_reports(), !reported.empty(), running_, busy_,
                          starting_, max_waiting_});
    }

    template <class Call>
    void call(unique_lock& held, Call make) {
        ++busy_;
        if (needed() > 1) call_due_.notify_one();
        // Two at most, so that no single thread starts all.
        for (int i = 0; i < 2 && running_ < busy_ + needed() && start_thread(held); ++i) {
        }
        held.unlock();
        make();
        held.lock();
        --busy_;
    }
    // How many threads should wait for calls.
    std::size_t needed() const noexcept { return 1 + pending_reports() + (tasks_.empty() ? 0 : 1); }
    std::size_t pending_reports() const noexcept {
        const std::size_t jobs = taken_.size() + (interrupting_ ? worker_.jobs.size() : 0);  // about
        return detail::min(jobs, max_reports - reporting_);
    }

    void run_task(unique_lock& held) {
        const function<void()> task = detail::exchange(tasks_.back(), nullptr);
        tasks_.pop_back();
        call(held, [&] { attempt(task); });
    }
    void report_next(unique_lock& held, report_queue& reported) {
        const bool has_report = !taken_.empty();
        ref<active_job> job = has_report ? taken_.pop() : worker_.jobs.take_next();
        if (!has_report) interrupting_ = bool(job);
        if (!job) return;
        ++reporting_;
        call(held, [&] {
            if (!has_report && !retry_allocation([&] { job->report = shutdown_result(*job); }))
                return;  // unreported, and logged as such
            report_and_release(worker_, *job, job->report);
            on_settled_();
            reported.push(std::move(job));
        });
        --reporting_;
    }
    job_report shutdown_result(const active_job& job) const {
        if (!job.began()) return unstarted(worker_);
        // A timeout or a cancellation from before the stop keeps its reason.
        return cut_short(worker_, job, job.cancelled_alone() ? job.cancel.reason() : reason_, "");
    }
    void log_all(report_queue& reported) const {
        while (!reported.empty()) {
            const ref<active_job> job = reported.pop();
            attempt([&] { log_report_status(worker_, *job, job->report); });
        }
    }

    worker_context& worker_;
    pool_threads& threads_;
    const function<void()> on_settled_;
    mutex& guard_ = worker_.state.guard;
    condition call_due_;
    // Guarded.
    report_queue taken_;  // with their reports
    array<function<void()>> tasks_;
    cancel_reason reason_ = cancel_reason::none;
    bool interrupting_ = false;  // some jobs are not taken yet
    bool closed_ = false;
    std::size_t max_waiting_ = 2;
    std::size_t running_ = 0;
    std::size_t busy_ = 0;      // of these
    std::size_t starting_ = 0;  // likewise
    std::size_t reporting_ = 0;
};

}  // namespace ojs::detail
