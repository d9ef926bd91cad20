// stop_plan: decides what a worker's supervisor does about each change, as a pure function.
#pragma once

#include <csignal>

#include "../../core/lifecycle.hpp"

namespace ojs::detail {

// The inputs of a decision. Each change of one wakes the supervisor, which reads them all.
struct stop_facts {
    lifecycle_state own;     // after the latest noticed change
    lifecycle_state shared;  // the same for the lifecycle that the worker follows
    std::uint32_t resume_requests = 0;
    std::uint32_t report_requests = 0;  // by SIGTTIN
    std::uint32_t queues_version = 0;
    bool registration_tried = false;  // FETCH may begin
    bool idle = true;                 // no job is in flight
    bool cancel_due = false;          // stop_times::cancel_lead before the drain ends
    bool has_mode_file = false;
    bool first_signal_wins = false;
};

enum class stop_action : std::uint8_t {
    apply_shared_lifecycle,  // apply the shared lifecycle's changes
    resume,                  // by SIGCONT, where only this worker is quiet
    send_heartbeat,          // announces running or quiet at once
    stop_fetching,           // begin the drain
    divide_stop_timeout,     // begin the stop
    notify_parts,
    begin_fetching,
    wake_pool,  // what a FETCH depends on has changed
    cancel,     // the jobs in flight
    call_cancel_callbacks,
    log_change,   // after these: the log may be slow
    decide_mode,  // may make the stop a reclaim
    log_reclaim,
    call_reclaim_callbacks,  // after the log lines of the controller guide
    call_on_transition,
    give_up,
    log_jobs
};
inline constexpr int stop_action_count = 17;

// Actions, in the order of their execution.
class stop_plan {
  public:
    constexpr void add_if(bool condition, stop_action action) noexcept {
        if (condition) actions_[size_++] = action;
    }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr const stop_action* begin() const noexcept { return actions_; }
    constexpr const stop_action* end() const noexcept { return actions_ + size_; }

  private:
    stop_action actions_[stop_action_count] = {};
    int size_ = 0;
};

constexpr bool has_changed(const lifecycle_state& before, const lifecycle_state& now) noexcept {
    return before.sequence != now.sequence || before.phase != now.phase;
}

constexpr bool cancels_jobs(const stop_facts& facts) noexcept {
    return facts.own.phase >= phase::stopping || facts.own.cancel_requested || facts.cancel_due;
}

// A signal, if either lifecycle received one.
constexpr cause drain_cause(const stop_facts& facts) noexcept {
    const bool is_shared =
        facts.own.cause.kind != cause_kind::signal && facts.shared.phase >= phase::draining;
    return is_shared ? facts.shared.cause : facts.own.cause;
}

// The termination-mode file decides about a stop by signal, which may come late in a drain.
constexpr bool needs_mode_file(const stop_facts& facts) noexcept {
    const cause why = drain_cause(facts);
    return facts.has_mode_file && facts.own.phase == phase::draining && why.kind == cause_kind::signal &&
           why.signal != SIGUSR1;
}

// After a third stop signal.
constexpr bool must_exit_now(const stop_facts& facts) noexcept {
    return facts.own.exit_now || (facts.shared.exit_now && !facts.first_signal_wins);
}

// Plans for one change of a lifecycle at a time, so that listeners are notified of each.
constexpr stop_plan plan_stop(const stop_facts& before, const stop_facts& now) noexcept {
    const ojs::phase was = before.own.phase;
    const ojs::phase is = now.own.phase;
    const bool phase_changed = was != is;
    const bool shared_changed = has_changed(before.shared, now.shared);
    const bool resumed = before.resume_requests != now.resume_requests && now.shared.phase == phase::running;
    const bool cancels = cancels_jobs(now) && !cancels_jobs(before) && !now.idle;
    const bool reclaims = phase_changed && is == phase::stopping && now.own.mode == stop_mode::reclaim;
    stop_plan out;
    out.add_if(shared_changed, stop_action::apply_shared_lifecycle);
    out.add_if(resumed, stop_action::resume);
    out.add_if(phase_changed && (was == phase::running || is == phase::running), stop_action::send_heartbeat);
    out.add_if(was < phase::draining && is >= phase::draining, stop_action::stop_fetching);
    out.add_if(was < phase::stopping && is >= phase::stopping, stop_action::divide_stop_timeout);
    out.add_if(phase_changed, stop_action::notify_parts);
    out.add_if(now.registration_tried && !before.registration_tried, stop_action::begin_fetching);
    out.add_if(phase_changed || shared_changed || before.queues_version != now.queues_version,
               stop_action::wake_pool);
    out.add_if(cancels, stop_action::cancel);
    out.add_if(cancels && !reclaims, stop_action::call_cancel_callbacks);
    out.add_if(has_changed(before.own, now.own), stop_action::log_change);
    out.add_if(needs_mode_file(now) && !needs_mode_file(before), stop_action::decide_mode);
    out.add_if(reclaims, stop_action::log_reclaim);
    out.add_if(cancels && reclaims, stop_action::call_reclaim_callbacks);
    out.add_if(phase_changed, stop_action::call_on_transition);
    out.add_if(must_exit_now(now) && !must_exit_now(before), stop_action::give_up);
    out.add_if(before.report_requests != now.report_requests, stop_action::log_jobs);
    return out;
}

}  // namespace ojs::detail
