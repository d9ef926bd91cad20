// supervisor: runs one worker from its first heartbeat to its last.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../loop/detail/stop_machine.ipp"
#include "../jobs/job_pool.ipp"
#include "../options/worker_options.ipp"
#include "stuck_watch.ipp"

namespace ojs::detail {

// The parts of stop_timeout: first for the last heartbeat, then for reporting cancelled handlers.
inline std::chrono::milliseconds last_beat_time(const stop_times& times) noexcept {
    return detail::min(times.stop_timeout / 5, std::chrono::milliseconds(500));
}
inline steady_clock::duration report_time(steady_clock::duration left) noexcept {
    return detail::min<steady_clock::duration>(left / 2, std::chrono::seconds(3));
}

// supervise() has the stages.
class supervisor final : public stop_machine {
  public:
    supervisor(ref<worker_context> context, ref<job_pool> pool, shutdown_sequence& at_shutdown)
        : stop_machine(*context, at_shutdown),
          context_(std::move(context)),
          worker_(*context_),
          pool_(std::move(pool)),
          stuck_(worker_, *pool_) {}

    result<void> start() {
        result<void> started = unless_out_of_memory([this] { return pool_->start(); });
        if (started) return started;
        worker_.beats.finish(deadline_after(last_beat_timeout));
        pool_->calls.close();
        while (pool_->threads.live() > 0) worker_.supervisor.wait_until(deadline_after(max_sleep));
        pool_->threads.join(time_point::max());
        return started;
    }

    int supervise() {
        begin("worker started", worker_variables);
        await(never, [this] { return phase() >= phase::draining; });
        end_drain(
            await(worker_.stage.drain_deadline(), [this] { return idle() || phase() >= phase::stopping; }));
        stop();
        return finish();
    }

  private:
    void stop() {
        const unsigned signals = worker_.stage.own.state().stop_signals;
        const time_point report_deadline = worker_.reports.deadline();
        if (!idle()) interrupt_jobs(signals, report_deadline);
        if (!await_reports(report_deadline)) mark_all_unreported();
        // Even if this thread is late, as after a freeze, the last heartbeat gets a try.
        const time_point beats_end =
            detail::max(stop_deadline_, deadline_after(last_beat_time(worker_.options.times) / 2));
        worker_.beats.finish(beats_end);
        await(beats_end + call_margin(), [this] { return worker_.beats.all_finished(); });
        worker_.backend.calls.close();
        await_handlers(signals);
        await(never, [this] { return run_shutdown_steps(); });
        worker_.tally.set_steps(take_steps());
        end_stop();
    }

    // All jobs are reported: ends the threads.
    int finish() {
        pool_->calls.close();
        await_threads();
        const bool all_finished = pool_->threads.live() <= worker_.beats.calls_in_flight();
        if (!all_finished) attempt([this] { abandon_stuck(); });
        // Parts get a moment to finish, within the stop's time.
        stop_worker_extensions(worker_,
                               detail::min(steady_clock::now() + handler_return_timeout, stop_deadline_));
        const bool all_ended = end_threads();
        // The status is chosen now: a FETCH may have ended late.
        return end("worker stopped", choose_exit_status(all_finished), all_finished && all_ended);
    }

    void request_heartbeat() override { worker_.beats.request_by(time_point::min()); }
    void begin_fetching() override { pool_->retry_fetch(); }
    // Tells the transport a new phase, cancels a FETCH that may no longer run, and wakes the job threads.
    void wake_takers() override {
        if (detail::exchange(notified_phase_, phase()) != phase()) notify_phase();
        const ref<fetch_period> ended = worker_.fetching.update(worker_.stage.may_fetch());
        if (ended) pool_->calls.run_callbacks(ended->source, ended);
        pool_->wake();
    }
    void cancel_all() override { worker_.group->request(stop_reason(), steady_clock::now()); }
    void call_cancel_callbacks() override { pool_->deliver_cancellation(); }

    void add_facts(stop_facts& now) const noexcept override {
        now.queues_version = worker_.queues.version();
        now.registration_tried = worker_.beats.registration_tried();
    }
    // Checks for stuck jobs, and starts missing threads.
    time_point run_due_work(time_point now) override {
        return detail::min(stuck_.handle_overdue(now), pool_->retry_threads(now));
    }

    void begin_drain() override {
        stop_machine::begin_drain();
        worker_.reports.retry_now();  // ends any longer Retry-After
        worker_.claims.close();
        pool_->close();
        if (const std::size_t jobs = worker_.jobs.size()) pool_->calls.prestart(jobs > many_jobs ? 16 : 2);
    }

    // The last part of stop_timeout is for the last heartbeat, the one before for reports.
    void begin_stop() override {
        stop_machine::begin_stop();
        const stop_times& times = worker_.options.times;
        worker_.reports.set_checkpoint_deadline(steady_clock::now() +
                                                detail::min(times.stop_timeout / 20, max_checkpoint_wait));
        worker_.reports.set_deadline(stop_deadline_ - last_beat_time(times));
        if (gave_up_) shorten_stop();  // three signals at once
    }
    void shorten_stop() override {
        worker_.reports.set_deadline(steady_clock::now());
        stop_deadline_ = detail::min(stop_deadline_, deadline_after(last_beat_time(worker_.options.times)));
    }

