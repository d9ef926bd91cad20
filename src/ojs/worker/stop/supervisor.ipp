// supervisor: follows the lifecycle and does what each change asks for: quiet, drain, stop.
#pragma once

#include "../../base/detail/array.hpp"
#include "../../base/detail/exchange.hpp"
#include "../../host/termination_mode.hpp"
#include "../budget.hpp"
#include "../heartbeat/heartbeat.ipp"
#include "../threads/job_pool.ipp"
#include "../worker_part.ipp"
#include "shutdown_steps.ipp"
#include "stop_log.ipp"

namespace ojs::detail {

// A run() has ended. If any of them abandoned a thread, the last to end calls _exit() with the highest status, so that the
// others can settle their jobs. True: the caller must not return.
inline bool end_run(int status, bool leaves_threads) noexcept {
    int worst = process.worst_status.load();
    while (status > worst && !process.worst_status.compare_exchange_weak(worst, status)) {
    }
    if (leaves_threads) process.exits.store(true);
    if (process.runs.fetch_sub(1) == 1) {
        if (process.exits.load()) _exit(process.worst_status.load());
        process.worst_status.store(0);  // of no later run()
    }
    return leaves_threads;
}

// Runs one worker from its first heartbeat to its last. Sleeps on one descriptor; makes no slow call itself,
// so it notices every signal at once. Listeners are called from here.
class supervisor {
  public:
    supervisor(ref<worker_context> context, ref<job_pool> pool, shutdown_sequence& at_shutdown)
        : context_(std::move(context)),
          worker_(*context_),
          pool_(std::move(pool)),
          heart_(make_ref<heartbeat>(worker_)),
          stuck_(worker_, *pool_),
          log_(worker_),
          at_shutdown_(at_shutdown),
          resumes_seen_(worker_.followed != nullptr ? worker_.followed->resume_requests() : 0) {}

    result<void> start() {
        const result<void> started = unless_out_of_memory([this] {
            result<void> begun = heart_->start();
            return begun ? pool_->start() : begun;
        });
        if (!started) {
            worker_.beats.finish(steady_clock::now());
            heart_->join();
        }
        return started;
    }

    int supervise() {
        attempt([this] {
            log_.started();
            log_.findings();
        });
        worker_.each_part([this](worker_part& part) { part.on_phase(seen_); });
        if (worker_.followed != nullptr) {
            followed_seen_ = worker_.followed->state();
            follow(phase::running, followed_seen_);
        }
        await(time_point::max(), [this] { return phase() >= phase::draining; });
        drain();
        stop();
        return end();
    }

    // After supervise(): run() must not return; see end_run().
    bool must_exit() const noexcept { return must_exit_; }

  private:
    // The phase as noticed: what follows from it has been done. The lifecycle itself may be ahead.
    ojs::phase phase() const noexcept { return phase_seen_; }
    bool idle() const noexcept { return worker_.claims.count() == 0; }

    // Sleeps until `holds()`, noticing every change of phase meanwhile; false at the deadline.
    template <class Condition>
    bool await(time_point deadline, Condition holds) {
        for (;;) {
            const bool noticed = attempt([this] { notice_changes(); });
            const time_point parts_due = turn_parts();
            if (holds()) return true;
            const time_point now = steady_clock::now();
            if (now >= deadline) return false;
            time_point wake_at = deadline < parts_due ? deadline : parts_due;
            const bool done = attempt([&] {
                const time_point next = do_what_is_due(now);
                if (next < wake_at) wake_at = next;
            });
            const time_point again = now + memory_pause;
            if ((!noticed || !done) && again < wake_at) wake_at = again;
            worker_.supervisor.wait_until(wake_at);
        }
    }

    // Returns the time of the next due action.
    time_point do_what_is_due(time_point now) {
        if (now >= next_progress_) {
            next_progress_ = now + worker_.options.progress_interval;
            log_.progress(now);
        }
        const time_point next_look = stuck_.look(now);
        const time_point next_thread = pool_->retry_threads(now);
        time_point out = next_progress_;
        for (const time_point each : {next_look, next_thread}) out = each < out ? each : out;
        return out;
    }
    // The same of the parts.
    time_point turn_parts() {
        time_point out = time_point::max();
        worker_.each_part([&out](worker_part& part) {
            const time_point now = steady_clock::now();
            const time_point before = out;
            out = now + part_retry < before ? now + part_retry : before;
            const time_point next = part.on_turn(now);
            out = next < before ? next : before;
        });
        return out;
    }

