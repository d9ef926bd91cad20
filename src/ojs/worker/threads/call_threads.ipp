// call_threads: the threads that send heartbeats, report jobs for other threads, and run callbacks.
#pragma once

#include "../../base/detail/light.hpp"
#include "../heartbeat/heartbeat.ipp"
#include "../reports/settlement.ipp"
#include "pool_threads.ipp"

namespace ojs::detail {

// A thread that takes a call leaves another one waiting, so that none delays a heartbeat. Thread-safe.
class call_threads {
  public:
    // Calls `on_settled` after each job.
    call_threads(worker_context& worker, pool_threads& threads, function<void()> on_settled)
        : worker_(worker),
          state_(worker.state),
          threads_(threads),
          on_settled_(std::move(on_settled)),
          heartbeat_(worker) {}

    // The second thread is optional; without it, a first one that is late delays all.
    result<void> start() {
        unique_lock held(state_.guard);
        const result<void> first = start_thread(held);
        if (first) static_cast<void>(start_thread(held));
        return first;
    }

    // Reports a job that the caller has taken. Allocates nothing.
    void report(ref<active_job> job, verdict report) {
        job->report = std::move(report);
        {
            const unique_lock held(state_.guard);
            if (!closed_) {
                state_.call_due.notify_one();
                return taken_.push(std::move(job));
            }
        }
        settle(worker_, *job, std::move(job->report));  // of a FETCH that ended late
    }
    // Reports as interrupted all jobs whose handlers do not return first. Allocates nothing.
    void interrupt_all(cancel_reason reason) {
        const unique_lock held(state_.guard);
        reason_ = reason;
        interrupting_ = true;
        state_.call_due.notify_one();
    }

    // Calls user code, which may block, on one of these threads. False: there is none for it.
    template <class Body>
    bool run(const Body& body) {
        function<void()> task;
        if (!attempt([&] { task = body; })) return false;
        unique_lock held(state_.guard);
        if (running_ < busy_ + 2) return start_thread(held, task).has_value();
        if (!attempt([&] { tasks_.push_back(task); })) return false;
        state_.call_due.notify_one();
        return true;
    }
    // Ends the waits of cancelled jobs, the oldest first, and calls their callbacks. Where no thread can be created, the
    // calling thread does: a job that misses its cancellation might wait forever.
    void cancel(const array<ref<active_job>>& jobs) {
        for (const ref<active_job>& job : jobs) job->cancel.wake_waiters();
        for (const ref<active_job>& job : jobs) {
            const auto run_callbacks = [this, job] {
                const user_call entered(worker_.cancel_callbacks);
                job->cancel.run_callbacks();
            };
            if (job->cancel.has_pending_callbacks() && !run(run_callbacks)) run_callbacks();
        }
    }

    // The threads end when nothing is left to do.
    void close() {
        const unique_lock held(state_.guard);
        closed_ = true;
        state_.call_due.notify_all();
    }

  private:
    static constexpr std::size_t max_reports = 128;  // at a time
    static constexpr std::size_t max_waiting = 2;    // threads

    // The guard is held in all of these, and unlocked during calls.

    result<void> start_thread(unique_lock& held, const function<void()>& first_task = nullptr) {
        thread_options options;
        options.stack_size = worker_.options.thread_stack_size;
        options.min_stack_size = 256 * 1024;  // for transports, hooks and callbacks
        options.name = "ojs-call";
        ++running_;
        held.unlock();
        threads_.join_ended();
        result<void> started = threads_.start(options, [this, first_task] { work(first_task); });
        held.lock();
        if (!started) --running_;
        return started;
    }

    void work(const function<void()>& first_task) {
        report_queue reported;  // and not logged: a slow log delays no report
        unique_lock held(state_.guard);
        if (first_task) call(held, [&] { attempt(first_task); });
        for (;;) {
            const time_point now = steady_clock::now();
            const beat_plan beat = plan_beat(worker_.beats.facts(), now);
            if (beat.action == beat_action::send || beat.action == beat_action::send_last) {
                send_heartbeat(held, beat.action, now);
            } else if (!tasks_.empty()) {
                const function<void()> task = detail::exchange(tasks_.back(), nullptr);
                tasks_.pop_back();
                call(held, [&] { attempt(task); });
            } else if (pending_reports() > 0) {
                report_next(held, reported);
            } else if (!reported.empty()) {
                call(held, [&] { log_all(reported); });
            } else if ((closed_ && beat.action == beat_action::end) || running_ > busy_ + max_waiting) {
                break;
            } else {
                await_call(held, beat.until);
            }
        }
        --running_;
    }

    // One waiting thread wakes up when the next heartbeat is due, the other one if the first hangs in it.
    void await_call(unique_lock& held, time_point due) {
        const auto later = worker_.options.heartbeat_interval + max_response_wait;
        const bool is_first = due < wakes_at_;
        if (is_first) wakes_at_ = due;
        state_.call_due.wait_until(held, is_first || due > never - later ? due : due + later);
        if (is_first) wakes_at_ = never;
    }

    template <class Call>
    void call(unique_lock& held, Call make) {
        ++busy_;
        const bool is_usual =
            !worker_.beats.is_finishing() && busy_ == static_cast<std::size_t>(worker_.beats.facts().calls);
        // Where only heartbeats are in progress, await_call() has set the other thread's time.
        if (needed() > 1 || (wakes_at_ == never && !is_usual)) state_.call_due.notify_one();
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

    void send_heartbeat(unique_lock& held, beat_action action, time_point now) {
        const std::uint64_t number = worker_.beats.begin_call(action, now);
        const bool may_query = running_ > busy_ + 1;  // another thread sends the next heartbeat
        call(held, [&] {
            action == beat_action::send ? heartbeat_.send(number, may_query) : heartbeat_.send_last(number);
        });
        worker_.beats.end_call();
        if (!worker_.beats.is_finishing()) return;
        state_.call_due.notify_all();  // the threads may end
        worker_.supervisor.notify();
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
    verdict shutdown_result(const active_job& job) const {
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
    state_lock& state_;
    pool_threads& threads_;
    const function<void()> on_settled_;
    heartbeat heartbeat_;
    // Guarded.
    report_queue taken_;  // with their reports
    array<function<void()>> tasks_;
    cancel_reason reason_ = cancel_reason::none;
    bool interrupting_ = false;  // some jobs are not taken yet
    bool closed_ = false;
    std::size_t running_ = 0;
    std::size_t busy_ = 0;  // of these
    std::size_t reporting_ = 0;
    time_point wakes_at_ = never;  // a waiting thread, for a heartbeat
};

}  // namespace ojs::detail
