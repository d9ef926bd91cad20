#pragma once

#include <time.h>

#include "../base/detail/sync.hpp"
#include "detail/wake.hpp"
#include "lifecycle.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// Modulo 2^32. Async-signal-safe by POSIX, unlike std::chrono.
OJS_SHUTDOWN_INLINE std::uint32_t steady_ms() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(now.tv_sec) * 1000U +
                                      static_cast<std::uint64_t>(now.tv_nsec) / 1000000U);
}

// From the lowest bits of the word.
template <class State, class Visit>
void visit_members(State& state, Visit visit) noexcept {
    visit(state.phase, 3);
    visit(state.mode, 2);
    visit(state.cause.kind, 3);
    visit(state.cancel_requested, 1);
    visit(state.stop_signals, 2);
    visit(state.cause.signal, 8);
    visit(state.last_event, 4);
    visit(state.sequence, 8);
    visit(state.changed_ms, 32);
}

inline std::uint64_t pack(const lifecycle_state& state) noexcept {
    std::uint64_t out = 0;
    int shift = 0;
    visit_members(state, [&](auto member, int bits) {
        out |= (static_cast<std::uint64_t>(member) & ((std::uint64_t{1} << bits) - 1)) << shift;
        shift += bits;
    });
    return out;
}

inline lifecycle_state unpack(std::uint64_t left) noexcept {
    lifecycle_state out;
    visit_members(out, [&](auto& member, int bits) {
        member = static_cast<std::decay_t<decltype(member)>>(left & ((std::uint64_t{1} << bits) - 1));
        left >>= bits;
    });
    return out;
}
}  // namespace detail

OJS_SHUTDOWN_INLINE void lifecycle::set_signal_debounce(detail::any_ms gap) noexcept {
    const std::int64_t ms = gap.count() < 0 ? 0 : detail::min<std::int64_t>(gap.count(), 0xffffffff);
    repeat_gap_ms_ = static_cast<std::uint32_t>(ms);
}

OJS_SHUTDOWN_INLINE lifecycle_state lifecycle::state() const noexcept { return detail::unpack(word_.load()); }

// Applies table, debounce and first_signal_wins to `state`. False: no change.
OJS_SHUTDOWN_INLINE bool lifecycle::next_state(lifecycle_state& state, ojs::event event,
                                               ojs::cause cause) const noexcept {
    const std::uint32_t now_ms = detail::steady_ms();
    const bool is_late = (event == ojs::event::stop_signal || event == ojs::event::reclaim) &&
                         state.phase >= phase::draining && first_signal_wins_;
    if (is_late && (state.stop_signals > 0 || state.mode == stop_mode::reclaim)) return false;
    const bool is_recorded_only = is_late && event == ojs::event::stop_signal;
    const detail::transition& cell = is_recorded_only
                                         ? detail::cells::none
                                         : detail::cells::table[static_cast<int>(event)][static_cast<int>(state.phase)];
    lifecycle_state next = state;
    if (event == ojs::event::stop_signal) {  // in terminated, too: the third one ends a process that hangs there
        const bool is_last = state.last_event == ojs::event::stop_signal;
        const std::uint32_t since_ms = now_ms - (is_last ? state.changed_ms : last_stop_signal_ms_.load());
        if (state.stop_signals > 0 && since_ms < repeat_gap_ms_) return false;
        if (next.stop_signals < 3) ++next.stop_signals;
    }
    if (cell.moves) next.phase = cell.next;
    if (cell.mode > next.mode) next.mode = cell.mode;
    if (event == ojs::event::cancel_request && cell.moves) next.cancel_requested = true;
    const bool changed = detail::pack(next) != detail::pack(state);
    // An internal event keeps the cause: the log still names the signal that ended the worker.
    if (cause.kind != cause_kind::none) next.cause = cause;
    // A follower gets the signal as a request.
    const bool is_signal = event == ojs::event::stop_request && cause.kind == cause_kind::signal;
    next.last_event = is_signal ? ojs::event::stop_signal : event;
    next.sequence = static_cast<std::uint8_t>(state.sequence + 1);
    next.changed_ms = now_ms;
    state = next;
    return changed;
}

OJS_SHUTDOWN_INLINE bool lifecycle::apply(ojs::event event, ojs::cause cause) noexcept {
    const bool counted = event == ojs::event::resume_request || event == ojs::event::report_request;
    if (event == ojs::event::resume_request) resume_signal_.store(cause.signal);
    requests_[static_cast<int>(event)].fetch_add(1);
    word current = word_.load();
    lifecycle_state next;
    bool changed = false;
    do {
        next = detail::unpack(current);
        changed = next_state(next, event, cause);
    } while (changed && !word_.compare_exchange_strong(current, detail::pack(next)));
    if (changed && event == ojs::event::stop_signal) last_stop_signal_ms_.store(next.changed_ms);
    if (changed || counted) notify_subscribers();
    return changed;
}

// It increments `notifiers_`, then reads a slot; unsubscribe() clears the slot, then reads `notifiers_`.
OJS_SHUTDOWN_INLINE void lifecycle::notify_subscribers() noexcept {
    notifiers_.fetch_add(1);
    for (const detail::atomic<int>& slot : subscribers_) {
        const int fd = slot.load() - 1;
        if (fd >= 0) detail::wake::notify(fd);  // keeps errno
    }
    notifiers_.fetch_sub(1);
}

OJS_SHUTDOWN_INLINE bool lifecycle::subscribe(int notify_fd) noexcept {
    for (detail::atomic<int>& slot : subscribers_) {
        int expected = 0;
        if (slot.compare_exchange_strong(expected, notify_fd + 1)) return true;
    }
    return false;
}

OJS_SHUTDOWN_INLINE void lifecycle::unsubscribe(int notify_fd) noexcept {
    for (detail::atomic<int>& slot : subscribers_) {
        int expected = notify_fd + 1;
        if (notify_fd >= 0 && slot.compare_exchange_strong(expected, 0)) break;
    }
    // They may still hold the descriptor.
    while (notifiers_.load() > 0) detail::pause_for(std::chrono::milliseconds(1));
}

namespace detail {
OJS_SHUTDOWN_INLINE bool take_change(const lifecycle& from, lifecycle_state& seen) noexcept {
    const lifecycle_state before = seen;
    seen = from.state();
    return pack(seen) != pack(before);
}

OJS_SHUTDOWN_INLINE time_point changed_at(const lifecycle_state& state) noexcept {
    const auto age_ms = static_cast<std::int32_t>(steady_ms() - state.changed_ms);
    return steady_clock::now() - milliseconds(age_ms);
}
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
