// machine: takes a loop or a worker from its start through the stages of a stop to its end.
#pragma once

#include <poll.h>

#include "../../host/termination_mode.ipp"
#include "machine_log.ipp"

namespace ojs::detail {
// Should the program have closed the waker's descriptor. The simulation sleeps for ever.
inline std::int64_t max_sleep_ms = 5000;

// The thread of run() turns it, and never blocks: other threads and tasks do what may block.
class machine : public machine_log {
  public:
    // Before any thread starts: if an extension fails, none does. After an error the caller calls tear_down().
    result<void> prepare_turns() {
        steps_timeout = steps.timeout();
        result<void> ready = start_extensions();
        const int fd = waker.notify_fd();
        if (ready && !(phases.own.subscribe(fd) && phases.shared.subscribe(fd)))
            ready = error{errc::busy, 0, "more than 16 descriptors subscribe to this lifecycle"};
        return ready;
    }
    virtual void tear_down() {
        stop_extensions(min(deadline_after(return_time), stop_end_));
        for (lifecycle* const each : {&phases.own, &phases.shared}) each->unsubscribe(waker.notify_fd());
    }
    // Acts on changes and on what is due. False: it has ended. Without memory the process ends.
    bool turn() noexcept {
        if (is_forked()) _exit(70);
        waker.clear();
        while (stage_ != stage::over) {
            act_on_changes();
            time_point extensions_due = never;
            call_extensions([&](worker_extension& each) {
                extensions_due = min(extensions_due, each.on_tick(steady_clock::now()));
            });
            const time_point now = steady_clock::now();
            if (now >= stage_end_ || is_over(now)) {
                end_stage();
                continue;
            }
            due = min(min(stage_end_, extensions_due), do_due(now));
            due = min(due, deadline_after(milliseconds(max_sleep_ms)));
            return true;
        }
        return false;
    }

    // False, and a line in the log: it has started, or cannot.
    bool accepts(std::string_view addition, std::string_view name = {}) const {
        if (locked([this] { return !is_started && stage_ == stage::ready; })) return true;
        log.write(log_level::error, cat({"added to a ", component, " after its start, and not used"}),
                  {field("addition", addition), field("name", name)});
        return false;
    }

    time_point due = never;  // of the next turn

  protected:
    using machine_log::machine_log;

    // ---- what a loop and a worker do differently; with * the guard is held ----

    virtual void on_change(bool moved) = 0;  // of the phase (`moved`), or of what else taking depends on
    virtual void begin_drain() {}
    virtual time_point do_due_work(time_point now) = 0;      // returns when to call it again
    virtual milliseconds parting_time() const noexcept = 0;  // the last part of stop_timeout
    virtual void begin_reporting() {}                        // of what has not returned
    virtual void begin_parting(time_point deadline) = 0;     // the last heartbeat, the last renewal
    virtual bool has_parted() const noexcept = 0;            // *
    virtual void end_parting() {}
    virtual bool has_returning_handlers(bool /*only_seen*/) const noexcept { return false; }  // *
    virtual std::size_t hung_threads() const noexcept { return 0; }                           // * these need not end
    virtual void on_left_threads() {}
    virtual int choose_status(bool all_ended) const = 0;

    void begin() {
        set_stage(stage::working);
        unsettled_machines.fetch_add(1);
        log_started();
        if (log.enabled(log_level::warn)) warn_at_start(log, settings, steps_timeout);
        notify_phase();
        act_on_changes();
    }
    void set_stage(stage next) {
        locked([&] { stage_ = next; });
    }
    // After each change of phase: ends what waits for work, or begins a new period.
    void update_taking() {
        const bool may_take = phases.may_take();
        array<ref<cancellable>> ended;
        unique_lock held(guard);
        for (ref<cancellable>& each : takings_) {
            if (may_take && each->cancel.requested()) each = make_taking();
            if (!may_take && each->cancel.request(cancel_reason::cancelled)) ended.push_back(each);
        }
        changed.notify_all();
        held.unlock();
        for (const ref<cancellable>& each : ended) deliver_cancellation(*each);
    }
    // With the guard held.
    void notify_if_stopping() const noexcept {
        if (stage_ >= stage::cancelling) waker.notify();
    }
    cancel_reason reason_of_stop() const noexcept { return stop_reason(phases.own.state()); }

    stage stage_ = stage::ready;      // the turning thread writes it with the guard held
    time_point reports_end_ = never;  // likewise

  private:
    // ---- extensions ----

