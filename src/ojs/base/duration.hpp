// Durations as people write them in the environment: 500ms, 1m30s, 1h.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "error.hpp"

namespace ojs {
inline namespace v0_1_0 {

// The one clock of the library: steady, so that setting the time of day moves no deadline.
using steady_clock = std::chrono::steady_clock;
using time_point = steady_clock::time_point;

// As a grace period or a limit: it never ends by itself.
inline constexpr std::chrono::milliseconds no_limit = std::chrono::milliseconds::max();

namespace detail {
inline constexpr std::uint64_t max_duration_ms = 0x7fffffff;  // what poll(2) can wait: about 24 days

long long milliseconds_since(time_point start) noexcept;  // less than 0: it is still to come
}  // namespace detail

// The moment `duration` from now; time_point::max(), "never", where that is beyond the clock's range.
template <class Rep, class Period>
time_point deadline_after(std::chrono::duration<Rep, Period> duration) noexcept {
    const time_point now = steady_clock::now();
    // Compared in seconds, as the finer units may not be able to hold the max_left durations.
    const auto max_left = std::chrono::duration_cast<std::chrono::seconds>(time_point::max() - now);
    if (duration >= max_left) return time_point::max();
    return duration <= duration.zero() ? now : now + duration;
}

// Parses a non-negative duration: a sequence of number+unit, each unit (h, m, s, ms) at most once and in that
// order, or a plain integer up to 3600, which means seconds. Anything else (empty, a sign, a blank, "1e9s", more than
// 24 days) is errc::invalid_argument; for a larger plain integer the text names both readings. Thread-safe. [GS 6.1]
result<std::chrono::milliseconds> parse_duration(std::string_view text);

// The shortest form parse_duration reads back: "1m30s", "250ms", "0s"; "unlimited" for no_limit, which it does not
// read.
std::string format_duration(std::chrono::milliseconds duration);

}  // namespace v0_1_0
}  // namespace ojs
