// stop_machine: takes a worker or a loop from its start through its phases to its end.
#pragma once

#include <poll.h>

#include "../../base/detail/light.hpp"
#include "../../core/shutdown_sequence.hpp"
#include "../../host/termination_mode.hpp"
#include "../worker_extension.ipp"
#include "runs.ipp"
#include "stop_log.ipp"
#include "stop_plan.ipp"

namespace ojs::detail {

// Executes the plan; the derived class has the stages, and what is stopped. Makes no slow call itself, so it notices
// every signal at once. Used by the supervising thread.
class stop_machine : public ref_counted {
  public:
    // Valid at the end: run() must not return; see end_run().
    bool must_exit() const noexcept { return must_exit_; }

  protected:
    stop_machine(loop_context& worker, shutdown_sequence& at_shutdown)
        : worker_(worker), log_(worker), shutdown_steps_(at_shutdown) {
        facts_.has_mode_file = !worker_.settings.termination_mode_file.empty();
        facts_.first_signal_wins = worker_.settings.dialect.first_signal_wins;
        facts_.resume_requests = worker_.stage.shared.resume_requests();
    }

    virtual bool idle() const noexcept { return worker_.claims.count() == 0; }
    virtual void add_facts(stop_facts& /*now*/) const noexcept {}
    // What is due of the derived class; returns when to call it again.
    virtual time_point run_due_work(time_point now) = 0;
    // See stop_action for these.
    virtual void request_heartbeat() {}
    virtual void begin_fetching() {}
    virtual void wake_takers() = 0;
    virtual void cancel_all() = 0;
    virtual void call_cancel_callbacks() = 0;
    virtual void log_in_flight() = 0;
    // After a third stop signal.
    virtual void shorten_stop() = 0;

    // The grace period starts here, not at an earlier quiet. [WIRE]
    virtual void begin_drain() {
        draining_since_ = lifecycle::changed_at(facts_.own);
        const time_point ends = worker_.stage.begin_drain(draining_since_);
        next_progress_at_ = steady_clock::now() + worker_.settings.progress_interval;
        const std::chrono::milliseconds lead = worker_.settings.times.cancel_lead;
        if (lead.count() > 0) cancel_at_ = ends - lead;
    }
    // Everything from here on is bounded by stop_timeout.
    virtual void begin_stop() {
        const std::chrono::milliseconds stop_timeout = worker_.settings.times.stop_timeout;
        limit_log_flush(facts_.own.mode == stop_mode::reclaim ? stop_timeout / 50 : stop_timeout / 10);
        stop_deadline_ = steady_clock::now() + stop_timeout;
    }

    // The phase last acted on; the lifecycle itself may be ahead.
    ojs::phase phase() const noexcept { return facts_.own.phase; }

    // Logs the start, with a warning of each OJS_* variable that `known` does not return. Acts on changes until now.
    void begin(const char* message, array<std::string> known()) {
        attempt([&] {
            log_.write_started(message);
            if (!worker_.log.enabled(log_level::warn)) return;
            log_.write_findings(startup_findings(worker_.settings, {}, worker_.steps_timeout));
            log_.write_findings(unknown_variables(known()));
        });
        notify_extensions();
        stop_facts now = facts_;
        now.shared = worker_.stage.shared.state();
        act_on(now);
    }

    // Sleeps until `is_met()`, and acts on changes meanwhile; false at the deadline.
    template <class Condition>
    bool await(time_point deadline, Condition is_met) {
        for (;;) {
            time_point next = act_and_tick();
            if (is_met()) return true;
            const time_point now = steady_clock::now();
            if (now >= deadline) return false;
            next = detail::min(next, detail::min(deadline, run_due_tasks(now)));
            worker_.supervisor.wait_until(next);
        }
    }
    // Acts on every change. Returns when extensions are due again.
    time_point act_and_tick() {
        act_on_changes();
        return tick_extensions();
    }
    // Logs progress, and does what is due; returns when to call it again.
    time_point run_due_tasks(time_point now) {
        time_point next = now + out_of_memory_delay;
        attempt([&] {
            if (now >= next_progress_at_) {
                next_progress_at_ = now + worker_.settings.progress_interval;
                log_.write_progress(now);
            }
            next = detail::min(run_due_work(now), next_progress_at_);
            if (!facts_.cancel_due) next = detail::min(next, cancel_at_);
        });
        return detail::min(next, now + max_sleep);
    }
    void act_on_changes() {
        while (act_on(read_facts())) {
        }
    }