    result<void> start_extensions() {
        extensions.clear();  // of a failed start
        for (const worker_extension_factory& factory : settings.extensions) {
            const ref<worker_extension> made(factory.make ? factory.make() : nullptr);
            if (!made) return invalid(cat({"worker extension '", factory.name, "' cannot be made"}));
            extensions.push_back(made);
            ++running_extensions_;
            result<void> started = invalid(cat({"worker extension '", factory.name, "' threw in start()"}));
            call_user("a worker extension threw in start()", [&] { started = made->start(machine_ref(this)); });
            if (!started) return started;
        }
        return {};
    }
    // In reverse order. Idempotent.
    void stop_extensions(time_point deadline) {
        while (running_extensions_ > 0) {
            const std::size_t i = --running_extensions_;
            call_user(
                "a worker extension threw in stop()", [&] { extensions[i]->stop(deadline); },
                settings.extensions[i].name);
        }
    }

    // ---- changes ----

    void notify_phase() {
        call_extensions([this](worker_extension& extension) { extension.on_phase(seen_); });
    }

    void act_on_changes() {
        for (bool any = true; any;) {
            const lifecycle_state shared_before = shared_seen_;
            const lifecycle_state before = seen_;
            const bool shared_changed = take_change(phases.shared, shared_seen_);
            if (shared_changed) phases.follow(shared_before, shared_seen_);
            const std::uint32_t resumes = lifecycle_access::requests(phases.shared, event::resume_request);
            if (exchange(resumes_seen_, resumes) != resumes) phases.follow_resume();
            const bool own_changed = take_change(phases.own, seen_);
            if (own_changed) act_on(before);
            if (shared_changed && !own_changed) on_change(false);  // it may have been quiet for a moment
            if (needs_mode_file(seen_, shared_seen_)) decide_mode();
            const bool third = shared_seen_.stop_signals >= 3 && !settings.profile.stop.first_signal_wins;
            if (seen_.stop_signals >= 3 || third) give_up();
            any = own_changed || shared_changed;
        }
        const std::uint32_t asked = phases.own.report_requests() + phases.shared.report_requests();
        if (exchange(reports_seen_, asked) != asked) log_in_flight();
    }
    void act_on(const lifecycle_state& before) {
        const bool moved = before.phase != seen_.phase;
        const auto enters = [&](ojs::phase next) { return before.phase < next && seen_.phase >= next; };
        const bool reclaims = enters(phase::stopping) && seen_.mode == stop_mode::reclaim;
        if (enters(phase::draining)) enter_drain();
        if (enters(phase::stopping)) enter_stop();
        if (moved) notify_phase();
        on_change(moved);
        const bool cancels = seen_.phase >= phase::stopping && request_cancellation();
        if (cancels && !reclaims) call_cancel_callbacks();
        log_change(before.phase);
        if (reclaims) log_reclaim(has_reclaim_source_ || seen_.last_event == event::reclaim);
        if (needs_mode_file(seen_, shared_seen_)) decide_mode();
        if (cancels && reclaims) call_cancel_callbacks();  // after the lines of the controller guide
        if (!moved || !settings.on_transition) return;
        transitions_due_.fetch_add(1);
        threads.post(task_kind::transition, [this, state = seen_] {
            call_user("on_transition threw; ignored", [&] { settings.on_transition(state); });
            transitions_due_.fetch_sub(1);
        });
    }
    // Not at an earlier quiet. [WIRE]
    void enter_drain() {
        draining_since_ = changed_at(seen_);
        const time_point drain_end = phases.begin_drain(draining_since_);
        const time_point end = drain_end == never ? never : drain_end + settings.times.stop_timeout + callback_time;
        for (time_point latest = stops_end; latest < end && !stops_end.compare_exchange_strong(latest, end);) continue;
        next_progress_ = steady_clock::now() + settings.progress_interval;
        const milliseconds lead = settings.times.cancel_before_deadline;
        if (lead.count() > 0 && drain_end != never) cancel_at_ = drain_end - lead;
        begin_drain();
    }
    void enter_stop() {
        const milliseconds timeout = settings.times.stop_timeout;
        limit_log_wait(seen_.mode == stop_mode::reclaim ? timeout / 50 : timeout / 10);
        stop_end_ = steady_clock::now() + timeout;
        set_reports_end(stop_end_ - parting_time());
        if (has_given_up_) shorten_stop();  // three signals at once
    }
    // One store. True: the first; then call_cancel_callbacks().
    bool request_cancellation() {
        if (!group_.cancel_members(reason_of_stop())) return false;
        const unique_lock held(guard);
        all_cancelled_at = steady_clock::now();
        check_soon(all_cancelled_at + settings.stuck_after);
        return true;
    }
    void call_cancel_callbacks() {
        const work_list all = works();
        for (const ref<work>& each : all) each->cancel.wake_waiters();  // first: threads may be slow to start
        for (const ref<work>& each : all) deliver_cancellation(*each);
    }
    // Reads whether a stop by signal is a reclaim. [Spot, WIRE 3]
    void decide_mode() {
        const std::string& file = settings.termination_mode_file;
        if (file.empty() || exchange(mode_is_decided_, true)) return;
        const cause why = drain_cause(seen_, shared_seen_);
        const termination_mode mode = read_termination_mode(file);
        // A SIGUSR1 sent with the stop signal is handled after it, or by another thread at the same time.
        if (settings.profile.stop.first_signal_wins) ::poll(nullptr, 0, 10);
        const auto asked = [](lifecycle& of) { return lifecycle_access::requests(of, event::reclaim) > 0; };
        const bool is_requested = asked(phases.own) || asked(phases.shared);
        if (!is_requested) log.write(mode.is_reclaim() ? log_level::warn : log_level::info, describe_stop(mode));
        if (!is_requested && !mode.is_reclaim()) return log_grace_period(why);
        has_reclaim_source_ = is_requested || mode.evidence == termination_evidence::reclaim;
        phases.own.apply(event::mode_reclaim, why);
    }
    // At a third stop signal. What does not own its process stops waiting instead.
    void give_up() {
        if (exchange(has_given_up_, true)) return;
        const cause why = seen_.stop_signals >= 3 ? seen_.cause : shared_seen_.cause;
        log_third_signal(why);
        if (owns_process) _exit(exit_status::signal_base + why.signal);
        shorten_stop();
    }
    void shorten_stop() {
        if (stop_end_ == never) return;  // see enter_stop()
        set_reports_end(steady_clock::now());
        stop_end_ = min(stop_end_, deadline_after(parting_time()));
        if (stage_ == stage::reporting) stage_end_ = reports_end_ + margin();
        if (stage_ == stage::ending) stage_end_ = stop_end_;
    }
    void set_reports_end(time_point when) {
        const unique_lock held(guard);
        reports_end_ = when;
        retry_reports();
    }