    void notice_changes() {
        if (worker_.followed != nullptr) {
            ojs::phase before = followed_seen_.phase;
            for (; worker_.followed->next_change(followed_seen_); before = followed_seen_.phase) {
                follow(before, followed_seen_);
            }
            follow_resumes();
        }
        while (worker_.life.next_change(seen_)) on_change(seen_);
        notice_queues();
        if (!registration_seen_ && worker_.beats.registration_tried()) {
            registration_seen_ = true;
            pool_->look_again();
        }
        decide_mode();  // a signal may have come to a drain that nobody had signalled
        answer_report_requests();
    }

    // There may be work in one that was opened, and a FETCH that was about to go out was not sent.
    void notice_queues() {
        const std::uint32_t now = worker_.queues.version();
        if (detail::exchange(queues_seen_, now) != now) pool_->wake();
    }

    // SIGTTIN: what is in flight, at any time.
    void answer_report_requests() {
        const std::uint32_t requests =
            worker_.life.report_requests() +
            (worker_.followed != nullptr ? worker_.followed->report_requests() : 0);
        if (detail::exchange(reports_seen_, requests) != requests) log_.jobs_in_flight(stuck_);
    }

    // SIGCONT also undoes a quiet that was this worker's alone, of which the outside lifecycle knows nothing. A resume is
    // counted before its change is made: where that is yet to be noticed, follow() does the rest.
    void follow_resumes() {
        const std::uint32_t requests = worker_.followed->resume_requests();
        if (detail::exchange(resumes_seen_, requests) == requests) return;
        if (followed_seen_.phase != phase::running) return;
        const received_signal from = signals::last_received(SIGCONT);
        cause why{cause_kind::api};
        if (from.number != 0) why = {cause_kind::signal, SIGCONT, from.sender_pid, from.sender_uid};
        worker_.life.apply(event::resume_request, why);
    }

    // Only with an outside lifecycle; else signals drive the worker's own. Brings this worker to where that one stands. By
    // its state, not its events: this worker may be further already, and one SIGTERM must not be its second.
    void follow(ojs::phase before, const lifecycle_state& outside) {
        lifecycle& own = worker_.life;
        const bool first_wins = worker_.options.dialect.first_signal_wins;
        const bool overruled = first_wins && stop_signalled_;
        stop_signalled_ = stop_signalled_ || outside.stop_signals > 0 || outside.mode == stop_mode::reclaim;
        if (outside.phase == phase::quiet) own.apply(event::quiet_request, outside.cause);
        if (outside.phase == phase::running && before == phase::quiet) {
            own.apply(event::resume_request, outside.cause);
        }
        // Before the drain, whose beginning asks the termination-mode file: SIGUSR1 is a reclaim whatever that says.
        if (outside.mode == stop_mode::reclaim && !overruled) own.apply(event::reclaim, outside.cause);
        if (outside.phase >= phase::draining) own.apply(event::stop_request, outside.cause);
        if (outside.cancel_requested) own.apply(event::cancel_request, outside.cause);
        const bool forced = outside.last_event == event::stop_signal && outside.mode == stop_mode::forced;
        if (forced && !first_wins) own.apply(event::stop_signal, outside.cause);
        if (outside.exit_now && !first_wins) give_up(outside);
        pool_->wake();  // what it may do hangs on both lifecycles
    }

    void on_change(const lifecycle_state& now) {
        const ojs::phase before = detail::exchange(phase_seen_, now.phase);
        const bool moved = before != now.phase;
        if (moved) act_on_phase(before, now);
        const bool cancels = (now.phase == phase::stopping || now.cancel_requested) && !idle() &&
                             pool_->cancel_all(stop_reason());
        const bool reclaims = moved && now.phase == phase::stopping && now.mode == stop_mode::reclaim;
        if (cancels && !reclaims)
            pool_->tell_all_cancelled();  // before what may have to wait for the log's reader
        attempt([&] { log_.change(before, now); });
        if (moved) attempt([this] { decide_mode(); });
        if (reclaims) attempt([&] { log_.reclaim(reclaim_named_ || now.last_event == event::reclaim); });
        if (cancels && reclaims) pool_->tell_all_cancelled();  // what they log comes after, as in the guide
        if (moved)
            worker_.call_back("on_transition threw; ignored", [&] { worker_.options.on_transition(now); });
        if (now.exit_now) give_up(now);
    }

