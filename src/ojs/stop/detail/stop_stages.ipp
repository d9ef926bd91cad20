// stop_stages: the stages of a stop, and its times, as pure functions.
#pragma once

#include <csignal>

#include "../../base/detail/clock.ipp"
#include "../../core/cancel_token.hpp"
#include "../../core/lifecycle.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {

// In their order. A stage ends when it is over, or at its deadline.
enum class stage : std::uint8_t {
    ready,
    working,
    draining,    // until nothing is in flight, or the grace period ends
    cancelling,  // cancelled handlers may return
    reporting,   // what is left is reported as interrupted
    parting,     // the last heartbeat; the last renewal
    returning,   // handlers of reported jobs may return
    closing,     // the steps of on_shutdown()
    ending,      // the threads end
    over
};

// Of stop_timeout, the end is for the last heartbeat, what comes before for reports.
constexpr std::chrono::milliseconds last_beat_time(const stop_times& times) noexcept {
    return detail::min(times.stop_timeout / 5, std::chrono::milliseconds(500));
}

// Of what is left then, half, at most 3 s, is for reports of what was cancelled.
inline steady_clock::duration report_time(steady_clock::duration left) noexcept {
    return detail::min<steady_clock::duration>(left / 2, std::chrono::seconds(3));
}
// When cancelled handlers are no longer waited for.
inline time_point cancelling_ends(time_point now, cancel_reason reason, const stop_times& times,
                                  time_point report_deadline) noexcept {
    constexpr std::chrono::milliseconds hard_cancel_wait{1000};  // of stop_and_cancel() [WIRE 2]
    std::chrono::milliseconds wait = reason == cancel_reason::spot_reclaim ? times.reclaim_wait : times.cancel_wait;
    if (reason == cancel_reason::cancelled && wait.count() == 0) wait = hard_cancel_wait;
    return detail::min(now + wait, report_deadline - report_time(report_deadline - now));
}

inline constexpr std::chrono::milliseconds return_time{100};  // for handlers whose jobs are reported
inline constexpr std::chrono::milliseconds join_time{500};    // even if the stop is late

// Why a stop cancels what is in flight.
constexpr cancel_reason stop_reason(const lifecycle_state& state) noexcept {
    if (state.mode == stop_mode::reclaim) return cancel_reason::spot_reclaim;
    if (state.mode == stop_mode::forced) return cancel_reason::forced;
    return state.cancel_requested ? cancel_reason::cancelled : cancel_reason::grace_period_expired;
}

// What began the drain: a signal, if either lifecycle received one.
constexpr cause drain_cause(const lifecycle_state& own, const lifecycle_state& shared) noexcept {
    const bool is_shared = own.cause.kind != cause_kind::signal && shared.phase >= phase::draining;
    return is_shared ? shared.cause : own.cause;
}
// The termination-mode file decides about a stop by signal, which may come late in a drain.
constexpr bool needs_mode_file(const lifecycle_state& own, const lifecycle_state& shared) noexcept {
    const cause why = drain_cause(own, shared);
    return own.phase == phase::draining && why.kind == cause_kind::signal && why.signal != SIGUSR1;
}

}  // namespace ojs::detail
