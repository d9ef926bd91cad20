// supervisor: runs one worker from its first heartbeat to its last.
#pragma once

#include <poll.h>

#include "../../base/detail/light.hpp"
#include "../../core/shutdown_sequence.hpp"
#include "../../host/termination_mode.hpp"
#include "../detail/startup_findings.ipp"
#include "../heartbeat/heartbeat.ipp"
#include "../threads/job_pool.ipp"
#include "../worker_part.ipp"
#include "runs.ipp"
#include "stop_log.ipp"
#include "stop_plan.ipp"

namespace ojs::detail {

// supervise() has the stages; act() executes stop_plan. Makes no slow call itself, so it notices every signal at once.
class supervisor {
  public:
    supervisor(ref<worker_context> context, ref<job_pool> pool, shutdown_sequence& at_shutdown)
        : context_(std::move(context)),
          worker_(*context_),
          pool_(std::move(pool)),
          heartbeat_(make_ref<heartbeat>(worker_)),
          stuck_(worker_, *pool_),
          log_(worker_),
          shutdown_steps_(at_shutdown) {
        facts_.has_mode_file = !worker_.options.termination_mode_file.empty();
        facts_.first_signal_wins = worker_.options.dialect.first_signal_wins;
        if (worker_.stage.shared != nullptr) facts_.resume_requests = worker_.stage.shared->resume_requests();
    }

    result<void> start() {
        const result<void> started = unless_out_of_memory([this] {
            result<void> begun = heartbeat_->start();
            return begun ? pool_->start() : begun;
        });
        if (!started) {
            worker_.beats.finish(steady_clock::now());
            heartbeat_->join();
        }
        return started;
    }

    int supervise() {
        attempt([this] {
            log_.write_started();
            log_.write_findings();
        });
        notify_parts();
        stop_facts now = facts_;
        if (worker_.stage.shared != nullptr) now.shared = worker_.stage.shared->state();
        act_on(now);
        await(time_point::max(), [this] { return phase() >= phase::draining; });
        drain();
        stop();
        return finish();
    }

    // Valid after supervise(): run() must not return; see end_run().
    bool must_exit() const noexcept { return must_exit_; }

  private:
    void drain() {
        const bool ended =
            await(worker_.stage.drain_deadline(), [this] { return idle() || phase() >= phase::stopping; });
        worker_.stage.own.apply(ended ? event::drained : event::grace_expired, {});
        notice_changes();
    }

    void stop() {
        const unsigned signals = worker_.stage.own.state().stop_signals;
        const time_point report_deadline = worker_.reports.deadline();
        if (!idle()) interrupt_jobs(signals, report_deadline);
        if (!await_reports(report_deadline)) mark_all_unreported();
        worker_.beats.finish(stop_deadline_);
        await(stop_deadline_ + call_margin(), [this] { return worker_.beats.all_finished(); });
        worker_.backend.calls.close();
        await_handlers(signals);
        run_shutdown_steps();
        worker_.stage.own.apply(event::finished, {});
        notice_changes();
    }

    // All jobs are reported: ends the threads.
    int finish() {
        pool_->reports.close();
        await_threads();
        const bool all_finished = pool_->threads.all_finished();
        if (!all_finished) attempt([this] { abandon_stuck(); });
        // Parts get a moment to finish, within the stop's time.
        stop_worker_parts(worker_, detail::min(steady_clock::now() + handler_return_timeout, stop_deadline_));
        const bool all_ended = end_threads();
        const int status = choose_exit_status(all_finished);  // now: a FETCH may have ended late
        attempt([&] { log_.write_stopped(status, draining_since_); });
        flush_log();
        if (worker_.owns_process)
            must_exit_ = end_run(status, !(all_finished && all_ended && all_steps_finished_));
        return status;
    }

    void act(stop_action action, const stop_facts& before) {
        switch (action) {
            case stop_action::apply_shared_lifecycle: return apply_shared_lifecycle(before.shared);
            case stop_action::resume: return resume();
            case stop_action::send_heartbeat: return worker_.beats.request_by(time_point::min());
            case stop_action::stop_fetching: return stop_fetching();
            case stop_action::divide_stop_timeout: return divide_stop_timeout();
            case stop_action::notify_parts: return notify_parts();
            case stop_action::begin_fetching: return pool_->retry_fetch();
            case stop_action::wake_pool: return pool_->wake();
            case stop_action::cancel:
                return static_cast<void>(pool_->group->request(stop_reason(), steady_clock::now()));
            case stop_action::call_cancel_callbacks:
            case stop_action::call_reclaim_callbacks: return pool_->reports.request_first_task();
            case stop_action::log_change:
                log_.write_interactive_notice(before.own.phase, facts_.own);
                return log_.write_change(before.own.phase, facts_.own);
            case stop_action::decide_mode: return decide_mode();
            case stop_action::log_reclaim:
                return log_.write_reclaim(has_reclaim_source_ || facts_.own.last_event == event::reclaim);
            case stop_action::call_on_transition:
                return worker_.user.call_back("on_transition threw; ignored",
                                              [this] { worker_.options.on_transition(facts_.own); });
            case stop_action::give_up: return give_up();
            case stop_action::log_jobs: return log_.write_jobs_in_flight(stuck_);
        }
    }