    void act_on_phase(ojs::phase before, const lifecycle_state& now) {
        if (before == phase::running || now.phase == phase::running) worker_.beats.by(time_point::min());
        if (now.phase >= phase::draining && before < phase::draining) close_intake(now);
        if (now.phase >= phase::stopping && before < phase::stopping) share_out_stop();
        worker_.each_part([&](worker_part& part) { part.on_phase(now); });
        pool_->wake();
    }

    // The clock of the grace period starts here, not at an earlier quiet. [WIRE]
    void close_intake(const lifecycle_state& now) {
        draining_since_ = lifecycle::changed_at(now);
        worker_.drain_began(draining_since_);
        next_progress_ = steady_clock::now() + worker_.options.progress_interval;
        worker_.claims.close();
        pool_->close();
        if (const std::size_t jobs = worker_.jobs.size()) pool_->reports().expect(jobs > many_jobs ? 16 : 2);
    }

    // Who is behind the drain, as far as a signal is; it may have come to an outside lifecycle only.
    cause drain_cause() const noexcept {
        const lifecycle_state own = worker_.life.state();
        if (own.cause.kind == cause_kind::signal || worker_.followed == nullptr) return own.cause;
        const lifecycle_state outside = worker_.followed->state();
        return outside.phase >= phase::draining ? outside.cause : own.cause;
    }

    // Whether a stop by signal is a normal one or a reclaim, once, in the words of the controller guide. [Spot, WIRE 3]
    void decide_mode() {
        const std::string& file = worker_.options.termination_mode_file;
        if (file.empty() || mode_decided_ || phase() != phase::draining) return;
        const cause why = drain_cause();
        if (why.kind != cause_kind::signal || why.signal == SIGUSR1) return;
        mode_decided_ = true;
        const termination_mode mode = read_termination_mode(file);
        worker_.log.write(mode.is_reclaim() ? log_level::warn : log_level::info, mode.message);
        if (mode.is_reclaim()) {
            reclaim_named_ = mode.evidence == termination_evidence::reclaim;
            worker_.life.apply(event::mode_reclaim, why);
            return;
        }
        log_.grace_period(why);
    }

    void drain() {
        const auto over = [this] { return idle() || phase() >= phase::stopping; };
        const std::chrono::milliseconds lead = worker_.options.times.cancel_lead;
        if (lead.count() > 0 && !await(worker_.drain_deadline() - lead, over) &&
            pool_->cancel_all(stop_reason()))
            pool_->tell_all_cancelled();
        const bool ended = await(worker_.drain_deadline(), over);
        worker_.life.apply(ended ? event::drained : event::grace_expired, {});
        insist([this] { notice_changes(); });
    }

    // What is bounded by stop_timeout, from here on.
    void share_out_stop() {
        const time_point now = steady_clock::now();
        const std::chrono::milliseconds total = worker_.options.times.stop_timeout;
        limit_log_waiting(worker_.life.state().mode == stop_mode::reclaim ? total / 50 : total / 10);
        stop_end_ = now + total;
        worker_.reports.set_saves(now + (total / 20 < saves_share ? total / 20 : saves_share));
        worker_.reports.set(stop_end_ - last_beat_time(total));
        if (gave_up_) cut_stop_short();  // three signals at once
    }

    void stop() {
        const unsigned signals = worker_.life.state().stop_signals;
        const time_point report_deadline = worker_.reports.deadline();
        if (!idle()) interrupt_jobs(report_deadline);
        if (!await_reports(report_deadline)) name_unreported();
        worker_.beats.finish(stop_end_);
        await(stop_end_ + a_moment(), [this] { return worker_.beats.all_finished(); });
        worker_.calls.close();
        await_handlers(signals);
        run_shutdown_steps();
        worker_.life.apply(event::finished, {});
        insist([this] { notice_changes(); });
    }

