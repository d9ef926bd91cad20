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

// In the order of their execution.
enum class stop_action : std::uint8_t {
    apply_shared_lifecycle,  // apply the shared lifecycle's changes
    resume,                  // by SIGCONT, where only this worker is quiet
    send_heartbeat,          // announces running or quiet at once
    stop_fetching,           // begin the drain
    divide_stop_timeout,     // begin the stop
    notify_extensions,
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

// Whether a change asks for the action. One change of a lifecycle at a time, so that listeners are notified of each.
constexpr bool is_due(stop_action action, const stop_facts& before, const stop_facts& now) noexcept {
    const ojs::phase was = before.own.phase;
    const ojs::phase is = now.own.phase;
    const bool phase_changed = was != is;
    const bool shared_changed = has_changed(before.shared, now.shared);
    const bool cancels = cancels_jobs(now) && !cancels_jobs(before) && !now.idle;
    const bool reclaims = phase_changed && is == phase::stopping && now.own.mode == stop_mode::reclaim;
    switch (action) {
        case stop_action::apply_shared_lifecycle: return shared_changed;
        case stop_action::resume:
            return before.resume_requests != now.resume_requests && now.shared.phase == phase::running;
        case stop_action::send_heartbeat:
            return phase_changed && (was == phase::running || is == phase::running);
        case stop_action::stop_fetching: return was < phase::draining && is >= phase::draining;
        case stop_action::divide_stop_timeout: return was < phase::stopping && is >= phase::stopping;
        case stop_action::notify_extensions:
        case stop_action::call_on_transition: return phase_changed;
        case stop_action::begin_fetching: return now.registration_tried && !before.registration_tried;
        case stop_action::wake_pool:
            return phase_changed || shared_changed || before.queues_version != now.queues_version;
        case stop_action::cancel: return cancels;
        case stop_action::call_cancel_callbacks: return cancels && !reclaims;
        case stop_action::log_change: return has_changed(before.own, now.own);
        case stop_action::decide_mode: return needs_mode_file(now) && !needs_mode_file(before);
        case stop_action::log_reclaim: return reclaims;
        case stop_action::call_reclaim_callbacks: return cancels && reclaims;
        case stop_action::give_up: return must_exit_now(now) && !must_exit_now(before);
        case stop_action::log_jobs: return before.report_requests != now.report_requests;
    }
    return false;
}

}  // namespace ojs::detail