    // The phase last acted on; the lifecycle itself may be ahead.
    ojs::phase phase() const noexcept { return facts_.own.phase; }
    bool idle() const noexcept { return worker_.claims.count() == 0; }

    // Sleeps until `is_met()`, and acts on changes meanwhile; false at the deadline.
    template <class Condition>
    bool await(time_point deadline, Condition is_met) {
        for (;;) {
            notice_changes();
            const time_point parts_due_at = tick_parts();
            if (is_met()) return true;
            const time_point now = steady_clock::now();
            if (now >= deadline) return false;
            time_point next = now + out_of_memory_delay;
            attempt([&] { next = run_due_tasks(now); });
            next = detail::min(next, now + max_sleep);
            worker_.supervisor.wait_until(detail::min(next, detail::min(deadline, parts_due_at)));
        }
    }

    void notice_changes() {
        while (act_on(read_facts())) {
        }
    }
    // Takes at most one change of a lifecycle, of the shared one first.
    stop_facts read_facts() const noexcept {
        stop_facts now = facts_;
        const lifecycle* const shared = worker_.stage.shared;
        if (shared == nullptr || !shared->next_change(now.shared)) worker_.stage.own.next_change(now.own);
        now.resume_requests = shared == nullptr ? 0 : shared->resume_requests();
        now.report_requests =
            worker_.stage.own.report_requests() + (shared == nullptr ? 0 : shared->report_requests());
        now.queues_version = worker_.queues.version();
        now.registration_tried = worker_.beats.registration_tried();
        now.idle = idle();
        now.cancel_due = steady_clock::now() >= cancel_at_;
        return now;
    }
    // False: there was nothing to do.
    bool act_on(const stop_facts& now) {
        const stop_facts before = detail::exchange(facts_, now);
        const stop_plan plan = plan_stop(before, now);
        for (const stop_action action : plan) attempt([&] { act(action, before); });
        return !plan.empty();
    }

    // Logs progress, checks for stuck jobs, and starts missing threads; returns when to call it again.
    time_point run_due_tasks(time_point now) {
        if (now >= next_progress_at_) {
            next_progress_at_ = now + worker_.options.progress_interval;
            log_.write_progress(now);
        }
        const time_point jobs_due_at = detail::min(stuck_.check(now), pool_->retry_threads(now));
        return detail::min(
            jobs_due_at, facts_.cancel_due ? next_progress_at_ : detail::min(next_progress_at_, cancel_at_));
    }
    // Returns the time of the next on_tick().
    time_point tick_parts() {
        time_point out = time_point::max();
        worker_.user.for_each_part([&out](worker_part& part) {
            const time_point now = steady_clock::now();
            const time_point former = out;
            out = detail::min(now + part_retry_delay, former);  // in case it throws
            out = detail::min(part.on_tick(now), former);
        });
        return out;
    }

    void notify_parts() {
        worker_.user.for_each_part([this](worker_part& part) { part.on_phase(facts_.own); });
    }

    // Applies the shared lifecycle's state, not its events: one SIGTERM must not count as a second one.
    void apply_shared_lifecycle(const lifecycle_state& before) {
        const lifecycle_state& now = facts_.shared;
        const bool first_wins = facts_.first_signal_wins;
        const bool was_signalled = before.stop_signals > 0 || before.mode == stop_mode::reclaim;
        const auto apply_if = [&](bool condition, event request) {
            if (condition) worker_.stage.own.apply(request, now.cause);
        };
        apply_if(now.phase == phase::quiet, event::quiet_request);
        apply_if(now.phase == phase::running && before.phase == phase::quiet, event::resume_request);
        // Before the drain, which reads the termination-mode file: SIGUSR1 is a reclaim whatever it says.
        apply_if(now.mode == stop_mode::reclaim && !(first_wins && was_signalled), event::reclaim);
        apply_if(now.phase >= phase::draining, event::stop_request);
        apply_if(now.cancel_requested, event::cancel_request);
        const bool forced = now.last_event == event::stop_signal && now.mode == stop_mode::forced;
        apply_if(forced && !first_wins, event::stop_signal);
    }
    // SIGCONT also resumes a worker that alone is quiet. A resume is counted before its change is made: where
    // that is not noticed yet, apply_shared_lifecycle() applies it.
    void resume() {
        const int number = worker_.stage.shared->resume_signal();
        worker_.stage.own.apply(event::resume_request,
                                {number != 0 ? cause_kind::signal : cause_kind::api, number});
    }