    // Lets a call that ends at its deadline say so.
    std::chrono::milliseconds a_moment() const noexcept {
        return last_beat_time(worker_.options.times.stop_timeout) / 4;
    }
    // False: some are not made in their time, which a third stop signal ends early.
    bool await_reports(time_point deadline) {
        await(deadline + a_moment(), [&] { return idle() || worker_.reports.deadline() < deadline; });
        return await(worker_.reports.deadline() + a_moment(), [this] { return idle(); });
    }

    cancel_reason stop_reason() const noexcept {
        const lifecycle_state state = worker_.life.state();
        if (state.mode == stop_mode::reclaim) return cancel_reason::spot_reclaim;
        if (state.mode == stop_mode::forced) return cancel_reason::forced;
        return state.cancel_requested ? cancel_reason::cancelled : cancel_reason::grace_period_expired;
    }

    // Everything in flight is cancelled: lets handlers return for a moment, and reports the rest.
    void interrupt_jobs(time_point report_deadline) {
        const std::chrono::milliseconds wait = time_to_return();
        if (wait.count() > 0) await_cancelled(wait, report_deadline);
        pool_->interrupt_all(stop_reason());
    }

    // For handlers that were cancelled, before they are reported.
    std::chrono::milliseconds time_to_return() const noexcept {
        const cancel_reason why = stop_reason();
        if (why == cancel_reason::spot_reclaim) return worker_.options.times.reclaim_wait;
        const std::chrono::milliseconds set = worker_.options.times.cancel_wait;
        return why == cancel_reason::cancelled && set.count() == 0 ? hard_stop_wait : set;
    }

    // Every job is reported. Handlers that know of it have what is left of the stop to return, as have threads on their way
    // back from one; others, a moment.
    // More signals than `signals` end that.
    void await_handlers(unsigned signals) {
        const time_point soon = steady_clock::now() + stuck_wait;
        if (await(soon, [this] { return !pool_->any_in_handler(); })) return;
        await(stop_end_,
              [&] { return worker_.life.state().stop_signals > signals || !pool_->any_returning(); });
    }

    // What they do not say has to be reported for them: that needs some of the time there is.
    void await_cancelled(std::chrono::milliseconds wait, time_point report_deadline) {
        const time_point now = steady_clock::now();
        const time_point latest = report_deadline - report_time(report_deadline - now);
        const time_point until = deadline_after(wait);
        const unsigned signals = worker_.life.state().stop_signals;
        await(until < latest ? until : latest,
              [&] { return idle() || worker_.life.state().stop_signals > signals; });
    }

    void name_unreported() {
        worker_.jobs.each([this](active_job& job) { mark_unreported(worker_, job); });
        attempt([this] { log_.unreported(worker_.jobs.snapshot()); });
    }

    // A third stop signal: leave now. A worker that does not own its process at least stops waiting.
    void give_up(const lifecycle_state& now) {
        attempt([&] { log_.leaving_at_once(now.cause); });
        if (worker_.owns_process) _exit(exit_status::signal_base + now.cause.signal);
        gave_up_ = true;
        cut_stop_short();
    }
    void cut_stop_short() {
        worker_.reports.set(steady_clock::now());
        const time_point soon = deadline_after(last_beat_time(worker_.options.times.stop_timeout));
        if (soon < stop_end_) stop_end_ = soon;
    }

    // Everything is reported; what remains is to get the threads home.
    int end() {
        pool_->reports().close();
        await_threads();
        const bool all_finished = pool_->threads().all_finished();
        if (!all_finished) attempt([this] { name_stuck(); });
        const int status = end_status(all_finished);
        // What parts have under way gets a moment; the stop keeps its time.
        const time_point soon = steady_clock::now() + stuck_wait;
        stop_worker_parts(worker_, soon < stop_end_ ? soon : stop_end_);
        const bool all_ended = end_threads();
        attempt([&] { log_.ended(status, draining_since_); });
        if (worker_.owns_process)
            must_exit_ = end_run(status, !(all_finished && all_ended && all_steps_finished_));
        return status;
    }

