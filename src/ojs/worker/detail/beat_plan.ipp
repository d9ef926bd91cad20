// beat_plan: when the next heartbeat is due, as a function of facts and the time.
#pragma once

#include "../../base/detail/clock.ipp"

namespace ojs::detail {

inline constexpr std::chrono::milliseconds max_request_gap{1000};  // between those that handlers ask for
// To the second heartbeat: at random, to spread those of workers that started together.
inline std::chrono::milliseconds first_gap(std::chrono::milliseconds interval) noexcept {
    return interval - random_half(interval);
}

struct beat_facts {
    std::chrono::milliseconds interval{0};
    std::chrono::milliseconds first_gap{0};       // to the second heartbeat
    time_point requested_at = time_point::min();  // the first at once
    time_point begun_at = time_point::min();      // the latest
    std::uint64_t begun = 0;                      // so many
    bool is_unanswered = false;                   // the latest
    std::size_t calls = 0;                        // that one, and queries about jobs after a heartbeat
    time_point last_due_at = never;               // set: only the last one follows those requested before
    bool last_has_begun = false;
};
enum class beat_action : std::uint8_t { wait, send, send_last };
struct beat_plan {
    beat_action action;
    time_point until = never;  // for `wait`: without a change
};

// The backend must see them in order: one at a time. The last one waits for all calls, until last_due_at.
inline beat_plan plan_beat(const beat_facts& beats, time_point now) noexcept {
    if (beats.last_has_begun) return {beat_action::wait};
    const bool finishing = beats.last_due_at != never;
    time_point due = beats.requested_at;
    if (!finishing)
        due = detail::min(due, beats.begun_at + (beats.begun == 1 ? beats.first_gap : beats.interval));
    if (beats.is_unanswered) due = never;
    if (now >= due) return {beat_action::send};
    if (finishing && (beats.calls == 0 || now >= beats.last_due_at)) return {beat_action::send_last};
    return {beat_action::wait, detail::min(due, beats.last_due_at)};
}

}  // namespace ojs::detail
