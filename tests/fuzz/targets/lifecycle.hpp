// lifecycle: random sequences of events, against a reference written from the table of the specification (what each
// event does in each phase) and not from the code.
#pragma once
#include "../fuzz.hpp"

namespace fuzz {

class reference {
  public:
    reference(bool first_signal_wins, bool signals_repeat)
        : first_wins_(first_signal_wins), repeats_(signals_repeat) {}

    ojs::phase phase = ojs::phase::running;
    ojs::stop_mode mode = ojs::stop_mode::graceful;
    bool cancelled = false;
    bool exits = false;
    unsigned signals = 0;

    void apply(ojs::event what) {
        switch (what) {
            case ojs::event::stop_signal: return on_signal();
            case ojs::event::stop_request:  // repeated, it changes nothing
                if (works()) phase = ojs::phase::draining;
                return;
            case ojs::event::quiet_request:
                if (phase == ojs::phase::running) phase = ojs::phase::quiet;
                return;
            case ojs::event::resume_request:  // the only way back
                if (phase == ojs::phase::quiet) phase = ojs::phase::running;
                return;
            case ojs::event::reclaim:
                if (works() || (phase == ojs::phase::draining && !is_decided())) reclaim();
                return;
            case ojs::event::cancel_request:
                if (!works() && phase != ojs::phase::draining) return;
                phase = ojs::phase::stopping;
                cancelled = true;
                return;
            case ojs::event::grace_expired:
            case ojs::event::drained:
                if (phase == ojs::phase::draining) phase = ojs::phase::stopping;
                return;
            case ojs::event::finished:
                if (phase == ojs::phase::stopping) phase = ojs::phase::terminated;
                return;
            case ojs::event::mode_reclaim:  // the mode file turns the drain in progress into a reclaim
                if (phase == ojs::phase::draining) reclaim();
                return;
            case ojs::event::report_request: return;
        }
    }

  private:
    bool works() const { return phase == ojs::phase::running || phase == ojs::phase::quiet; }
    // With first_signal_wins: a signal has decided how this stop goes.
    bool is_decided() const { return first_wins_ && (signals > 0 || mode == ojs::stop_mode::reclaim); }
    void raise(ojs::stop_mode to) { mode = std::max(mode, to); }
    void reclaim() {
        phase = ojs::phase::stopping;
        raise(ojs::stop_mode::reclaim);
    }

    void on_signal() {
        if (phase == ojs::phase::terminated || (!works() && is_decided())) return;
        if (repeats_ && signals > 0) return;  // the second half of one stop event
        const bool only_noted = first_wins_ && !works();
        signals = std::min(signals + 1, 3U);
        if (works()) {
            phase = ojs::phase::draining;
        } else if (!only_noted && phase == ojs::phase::draining) {
            phase = ojs::phase::stopping;
            raise(ojs::stop_mode::forced);
        } else if (!only_noted) {  // in stopping it cuts the wait, and the third one leaves at once
            raise(ojs::stop_mode::forced);
            exits = exits || signals >= 3;
        }
    }

    const bool first_wins_;
    const bool repeats_;
};

inline void lifecycle(input in) {
    const unsigned how = in.byte();
    const bool first_wins = how % 2 == 1;
    const bool repeat = how / 2 % 2 == 1;
    // With no gap each signal counts; with one of a day none after the first does.
    ojs::lifecycle tested(repeat ? std::chrono::milliseconds(86400000) : std::chrono::milliseconds(0));
    tested.set_first_signal_wins(first_wins);
    reference wanted(first_wins, repeat);
    std::string history;
    for (int steps = 0; !in.empty() && steps < 1000; ++steps) {
        const unsigned byte = in.byte();
        const auto what = static_cast<ojs::event>(byte % ojs::event_count);
        const ojs::cause why{static_cast<ojs::cause_kind>(byte / 16 % 5), static_cast<int>(byte)};
        const ojs::lifecycle_state before = tested.state();
        const reference wanted_before = wanted;
        wanted.apply(what);
        const bool changed = tested.apply(what, why);
        const ojs::lifecycle_state now = tested.state();
        history += std::string(ojs::to_string(what)) + " -> " + ojs::to_string(now.phase) + "\n";
        expect(now.phase == wanted.phase, "the phase is that of the table", history);
        expect(now.mode == wanted.mode, "the mode is that of the table", history);
        expect(now.cancel_requested == wanted.cancelled, "jobs are cancelled as in the table", history);
        expect(now.exit_now == wanted.exits, "the third signal leaves at once, and nothing else", history);
        expect(now.stop_signals == wanted.signals, "signals are counted", history);
        const bool differs = wanted.phase != wanted_before.phase || wanted.mode != wanted_before.mode ||
                             wanted.cancelled != wanted_before.cancelled ||
                             wanted.exits != wanted_before.exits || wanted.signals != wanted_before.signals;
        expect(changed == differs, "apply() returns whether the state changed", history);
        expect((now.sequence != before.sequence) == changed, "changes are numbered", history);
        if (!changed) continue;
        expect(now.last_event == what, "the event is noted", history);
        const ojs::cause& noted = why.kind == ojs::cause_kind::none ? before.cause : why;
        expect(now.cause.kind == noted.kind && now.cause.signal == noted.signal, "the cause is noted",
               history);
    }
}

}  // namespace fuzz