    void notify_phase() {
        static_cast<void>(worker_.backend.call([this](ojs::transport& transport) -> result<void> {
            transport.on_phase(phase());
            return {};
        }));
    }

    // For calls that end at their deadline to return.
    std::chrono::milliseconds call_margin() const noexcept {
        return last_beat_time(worker_.options.times) / 4;
    }
    // False: some reports are not finished in time; a third stop signal shortens it.
    bool await_reports(time_point deadline) {
        await(deadline + call_margin(), [&] { return idle() || worker_.reports.deadline() < deadline; });
        return await(worker_.reports.deadline() + call_margin(), [this] { return idle(); });
    }

    // How long cancelled handlers may take to return before their jobs are reported.
    std::chrono::milliseconds cancel_wait_time() const noexcept {
        const cancel_reason reason = stop_reason();
        if (reason == cancel_reason::spot_reclaim) return worker_.options.times.reclaim_wait;
        const std::chrono::milliseconds set = worker_.options.times.cancel_wait;
        return reason == cancel_reason::cancelled && set.count() == 0 ? hard_cancel_wait : set;
    }

    // Waits for cancelled handlers, or for a stop signal after the first `signals`, then reports the rest.
    void interrupt_jobs(unsigned signals, time_point report_deadline) {
        const time_point latest = report_deadline - report_time(report_deadline - steady_clock::now());
        await(detail::min(deadline_after(cancel_wait_time()), latest),
              [&] { return idle() || signalled_since(signals); });
        worker_.group->abandon();
        pool_->calls.interrupt_all(stop_reason());
    }

    // All jobs are reported. Handlers that saw their cancellation have the rest of the stop to return, others
    // handler_return_timeout. Another signal ends the wait.
    void await_handlers(unsigned signals) {
        const time_point return_deadline = steady_clock::now() + handler_return_timeout;
        if (await(return_deadline, [this] { return !pool_->has_busy_threads(false); })) return;
        await(stop_deadline_, [&] { return signalled_since(signals) || !pool_->has_busy_threads(true); });
    }

    void mark_all_unreported() {
        worker_.tally.end_all_unreported();
        attempt([this] {
            for (const ref<active_job>& job : worker_.jobs.snapshot())
                log_job(worker_, *job, log_level::error,
                        "job could not be reported before stop_timeout ended");
            if (worker_.fetches == 0) return;
            worker_.log.write(log_level::warn,
                              "a FETCH is still unanswered; jobs it may have claimed come back after their "
                              "visibility timeout");
        });
    }

    void await_threads() {
        const time_point return_deadline = steady_clock::now() + handler_return_timeout;
        await(detail::max(return_deadline, stop_deadline_),
              [this] { return pool_->threads.only_handlers_left(); });
    }
    // Leaves time for the process to exit within stop_timeout.
    time_point join_deadline() const noexcept {
        return detail::max(steady_clock::now() + min_join_timeout,
                           stop_deadline_ - worker_.options.times.stop_timeout / 5);
    }
    // False: a thread_local destructor or a call to the backend blocks.
    bool end_threads() {
        const time_point deadline = join_deadline();
        std::size_t left = 0;
        while ((left = pool_->threads.join(steady_clock::now() + join_interval)) > 0 && !gave_up_ &&
               steady_clock::now() < deadline)
            act_on_changes();
        pool_->threads.abandon();
        left += worker_.beats.calls_in_flight();
        if (left > 0) attempt([&] { log_.write_abandoned_threads(left); });
        return left == 0;
    }

    void abandon_stuck() {
        const array<ref<active_job>> jobs = pool_->jobs_with_thread();
        if (!jobs.empty())
            worker_.log.write(log_level::warn, "handlers have not returned; exiting without waiting for them",
                              {field("job_ids", join_names(ids_of(jobs)))});
        stuck_.abandon(jobs);
        await_threads();  // for on_stuck_job
    }

    void log_in_flight() override {
        const time_point deadline = stuck_watch::stacks_deadline();
        array<ref<active_job>> jobs = worker_.jobs.snapshot();
        stuck_.add_reported_stuck(jobs);
        worker_.log.write_requested("jobs in flight", {field("phase", to_string(worker_.stage.own.phase())),
                                                       field("active_jobs", jobs.size())});
        for (const ref<active_job>& job : jobs) {
            std::vector<log_field> fields = job_fields(*job);
            fields.push_back(field("cancelled", job->cancel.requested() ? "yes" : "no"));
            fields.push_back(field("reporting", job->taken() ? "yes" : "no"));
            if (job->cancel.requested()) stuck_.add_stack(*job, deadline, fields);
            worker_.log.write_requested("job in flight", std::move(fields));
        }
    }

    // Default of cancel_wait for stop_and_cancel(). [WIRE 2]
    static constexpr std::chrono::milliseconds hard_cancel_wait{1000};
    static constexpr std::size_t many_jobs = 64;  // their handlers may keep all processors busy
    static constexpr std::chrono::milliseconds max_checkpoint_wait{250};
    static constexpr std::chrono::milliseconds handler_return_timeout{100};  // for jobs that are reported
    static constexpr std::chrono::milliseconds join_interval{50};            // between checks for signals

    const ref<worker_context> context_;
    worker_context& worker_;
    const ref<job_pool> pool_;
    stuck_watch stuck_;
    ojs::phase notified_phase_ = ojs::phase::running;  // to the transport
};

}  // namespace ojs::detail