    void end_drain(bool is_idle) {
        worker_.stage.own.apply(is_idle ? event::drained : event::grace_expired, {});
        act_on_changes();
    }
    void end_stop() {
        worker_.stage.own.apply(event::finished, {});
        act_on_changes();
    }
    // May end the process: see end_run(). `all_ended`: no thread is left behind.
    int end(const char* message, int status, bool all_ended) {
        attempt([&] { log_.write_stopped(message, status, draining_since_); });
        flush_log();
        if (worker_.owns_process) must_exit_ = end_run(status, !(all_ended && all_steps_finished_));
        return status;
    }

    cancel_reason stop_reason() const noexcept {
        const lifecycle_state state = worker_.stage.own.state();
        if (state.mode == stop_mode::reclaim) return cancel_reason::spot_reclaim;
        if (state.mode == stop_mode::forced) return cancel_reason::forced;
        return state.cancel_requested ? cancel_reason::cancelled : cancel_reason::grace_period_expired;
    }

    bool signalled_since(unsigned stop_signals) const noexcept {
        return worker_.stage.own.state().stop_signals > stop_signals;
    }

    // Runs the steps of on_shutdown() on another thread: this one must notice signals. True: they have ended.
    bool run_shutdown_steps() {
        if (!detail::exchange(steps_begun_, true) && shutdown_steps_.size() > 0) start_steps();
        if (!steps_ended_) return false;
        if (!steps_thread_.end_by(deadline_after(min_join_timeout))) all_steps_finished_ = false;
        return true;
    }
    std::vector<step_result> take_steps() noexcept { return std::move(steps_); }

    // An unreported job takes precedence over a stuck handler.
    int choose_exit_status(bool all_finished) const {
        if (worker_.unreported() > 0 || worker_.stopped_stuck) return exit_status::unreported;
        if (!all_steps_ran_) return exit_status::steps_not_run;
        return all_finished ? exit_status::settled : worker_.settings.dialect.stuck_exit_status;
    }

    static constexpr std::chrono::milliseconds min_join_timeout{500};  // even if stop_timeout is over
    // Should the program have closed the descriptor.
    static constexpr std::chrono::milliseconds max_sleep{5000};

    loop_context& worker_;
    const stop_log log_;
    stop_facts facts_;  // as last acted on; `resume_requests` are from before start() returns
    bool gave_up_ = false;
    time_point stop_deadline_ = never;

  private:
    void act(stop_action action, const stop_facts& before) {
        switch (action) {
            case stop_action::apply_shared_lifecycle: return apply_shared_lifecycle(before.shared);
            case stop_action::resume: return resume();
            case stop_action::send_heartbeat: return request_heartbeat();
            case stop_action::stop_fetching: return begin_drain();
            case stop_action::divide_stop_timeout: return begin_stop();
            case stop_action::notify_extensions: return notify_extensions();
            case stop_action::begin_fetching: return begin_fetching();
            case stop_action::wake_pool: return wake_takers();
            case stop_action::cancel: return cancel_all();
            case stop_action::call_cancel_callbacks:
            case stop_action::call_reclaim_callbacks: return call_cancel_callbacks();
            case stop_action::log_change:
                log_.write_interactive_notice(before.own.phase, facts_.own);
                return log_.write_change(before.own.phase, facts_.own);
            case stop_action::decide_mode: return decide_mode();
            case stop_action::log_reclaim:
                return log_.write_reclaim(has_reclaim_source_ || facts_.own.last_event == event::reclaim);
            case stop_action::call_on_transition:
                return worker_.user.call_back("on_transition threw; ignored",
                                              [this] { worker_.settings.on_transition(facts_.own); });
            case stop_action::give_up: return give_up();
            case stop_action::log_jobs: return log_in_flight();
        }
    }

