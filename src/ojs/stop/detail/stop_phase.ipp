// stop_phase: the phase of a loop or a worker, the stages of its stop, and their times.
#pragma once

#include <signal.h>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../core/cancel_token.hpp"
#include "../../core/lifecycle.hpp"
#include "environment.ipp"

namespace ojs::detail {
// A stage ends when it is over, or at its deadline.
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

// The last part of stop_timeout.
constexpr milliseconds last_beat_time(const stop_times& times) noexcept {
    return min(times.stop_timeout / 5, milliseconds(500));
}
// The part of the time left that reports get.
inline steady_clock::duration report_time(steady_clock::duration left) noexcept {
    return min<steady_clock::duration>(left / 2, std::chrono::seconds(3));
}
// When cancelled handlers are no longer waited for.
inline time_point cancelling_ends(time_point now, cancel_reason reason, const stop_times& times,
                                  time_point report_deadline) noexcept {
    milliseconds wait = reason == cancel_reason::spot_reclaim ? times.reclaim_grace : times.cancel_grace;
    if (reason == cancel_reason::cancelled && wait.count() == 0) wait = milliseconds(1000);  // [WIRE 2]
    return min(now + wait, report_deadline - report_time(report_deadline - now));
}

inline constexpr milliseconds return_time{100};     // for handlers whose jobs are reported
inline constexpr milliseconds join_time{500};       // even if the stop is late
inline constexpr milliseconds callback_time{3000};  // for the last of the user's: a third stop signal may end them

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

// The phase: of its own lifecycle, and of a shared one that it may follow. Thread-safe.
class stop_phase {
  public:
    stop_phase(const loop_options& options, lifecycle* followed)
        : own(followed == nullptr ? options.signal_debounce : milliseconds(0)),
          shared(followed == nullptr ? idle_ : *followed),
          options_(options) {
        lifecycle_access::set_first_signal_wins(own, followed == nullptr && options.profile.stop.first_signal_wins);
    }

    // False from the moment of a stop or quiet, even before the machine has noticed it.
    bool may_take() const noexcept { return own.phase() == phase::running && shared.phase() == phase::running; }
    // The later of the two; the shared one leads no further than to the drain, and a handler may outlive it.
    ojs::phase now() const noexcept {
        const ojs::phase self = own.phase();
        return self >= phase::draining ? self : max(self, min(shared.phase(), phase::draining));
    }
    bool has_stop_begun() const noexcept { return now() >= phase::draining; }
    lifecycle& signalled() noexcept { return &shared == &idle_ ? own : shared; }

    // time_point::max(): no drain. Known even before the machine has noticed the drain.
    time_point drain_deadline() const noexcept {
        const time_point known = drain_deadline_.load(memory_order::acquire);
        if (known != never || !has_stop_begun()) return known;
        const lifecycle& began = own.phase() >= phase::draining ? own : shared;
        return begin_drain(changed_at(began.state()));
    }
    // The first call sets when the drain ends; each returns that.
    time_point begin_drain(time_point begun_at) const noexcept {
        time_point known = never;
        const milliseconds grace = options_.times.shutdown_grace_period;
        const time_point ends = grace == no_limit ? known : begun_at + grace;
        return drain_deadline_.compare_exchange_strong(known, ends) ? ends : known;
    }

    // Applies the shared state, not its events: one SIGTERM must not count as a second one.
    void follow(const lifecycle_state& before, const lifecycle_state& now) noexcept {
        const auto apply_if = [&](bool condition, event asked) {
            if (condition) own.apply(asked, now.cause);
        };
        apply_if(now.phase == phase::quiet, event::quiet_request);
        apply_if(now.phase == phase::running && before.phase == phase::quiet, event::resume_request);
        // Before the drain reads the termination-mode file: SIGUSR1 is always a reclaim.
        const bool was_signalled = before.stop_signals > 0 || before.mode == stop_mode::reclaim;
        const bool first_wins = options_.profile.stop.first_signal_wins;
        apply_if(now.mode == stop_mode::reclaim && !(first_wins && was_signalled), event::reclaim);
        apply_if(now.phase >= phase::draining, event::stop_request);
        apply_if(now.cancel_requested, event::cancel_request);
        const bool forced = now.last_event == event::stop_signal && now.mode == stop_mode::forced;
        apply_if(forced && !first_wins, event::stop_signal);
    }
    // A shared resume also ends a quiet of its own. It is counted before its change, which follow() applies.
    void follow_resume() noexcept {
        if (shared.phase() != phase::running) return;
        const int number = lifecycle_access::resume_signal(shared);
        own.apply(event::resume_request, {number != 0 ? cause_kind::signal : cause_kind::api, number});
    }

    // Only SIGCONT resumes what follows a quiet lifecycle.
    bool apply(event asked, cause_kind kind = cause_kind::api) noexcept {
        const bool stays_quiet = asked == event::resume_request && shared.phase() == phase::quiet;
        return !stays_quiet && own.apply(asked, {kind, 0});
    }

    lifecycle own;
    lifecycle& shared;  // the one that it follows; without one, `idle_`

  private:
    lifecycle idle_;  // never changes
    const loop_options& options_;
    mutable atomic<time_point> drain_deadline_{never};
};
}  // namespace ojs::detail
