// clock: the time of day, its text form, and back-off delays. Waits use the steady clock instead.
#pragma once

#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "../duration.hpp"
#include "light.hpp"

namespace ojs::detail {
inline constexpr time_point never = time_point::max();
inline constexpr std::uint64_t max_duration_ms = 0x7fffffff;  // what poll(2) can wait: about 24 days

// For poll(2): milliseconds, rounded up.
inline int poll_timeout(time_point deadline) noexcept {
    if (deadline == never) return -1;
    const time_point now = steady_clock::now();
    if (deadline <= now) return 0;
    const auto ms = std::chrono::duration_cast<milliseconds>(deadline - now).count() + 1;
    return static_cast<int>(min<std::int64_t>(ms, max_duration_ms));
}

// Negative: `start` is in the future.
inline long long milliseconds_since(time_point start) noexcept {
    return std::chrono::duration_cast<milliseconds>(steady_clock::now() - start).count();
}

inline std::int64_t wall_clock_ms() noexcept {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<milliseconds>(now).count();
}

// ISO 8601: "2026-01-02T03:04:05.678Z".
inline std::string utc_text(std::int64_t ms_since_1970 = wall_clock_ms()) {
    const auto seconds = static_cast<time_t>(ms_since_1970 / 1000);
    tm utc{};
    gmtime_r(&seconds, &utc);
    char text[40];
    const std::size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(text + length, sizeof text - length, ".%03uZ", static_cast<unsigned>(ms_since_1970 % 1000));
    return text;
}

// The clock of leases: on Linux it continues while the machine is suspended. [WIRE 8]
inline milliseconds lease_clock() noexcept {
    timespec now{};
#ifdef __linux__
    clock_gettime(CLOCK_BOOTTIME, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return std::chrono::seconds(now.tv_sec) + milliseconds(now.tv_nsec / 1000000);
}

// Random bits of the kernel, or of clock and process id if it has none.
inline std::uint64_t random_number() noexcept {
    auto out = static_cast<std::uint64_t>(steady_clock::now().time_since_epoch().count());
    if (getentropy(&out, sizeof out) != 0) out ^= static_cast<std::uint64_t>(getpid()) << 32;
    return out;
}

// 0 to half of `delay`, at random: spreads workers that act at the same time.
inline milliseconds random_half(milliseconds delay) noexcept {
    const double share = static_cast<double>(random_number() % 512) / 1024;
    return milliseconds(static_cast<std::int64_t>(static_cast<double>(delay.count()) * share));
}

// Delays that double from `initial` to `max`, less up to half at random.
class backoff {
  public:
    backoff(milliseconds initial, milliseconds max) : initial_(initial), max_(max) {}

    // At least `min_delay` and up to half of it more: a Retry-After may name the same time to all workers.
    milliseconds next(milliseconds min_delay = {}) noexcept {
        delay_ = delay_.count() == 0 ? initial_ : min(delay_ * 2, max_);
        min_delay = min(min_delay, milliseconds(max_duration_ms));
        const milliseconds delay = delay_ - random_half(delay_);
        return delay > min_delay ? delay : min_delay + random_half(min_delay);
    }
    void reset() noexcept { delay_ = milliseconds(0); }

  private:
    const milliseconds initial_;
    const milliseconds max_;
    milliseconds delay_{0};
};
}  // namespace ojs::detail