    // ---- what is due ----

    time_point do_due(time_point now) {
        if (now >= cancel_at_) {
            cancel_at_ = never;
            if (request_cancellation()) call_cancel_callbacks();
        }
        if (stage_ >= stage::parting) next_progress_ = never;
        if (now >= next_progress_) {
            next_progress_ = now + settings.progress_interval;
            log_progress(now);
        }
        const time_point seen_ends = entered_ + return_time;
        const time_point next = stage_ == stage::returning && now < seen_ends ? seen_ends : never;
        return min(min(do_due_work(now), next), min(cancel_at_, next_progress_));
    }

    // ---- stages ----

    bool is_over(time_point now) const {
        const bool was_signalled = phases.own.state().stop_signals > signals_before_;  // since the drain ended
        const unique_lock held(guard);
        switch (stage_) {
            case stage::working: return seen_.phase >= phase::draining;
            case stage::draining: return is_idle() || seen_.phase >= phase::stopping;
            case stage::cancelling: return is_idle() || was_signalled || has_given_up_;
            case stage::reporting: return is_idle();
            case stage::parting: return has_parted();
            case stage::returning: return was_signalled || !has_returning_handlers(now >= entered_ + return_time);
            case stage::closing: return closing_ == 0;
            case stage::ending: return threads.live() <= hung_threads();
            case stage::ready:
            case stage::over: break;
        }
        return false;
    }
    void end_stage() {
        const stage ended = stage_;
        set_stage(static_cast<stage>(static_cast<int>(ended) + 1));
        entered_ = steady_clock::now();
        stage_end_ = never;
        switch (ended) {
            case stage::working: stage_end_ = phases.drain_deadline(); break;
            case stage::draining:
                phases.own.apply(locked([this] { return is_idle(); }) ? event::drained : event::grace_expired, {});
                act_on_changes();
                signals_before_ = phases.own.state().stop_signals;
                stage_end_ = cancelling_ends(steady_clock::now(), reason_of_stop(), settings.times, reports_end_);
                break;
            case stage::cancelling:
                begin_reporting();
                stage_end_ = reports_end_ + margin();
                break;
            case stage::reporting:
                do_due_work(entered_);  // else not seen after a freeze
                count_rest();
                // Even after a freeze the last heartbeat gets a try.
                stage_end_ = max(stop_end_, entered_ + parting_time() / 2);
                begin_parting(stage_end_);
                stage_end_ += margin();
                break;
            case stage::parting:
                end_parting();
                stage_end_ = max(stop_end_, entered_ + return_time);
                break;
            case stage::returning: start_steps(); break;
            case stage::closing:
                phases.own.apply(event::finished, {});
                act_on_changes();
                threads.close();
                stage_end_ = max(stop_end_, entered_ + join_time);
                break;
            case stage::ending: finish(); break;
            case stage::ready:
            case stage::over: break;
        }
    }
    // For calls that end at their deadline to return.
    milliseconds margin() const noexcept { return parting_time() / 4; }
    // What is in flight and not in the account is unreported.
    void count_rest() {
        work_list rest;
        unique_lock held(guard);
        for (const ref<work>& each : in_flight) {
            if (exchange(each->is_over, true)) continue;
            rest.push_back(each);
            count_unreported(each->job.id);
        }
        held.unlock();
        for (const ref<work>& each : rest) log.write({log_level::error, unreported_, in_flight_fields(*each), {}});
    }
    // On another thread: this one must notice signals.
    void start_steps() {
        unique_lock held(guard);
        if (steps.size() == 0 || threads.start(held, closing_, "ojs-steps", false, [this] { run_steps(); })) return;
        held.unlock();
        run_steps();
    }
    void run_steps() {
        const auto progress = [this](const step_result& step) { log_step(log, step); };
        std::vector<step_result> done = steps.run({no_limit, progress, settings.thread_stack_size});
        const unique_lock held(guard);
        counts.steps = std::move(done);
        closing_ = 0;
        waker.notify();
    }
    void finish() {
        const std::size_t hung = locked([this] { return min(threads.live(), hung_threads()); });
        on_left_threads();
        const std::size_t left =
            threads.join(max(deadline_after(join_time), stop_end_ - settings.times.stop_timeout / 5));
        if (left > hung)
            log.write(log_level::warn, "threads have not ended; exiting without waiting for them",
                      {field("threads", left - hung)});
        tear_down();
        count_rest();  // of a FETCH whose response came too late
        const int status = choose_status(left == 0);
        log_stopped(status);
        exit_code = status;
        stopped.request(cancel_reason::cancelled);  // first: those that wait for the end find it
        locked([this] { has_ended = true; });
        changed.notify_all();
        shutdown_sequence last;  // awaits callbacks of the user until the stop is over
        const auto call = [self = ref<machine>(this)] {
            const user_call entered(self->callbacks);
            while (self->transitions_due_ == 1) pause_for(milliseconds(5));  // not if an earlier one hangs
            self->stopped.run_callbacks();
        };
        if (stopped.has_pending_callbacks() || transitions_due_ == 1)
            last.add("", call, max(callback_time, milliseconds(-milliseconds_since(stop_end_))));
        bool all_finished = true;
        for (const std::vector<step_result>& done : {counts.steps, last.run()}) {
            for (const step_result& step : done) all_finished = all_finished && step.status != step_status::timed_out;
        }
        if (owns_process && (left > 0 || !all_finished)) {
            while (unsettled_machines > 1 && steady_clock::now() < stops_end.load()) pause_for(milliseconds(1));
            _exit(unsettled_machines > 1 ? exit_status::unreported : status);
        }
        if (status != exit_status::unreported) unsettled_machines.fetch_sub(1);
    }

    // Used only by the turning thread.
    lifecycle_state shared_seen_;  // as seen_
    // Earlier requests count as seen.
    std::uint32_t resumes_seen_ = lifecycle_access::requests(phases.shared, event::resume_request);
    std::uint32_t reports_seen_ = 0;
    time_point entered_ = {};       // the stage in progress
    time_point stage_end_ = never;  // when it ends if it is not over
    time_point stop_end_ = never;   // of the whole stop
    time_point cancel_at_ = never;  // stop_times::cancel_before_deadline before the drain ends
    time_point next_progress_ = never;
    unsigned signals_before_ = 0;  // the end of the drain
    bool has_given_up_ = false;    // after a third stop signal
    bool mode_is_decided_ = false;
    bool has_reclaim_source_ = false;      // SPOT_RECLAIM is in the termination-mode file
    std::size_t closing_ = 0;              // guarded; 1: the steps run
    atomic<unsigned> transitions_due_{0};  // calls of on_transition that have not returned
    std::size_t running_extensions_ = 0;   // those that were not stopped
};
}  // namespace ojs::detail