    // The grace period starts here, not at an earlier quiet. [WIRE]
    void stop_fetching() {
        draining_since_ = lifecycle::changed_at(facts_.own);
        const time_point ends = worker_.stage.begin_drain(draining_since_);
        worker_.reports.retry_now();  // ends any longer Retry-After
        next_progress_at_ = steady_clock::now() + worker_.options.progress_interval;
        const std::chrono::milliseconds lead = worker_.options.times.cancel_lead;
        if (lead.count() > 0) cancel_at_ = ends - lead;
        worker_.claims.close();
        pool_->close();
        if (const std::size_t jobs = worker_.jobs.size()) pool_->reports.prestart(jobs > many_jobs ? 16 : 2);
    }

    // Reads whether a stop by signal is a reclaim. [Spot, WIRE 3]
    void decide_mode() {
        const cause why = drain_cause(facts_);
        const termination_mode mode = read_termination_mode(worker_.options.termination_mode_file);
        // A SIGUSR1 that was sent with the stop signal is handled after it, or by another thread at the same time.
        if (facts_.first_signal_wins) ::poll(nullptr, 0, 10);
        const lifecycle* const shared = worker_.stage.shared;
        if (worker_.stage.own.reclaim_requests() + (shared == nullptr ? 0 : shared->reclaim_requests()) > 0) {
            has_reclaim_source_ = true;
            return static_cast<void>(worker_.stage.own.apply(event::mode_reclaim, why));
        }
        worker_.log.write(mode.is_reclaim() ? log_level::warn : log_level::info, mode.message);
        if (!mode.is_reclaim()) return log_.write_grace_period(why);
        has_reclaim_source_ = mode.evidence == termination_evidence::reclaim;
        worker_.stage.own.apply(event::mode_reclaim, why);
    }

