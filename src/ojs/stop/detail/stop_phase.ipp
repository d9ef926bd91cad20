// stop_phase: the phase of a loop or a worker: its own lifecycle, and a shared one that it may follow.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../core/lifecycle.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {

// Thread-safe.
class stop_phase {
  public:
    stop_phase(const loop_options& options, lifecycle* followed)
        : own(followed == nullptr ? options.signal_debounce : std::chrono::milliseconds(0)),
          shared(followed == nullptr ? idle_ : *followed),
          options_(options) {
        lifecycle_access::set_first_signal_wins(own, followed == nullptr && options.dialect.first_signal_wins);
    }

    // False from the moment of a stop or quiet, even before the machine has noticed it.
    bool may_take() const noexcept { return own.phase() == phase::running && shared.phase() == phase::running; }
    // The later of the two phases. The shared lifecycle takes it as far as the drain.
    ojs::phase now() const noexcept {
        const ojs::phase self = own.phase();
        if (self >= phase::draining) return self;
        const ojs::phase other = shared.phase();
        return other >= phase::draining ? phase::draining : self < other ? other : self;
    }
    bool has_stop_begun() const noexcept { return now() >= phase::draining; }
    // The lifecycle that signals change.
    lifecycle& signalled() noexcept { return &shared == &idle_ ? own : shared; }
    // Notifies the descriptor of each change. False: too many follow the shared lifecycle.
    bool subscribe(int fd) noexcept { return own.subscribe(fd) && shared.subscribe(fd); }
    void unsubscribe(int fd) noexcept {
        own.unsubscribe(fd);
        shared.unsubscribe(fd);
    }

    // time_point::max(): no drain. Set as soon as the drain begins, even before the machine has noticed it.
    time_point drain_deadline() const noexcept {
        const time_point known = drain_deadline_.load(memory_order::acquire);
        if (known != never || !has_stop_begun()) return known;
        const lifecycle& began = own.phase() >= phase::draining ? own : shared;
        return begin_drain(changed_at(began.state()));
    }
    // The first call sets when the drain ends; each returns that.
    time_point begin_drain(time_point begun_at) const noexcept {
        time_point known = never;
        const std::chrono::milliseconds grace = options_.times.shutdown_grace_period;
        const time_point ends = grace == no_limit ? known : begun_at + grace;
        return drain_deadline_.compare_exchange_strong(known, ends) ? ends : known;
    }

    // Applies the shared lifecycle's state to the own one, not its events: one SIGTERM must not count as a second one.
    void follow(const lifecycle_state& before, const lifecycle_state& now) noexcept {
        const auto apply_if = [&](bool condition, event asked) {
            if (condition) own.apply(asked, now.cause);
        };
        apply_if(now.phase == phase::quiet, event::quiet_request);
        apply_if(now.phase == phase::running && before.phase == phase::quiet, event::resume_request);
        // Before the drain, which reads the termination-mode file: SIGUSR1 is a reclaim whatever it says.
        const bool was_signalled = before.stop_signals > 0 || before.mode == stop_mode::reclaim;
        const bool first_wins = options_.dialect.first_signal_wins;
        apply_if(now.mode == stop_mode::reclaim && !(first_wins && was_signalled), event::reclaim);
        apply_if(now.phase >= phase::draining, event::stop_request);
        apply_if(now.cancel_requested, event::cancel_request);
        const bool forced = now.last_event == event::stop_signal && now.mode == stop_mode::forced;
        apply_if(forced && !first_wins, event::stop_signal);
    }
    // SIGCONT also resumes what alone is quiet. A resume is counted before its change is made: where that is not noticed
    // yet, follow() applies it.
    void resume() noexcept {
        if (shared.phase() != phase::running) return;
        const int number = lifecycle_access::resume_signal(shared);
        own.apply(event::resume_request, {number != 0 ? cause_kind::signal : cause_kind::api, number});
    }

    lifecycle own;
    lifecycle& shared;  // the one that it follows; without one, `idle_`

  private:
    lifecycle idle_;  // never changes
    const loop_options& options_;
    mutable atomic<time_point> drain_deadline_{never};
};

}  // namespace ojs::detail
