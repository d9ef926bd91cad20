// Durations as written in environment variables: 500ms, 1m30s, 1h.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "error.hpp"

namespace ojs {
inline namespace v0_1_0 {

// The clock of the whole library: setting the time of day moves no deadline.
using steady_clock = std::chrono::steady_clock;
using time_point = steady_clock::time_point;  // a moment of that clock; time_point::max(): never

// No limit: a grace period or timeout of this value never ends.
inline constexpr std::chrono::milliseconds no_limit = std::chrono::milliseconds::max();

namespace detail {
inline constexpr std::uint64_t max_duration_ms = 0x7fffffff;  // what poll(2) can wait: about 24 days
}  // namespace detail

// Now plus `duration`; time_point::max() ("never") where that exceeds the clock's range. Thread-safe.
template <class Rep, class Period>
time_point deadline_after(std::chrono::duration<Rep, Period> duration) noexcept {
    const time_point now = steady_clock::now();
    // Compared in seconds: a finer unit may not hold the longest durations.
    const auto max_left = std::chrono::duration_cast<std::chrono::seconds>(time_point::max() - now);
    if (duration >= max_left) return time_point::max();
    return duration <= duration.zero() ? now : now + duration;
}

// Parses a non-negative duration: number+unit pairs, each unit (h, m, s, ms) at most once and in that order, or a plain
// integer of seconds up to 3600. Anything else (empty, a sign, a blank, "1e9s", more than 24 days) is
// errc::invalid_argument; for a larger plain integer the text names both readings. Thread-safe. [GS 6.1]
result<std::chrono::milliseconds> parse_duration(std::string_view text);

// The shortest form that parse_duration() accepts: "1m30s", "250ms", "0s". no_limit is "unlimited", which it rejects.
// Thread-safe.
std::string format_duration(std::chrono::milliseconds duration);

}  // namespace v0_1_0
}  // namespace ojs