    // Everything from here on is bounded by stop_timeout.
    void divide_stop_timeout() {
        const time_point now = steady_clock::now();
        const std::chrono::milliseconds stop_timeout = worker_.options.times.stop_timeout;
        limit_log_flush(facts_.own.mode == stop_mode::reclaim ? stop_timeout / 50 : stop_timeout / 10);
        stop_deadline_ = now + stop_timeout;
        worker_.reports.set_checkpoint_deadline(now + detail::min(stop_timeout / 20, max_checkpoint_wait));
        worker_.reports.set_deadline(stop_deadline_ - last_beat_time(worker_.options.times));
        if (gave_up_) shorten_stop();  // three signals at once
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

    cancel_reason stop_reason() const noexcept {
        const lifecycle_state state = worker_.stage.own.state();
        if (state.mode == stop_mode::reclaim) return cancel_reason::spot_reclaim;
        if (state.mode == stop_mode::forced) return cancel_reason::forced;
        return state.cancel_requested ? cancel_reason::cancelled : cancel_reason::grace_period_expired;
    }

    // How long cancelled handlers may take to return before their jobs are reported.
    std::chrono::milliseconds cancel_wait_time() const noexcept {
        const cancel_reason reason = stop_reason();
        if (reason == cancel_reason::spot_reclaim) return worker_.options.times.reclaim_wait;
        const std::chrono::milliseconds set = worker_.options.times.cancel_wait;
        return reason == cancel_reason::cancelled && set.count() == 0 ? hard_cancel_wait : set;
    }
    bool signalled_since(unsigned stop_signals) const noexcept {
        return worker_.stage.own.state().stop_signals > stop_signals;
    }

    // Waits for cancelled handlers, then reports the rest.
    void interrupt_jobs(unsigned signals, time_point report_deadline) {
        const time_point latest = report_deadline - report_time(report_deadline - steady_clock::now());
        await(detail::min(deadline_after(cancel_wait_time()), latest),
              [&] { return idle() || signalled_since(signals); });
        pool_->group->abandon();
        pool_->reports.interrupt_all(stop_reason());
    }

    // All jobs are reported. Handlers that saw their cancellation have the rest of the stop to return, others
    // handler_return_timeout. Another signal ends the wait.
    void await_handlers(unsigned signals) {
        const time_point return_deadline = steady_clock::now() + handler_return_timeout;
        if (await(return_deadline, [this] { return !pool_->has_busy_threads(false); })) return;
        await(stop_deadline_, [&] { return signalled_since(signals) || !pool_->has_busy_threads(true); });
    }

    void mark_all_unreported() {
        worker_.jobs.for_each(
            [this](active_job& job) { worker_.tally.end_claim(job, job_status::unreported); });
        attempt([this] { log_.write_unreported(worker_.jobs.snapshot()); });
    }

    // By a third stop signal. A worker that does not own its process stops waiting instead.
    void give_up() {
        const cause why = facts_.own.exit_now ? facts_.own.cause : facts_.shared.cause;
        attempt([&] { log_.write_third_signal(why); });
        if (worker_.owns_process) {
            flush_log();
            _exit(exit_status::signal_base + why.signal);
        }
        gave_up_ = true;
        shorten_stop();
    }
    void shorten_stop() {
        worker_.reports.set_deadline(steady_clock::now());
        stop_deadline_ = detail::min(stop_deadline_, deadline_after(last_beat_time(worker_.options.times)));
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
            notice_changes();
        pool_->threads.abandon();
        left += heartbeat_->end_threads(deadline);
        if (left > 0) attempt([&] { log_.write_abandoned_threads(left); });
        return left == 0;
    }

    // Runs the steps of worker::on_shutdown() on another thread: this one must notice signals.
    void run_shutdown_steps() {
        if (shutdown_steps_.size() == 0) return;
        std::vector<step_result> results;
        atomic<bool> ended{false};
        const auto run = [&results, &ended, &steps = shutdown_steps_, worker = &worker_] {
            retry_allocation([&] { results = steps.run(step_options(*worker)); });  // throws before any step
            ended = true;
            worker->supervisor.notify();
        };
        const result<void> started = pool_->threads.start_service("ojs-steps", run);
        if (!started) {
            constexpr const char* message = "cannot create a thread; shutdown steps run without a time limit";
            attempt(
                [&] { worker_.log.write(log_level::warn, message, {field("error", started.error().text)}); });
            run();
        }
        await(time_point::max(), [&] { return ended.load(); });
        all_steps_ran_ = !results.empty();
        for (const step_result& step : results) {
            all_steps_ran_ = all_steps_ran_ && step.status != step_status::not_started;
            all_steps_finished_ = all_steps_finished_ && step.status != step_status::timed_out;
        }
        worker_.tally.set_steps(std::move(results));
    }
    static sequence_options step_options(worker_context& worker) {
        sequence_options out;
        out.log.level = log_level::off;  // log_step() writes them
        out.progress = [&worker](const step_result& step) { log_step(worker.log, step); };
        out.thread_stack_size = worker.options.thread_stack_size;
        return out;
    }

    // An unreported job takes precedence over a stuck handler.
    int choose_exit_status(bool all_finished) const {
        if (worker_.tally.unreported() > 0 || worker_.stopped_stuck) return exit_status::unreported;
        if (!all_steps_ran_) return exit_status::steps_not_run;
        return all_finished ? exit_status::settled : worker_.options.dialect.stuck_exit_status;
    }

    void abandon_stuck() {
        const array<ref<active_job>> jobs = pool_->jobs_in_handlers();
        if (!jobs.empty()) log_.write_stuck(jobs);
        stuck_.abandon(jobs);
        await_threads();  // for on_stuck_job
    }

    // Default of cancel_wait for stop_and_cancel(). [WIRE 2]
    static constexpr std::chrono::milliseconds hard_cancel_wait{1000};
    static constexpr std::size_t many_jobs = 64;  // their handlers may keep all CPUs busy
    static constexpr std::chrono::milliseconds max_checkpoint_wait{250};
    static constexpr std::chrono::milliseconds out_of_memory_delay{10};
    static constexpr std::chrono::milliseconds part_retry_delay{1000};  // after a part threw
    static constexpr std::chrono::milliseconds max_sleep{
        5000};  // should the program have closed the descriptor
    static constexpr std::chrono::milliseconds handler_return_timeout{100};  // for jobs that are reported
    static constexpr std::chrono::milliseconds min_join_timeout{500};        // even if stop_timeout is over
    static constexpr std::chrono::milliseconds join_interval{50};            // between checks for signals

    const ref<worker_context> context_;
    worker_context& worker_;
    const ref<job_pool> pool_;
    const ref<heartbeat> heartbeat_;
    stuck_watch stuck_;
    const stop_log log_;
    shutdown_sequence& shutdown_steps_;
    stop_facts facts_;  // as last acted on; `resume_requests` are from before start() returns
    bool gave_up_ = false;
    bool has_reclaim_source_ = false;  // SPOT_RECLAIM is in the termination-mode file
    bool all_steps_finished_ = true;
    bool all_steps_ran_ = true;
    bool must_exit_ = false;
    time_point cancel_at_ = time_point::max();
    time_point next_progress_at_ = time_point::max();
    time_point draining_since_ = steady_clock::now();
    time_point stop_deadline_ = time_point::max();
};

}  // namespace ojs::detail
