#include "clock.hpp"

#include <time.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <string_view>
#include <utility>

namespace dev_backend {

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

std::int64_t wall_ms() {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1000000;
}

std::string iso_time(std::int64_t ms) {
    thread_local std::time_t known = -1;  // most calls are for the same second
    thread_local std::array<char, 40> text{};
    const auto seconds = static_cast<std::time_t>(ms / 1000);
    if (std::exchange(known, seconds) != seconds) {
        tm utc{};
        gmtime_r(&seconds, &utc);
        strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%S", &utc);
    }
    const std::string fraction = std::to_string(1000 + ms % 1000);  // of four digits
    return std::string(text.data()).append(".").append(fraction, 1, 3).append("Z");
}

namespace {

// Days since the epoch in the proleptic Gregorian calendar.
std::int64_t days_from(int year, int month, int day) {
    const int shifted = month > 2 ? year : year - 1;  // years that begin in March end with the leap day
    const int of_era = shifted % 400;
    const int of_year = (153 * (month > 2 ? month - 3 : month + 9) + 2) / 5 + day - 1;
    return std::int64_t{shifted / 400} * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

bool is_date(int year, int month, int day) {
    constexpr std::array<int, 12> lengths = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (year < 1970 || month < 1 || month > 12 || day < 1) return false;
    const bool leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    return day <= lengths[static_cast<std::size_t>(month - 1)] + (leap && month == 2 ? 1 : 0);
}

// Whether `text` begins like `shape`, where 0 is any digit.
bool begins_like(std::string_view text, std::string_view shape) {
    if (text.size() < shape.size()) return false;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        const bool is_digit = text[i] >= '0' && text[i] <= '9';
        if (shape[i] == '0' ? !is_digit : text[i] != shape[i]) return false;
    }
    return true;
}

int number_at(const std::string& text, std::size_t at, std::size_t length) {
    return std::stoi(text.substr(at, length));
}

// "Z" or "+02:00" as milliseconds east of Greenwich.
std::optional<std::int64_t> parse_zone(const std::string& text) {
    if (text == "Z" || text == "z") return 0;
    if (text.size() != 6 || (!begins_like(text, "+00:00") && !begins_like(text, "-00:00")))
        return std::nullopt;
    const int hours = number_at(text, 1, 2);
    const int minutes = number_at(text, 4, 2);
    if (hours > 23 || minutes > 59) return std::nullopt;
    const std::int64_t ms = (std::int64_t{hours} * 60 + minutes) * 60000;
    return text.front() == '-' ? -ms : ms;
}

}  // namespace

std::optional<std::int64_t> parse_iso_time(const std::string& text) {
    constexpr std::string_view shape = "0000-00-00T00:00:00";
    if (!begins_like(text, shape)) return std::nullopt;
    const int year = number_at(text, 0, 4);
    const int month = number_at(text, 5, 2);
    const int day = number_at(text, 8, 2);
    const int hour = number_at(text, 11, 2);
    const int minute = number_at(text, 14, 2);
    const int second = number_at(text, 17, 2);
    if (!is_date(year, month, day) || hour > 23 || minute > 59 || second > 60) return std::nullopt;
    std::int64_t ms = (days_from(year, month, day) * 86400 + hour * 3600 + minute * 60 + second) * 1000;
    std::size_t end = shape.size();
    if (text[end] == '.') {
        const std::size_t digits = end + 1;
        end = std::min(text.find_first_not_of("0123456789", digits), text.size());
        if (end == digits) return std::nullopt;
        ms += number_at((text.substr(digits, end - digits) + "00"), 0, 3);
    }
    const std::optional<std::int64_t> east = parse_zone(text.substr(end));
    constexpr std::int64_t year_10000 = 253402300800000;  // iso_time() cannot write it
    if (!east || ms - *east < 0 || ms - *east >= year_10000) return std::nullopt;
    return ms - *east;
}

}  // namespace dev_backend