    void await_threads() {
        const time_point soon = steady_clock::now() + stuck_wait;
        await(soon < stop_end_ ? stop_end_ : soon, [this] { return pool_->threads().over(); });
    }
    // The deadline for threads whose work is done: the process itself is to be gone when stop_timeout ends.
    time_point join_deadline() const noexcept {
        const time_point soon = steady_clock::now() + join_wait;
        const time_point latest = stop_end_ - worker_.options.times.stop_timeout / 5;
        return soon < latest ? latest : soon;
    }
    // False: some do not end; a thread_local destructor or a call to the backend blocks.
    bool end_threads() {
        const time_point deadline = join_deadline();
        std::size_t left = 0;
        while ((left = pool_->threads().join(steady_clock::now() + join_slice)) > 0 && !gave_up_ &&
               steady_clock::now() < deadline)
            notice_changes();
        pool_->threads().abandon();
        left += heart_->end(deadline);
        if (left > 0) attempt([&] { log_.left_behind(left); });
        return left == 0;
    }

    // What the application gave worker::on_shutdown(), beside this thread, which has signals to notice.
    void run_shutdown_steps() {
        if (at_shutdown_.size() == 0) return;
        ref<shutdown_steps> steps;
        all_steps_ran_ = insist([&] { steps = make_ref<shutdown_steps>(worker_, at_shutdown_); });
        if (!all_steps_ran_) return;
        thread runner = steps->start();
        await(time_point::max(), [&] { return steps->ended(); });
        all_steps_finished_ = runner.end_by(join_deadline()) && !steps->any(step_end::timed_out);
        all_steps_ran_ = !steps->any(step_end::not_started);
        steps->publish();
    }

    // A job nobody could be told about says more than a handler that did not return.
    int end_status(bool all_finished) const {
        if (worker_.tally.unreported() > 0 || worker_.stopped_stuck) return exit_status::unreported;
        if (!all_steps_ran_) return exit_status::steps_not_run;
        return all_finished ? exit_status::settled : worker_.options.dialect.stuck_status;
    }

    void name_stuck() {
        const array<ref<active_job>> jobs = pool_->jobs_in_handlers();
        log_.stuck(ids_of(jobs));
        stuck_.leave_behind(jobs);
        await_threads();  // for on_stuck_job
    }

    // What stop_and_cancel() leaves handlers where cancel_wait says nothing. [WIRE 2]
    static constexpr std::chrono::milliseconds hard_stop_wait{1000};
    static constexpr std::size_t many_jobs = 64;                  // their handlers may keep all CPUs busy
    static constexpr std::chrono::milliseconds saves_share{250};  // for checkpoints under way to be kept
    static constexpr std::chrono::milliseconds memory_pause{10};  // after a turn that ran out of memory
    static constexpr std::chrono::milliseconds part_retry{1000};  // after a part threw
    // How long handlers of reported jobs may take to come back before the process leaves without them.
    static constexpr std::chrono::milliseconds stuck_wait{100};
    static constexpr std::chrono::milliseconds join_wait{500};  // at least, even if stop_timeout is over
    static constexpr std::chrono::milliseconds join_slice{50};  // between two looks for signals

    const ref<worker_context> context_;
    worker_context& worker_;
    const ref<job_pool> pool_;
    const ref<heartbeat> heart_;
    stuck_watch stuck_;
    const stop_log log_;
    shutdown_sequence& at_shutdown_;
    lifecycle_state seen_;           // the last change noticed
    lifecycle_state followed_seen_;  // the same of the outside lifecycle
    std::uint32_t resumes_seen_;     // of the outside lifecycle, from before start() returns
    std::uint32_t queues_seen_ = 0;
    bool registration_seen_ = false;
    std::uint32_t reports_seen_ = 0;
    bool stop_signalled_ = false;  // by an outside lifecycle
    bool gave_up_ = false;
    bool mode_decided_ = false;
    bool reclaim_named_ = false;  // by the termination-mode file
    bool all_steps_finished_ = true;
    bool all_steps_ran_ = true;
    bool must_exit_ = false;
    ojs::phase phase_seen_ = phase::running;
    time_point next_progress_ = time_point::max();
    time_point draining_since_ = steady_clock::now();
    time_point stop_end_ = time_point::max();
};

}  // namespace ojs::detail