    // Takes at most one change of a lifecycle, of the shared one first.
    stop_facts read_facts() const noexcept {
        stop_facts now = facts_;
        const loop_stage& stage = worker_.stage;
        if (!stage.shared.next_change(now.shared)) stage.own.next_change(now.own);
        now.resume_requests = stage.shared.resume_requests();
        now.report_requests = stage.own.report_requests() + stage.shared.report_requests();
        now.idle = idle();
        now.cancel_due = steady_clock::now() >= cancel_at_;
        add_facts(now);
        return now;
    }
    // False: there was nothing to do.
    bool act_on(const stop_facts& now) {
        const stop_facts before = detail::exchange(facts_, now);
        bool has_acted = false;
        for (int i = 0; i < stop_action_count; ++i) {
            const auto action = static_cast<stop_action>(i);
            if (!is_due(action, before, now)) continue;
            has_acted = true;
            attempt([&] { act(action, before); });
        }
        return has_acted;
    }

    time_point tick_extensions() {
        time_point out = time_point::max();
        worker_.user.for_each_extension([&out](worker_extension& extension) {
            const time_point now = steady_clock::now();
            const time_point former = out;
            out = detail::min(now + extension_retry_delay, former);  // in case it throws
            out = detail::min(extension.on_tick(now), former);
        });
        return out;
    }

    void notify_extensions() {
        worker_.user.for_each_extension(
            [this](worker_extension& extension) { extension.on_phase(facts_.own); });
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
        const int number = worker_.stage.shared.resume_signal();
        worker_.stage.own.apply(event::resume_request,
                                {number != 0 ? cause_kind::signal : cause_kind::api, number});
    }

    // Reads, for up to a second, whether a stop by signal is a reclaim. [Spot, WIRE 3]
    void decide_mode() {
        const cause why = drain_cause(facts_);
        const termination_mode mode = read_termination_mode(worker_.settings.termination_mode_file);
        // A SIGUSR1 that was sent with the stop signal is handled after it, or by another thread at the same time.
        if (facts_.first_signal_wins) ::poll(nullptr, 0, 10);
        if (worker_.stage.own.reclaim_requests() + worker_.stage.shared.reclaim_requests() > 0) {
            has_reclaim_source_ = true;
            return static_cast<void>(worker_.stage.own.apply(event::mode_reclaim, why));
        }
        worker_.log.write(mode.is_reclaim() ? log_level::warn : log_level::info, mode.message);
        if (!mode.is_reclaim()) return log_.write_grace_period(why);
        has_reclaim_source_ = mode.evidence == termination_evidence::reclaim;
        worker_.stage.own.apply(event::mode_reclaim, why);
    }

    // A third stop signal: ends the process. A worker that does not own its process stops waiting instead.
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

    void start_steps() {
        steps_ended_ = false;
        const auto run = [this, worker = ref<loop_context>(&worker_)] {
            retry_allocation(
                [this] { steps_ = shutdown_steps_.run(step_options()); });  // throws before any step
            note_steps();                                                   // then this may be destroyed
            worker->supervisor.notify();
        };
        result<thread> started =
            unless_out_of_memory([&] { return thread::start(run, worker_.service_thread("ojs-steps")); });
        if (started) return static_cast<void>(steps_thread_ = std::move(*started));
        constexpr const char* message = "cannot create a thread; shutdown steps run without a time limit";
        attempt([&] { worker_.log.write(log_level::warn, message, {field("error", started.error().text)}); });
        run();
    }
    void note_steps() noexcept {
        all_steps_ran_ = !steps_.empty();
        for (const step_result& step : steps_) {
            all_steps_ran_ = all_steps_ran_ && step.status != step_status::not_started;
            all_steps_finished_ = all_steps_finished_ && step.status != step_status::timed_out;
        }
        steps_ended_ = true;
    }
    sequence_options step_options() const {
        sequence_options out;
        out.log.level = log_level::off;  // log_step() writes them
        out.progress = [this](const step_result& step) { log_step(worker_.log, step); };
        out.thread_stack_size = worker_.settings.thread_stack_size;
        return out;
    }

    static constexpr std::chrono::milliseconds out_of_memory_delay{10};
    static constexpr std::chrono::milliseconds extension_retry_delay{1000};  // after an extension threw

    shutdown_sequence& shutdown_steps_;
    std::vector<step_result> steps_;
    thread steps_thread_;
    atomic<bool> steps_ended_{true};
    bool steps_begun_ = false;
    bool has_reclaim_source_ = false;  // SPOT_RECLAIM is in the termination-mode file
    bool all_steps_finished_ = true;
    bool all_steps_ran_ = true;
    bool must_exit_ = false;
    time_point cancel_at_ = never;
    time_point next_progress_at_ = never;
    time_point draining_since_ = steady_clock::now();
};

}  // namespace ojs::detail
