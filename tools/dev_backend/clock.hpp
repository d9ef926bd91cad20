// clock: the time, in the form of the ledger and the responses.
#pragma once
#include <time.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace dev_backend {
inline std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// Since the epoch.
inline std::int64_t wall_ms() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

// Milliseconds since the epoch as 2026-01-31T12:00:00.000Z.
inline std::string iso_time(std::int64_t ms = wall_ms()) {
    const auto seconds = static_cast<time_t>(ms / 1000);
    tm utc{};
    gmtime_r(&seconds, &utc);
    std::array<char, 40> text{};
    strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S.", &utc);
    const std::string fraction = std::to_string(1000 + ms % 1000);  // of four digits
    return std::string(text.data()).append(fraction, 1, 3).append("Z");
}

// Parses RFC 3339 with a zone into milliseconds since the epoch; nullopt: invalid.
inline std::optional<std::int64_t> parse_iso_time(const std::string& text) {
    tm utc{};
    const char* rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
    if (rest == nullptr) return std::nullopt;
    std::int64_t ms = std::int64_t{timegm(&utc)} * 1000;
    if (*rest == '.') {
        std::int64_t scale = 100;
        for (++rest; *rest >= '0' && *rest <= '9'; ++rest, scale /= 10) ms += (*rest - '0') * scale;
    }
    char sign = '\0';
    int hours = 0;
    int minutes = 0;
    int end = 0;
    if (std::sscanf(rest, "%c%2d:%2d%n", &sign, &hours, &minutes, &end) == 3 && (sign == '+' || sign == '-')) {
        const std::int64_t east = (std::int64_t{hours} * 60 + minutes) * 60000;
        ms -= sign == '-' ? -east : east;
        rest += end;
    } else if (*rest == 'Z') {
        ++rest;
    } else {
        return std::nullopt;
    }
    if (*rest != '\0' || ms < 0) return std::nullopt;
    return ms;
}
}  // namespace dev_backend
