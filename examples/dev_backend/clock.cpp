#include "clock.hpp"

#include <array>
#include <cstdio>

namespace dev_backend {

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

timespec wall_clock() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return now;
}

std::string iso_time() {
    const timespec now = wall_clock();
    tm utc{};
    gmtime_r(&now.tv_sec, &utc);
    std::array<char, 40> text{};
    const std::size_t length = strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
    std::snprintf(text.data() + length, text.size() - length, ".%03dZ",
                  static_cast<int>(now.tv_nsec / 1000000));
    return text.data();
}

}  // namespace dev_backend
