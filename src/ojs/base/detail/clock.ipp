// clock: the time of day, and how it is written. What waits uses the steady clock; see duration.hpp.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <string>

namespace ojs::detail {

// Since 1970.
inline std::int64_t wall_clock_ms() noexcept {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000;
}

// ISO 8601: "2026-01-02T03:04:05.678Z".
inline std::string utc_text(std::int64_t ms_since_1970) {
    const auto seconds = static_cast<time_t>(ms_since_1970 / 1000);
    tm utc{};
    gmtime_r(&seconds, &utc);
    char text[40];
    const std::size_t length = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(text + length, sizeof text - length, ".%03uZ", static_cast<unsigned>(ms_since_1970 % 1000));
    return text;
}
inline std::string utc_timestamp() {
    return utc_text(wall_clock_ms());
}

}  // namespace ojs::detail
