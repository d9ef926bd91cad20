#pragma once

#include <cstdint>

#include "detail/text.hpp"
#include "duration.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct duration_unit {
    std::string_view name;
    std::uint64_t milliseconds;
};

// In the order in which they may appear.
inline constexpr duration_unit duration_units[] = {{"h", 3600000}, {"m", 60000}, {"s", 1000}, {"ms", 1}};
inline constexpr std::uint64_t max_bare_seconds = 3600;  // above it, milliseconds were probably meant

// Negative: `start` is in the future.
inline long long milliseconds_since(time_point start) noexcept {
    return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - start).count();
}

// Removes one number and its unit from the front of `text`; `first_unit` moves past that unit.
inline bool take_duration_part(std::string_view& text, std::size_t& first_unit, std::uint64_t& total) {
    const std::size_t digits = text.find_first_not_of("0123456789");
    if (digits == 0 || digits == std::string_view::npos) return false;
    std::string_view unit = text.substr(digits);
    unit = unit.substr(0, unit.find_first_of("0123456789"));
    while (first_unit < std::size(duration_units) && duration_units[first_unit].name != unit) ++first_unit;
    if (first_unit == std::size(duration_units)) return false;
    const std::uint64_t ms = duration_units[first_unit++].milliseconds;
    std::uint64_t number = 0;
    if (!parse_number(text.substr(0, digits), (max_duration_ms - total) / ms, number)) return false;
    total += number * ms;
    text.remove_prefix(digits + unit.size());
    return true;
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<std::chrono::milliseconds> parse_duration(std::string_view text) {
    std::uint64_t total = 0;
    if (detail::parse_number(text, detail::max_duration_ms, total)) {
        const std::chrono::milliseconds count{total};
        if (total <= detail::max_bare_seconds) return count * 1000;
        return error{errc::invalid_argument, 0,
                     detail::cat({"'", total, "' has no unit: ", total, "s (", format_duration(count * 1000),
                                  ") or ", total, "ms (", format_duration(count), ")? write the unit"})};
    }
    std::string_view rest = text;
    std::size_t unit = 0;
    do {
        if (!detail::take_duration_part(rest, unit, total)) {
            return error{
                errc::invalid_argument, 0,
                detail::cat({"'", detail::printable(text, 40),
                             "' is not a duration (write 500ms, 30s, 1m30s, 1h, or whole seconds)"})};
        }
    } while (!rest.empty());
    return std::chrono::milliseconds(total);
}

OJS_SHUTDOWN_INLINE std::string format_duration(std::chrono::milliseconds duration) {
    if (duration == no_limit) return "unlimited";
    std::string out;
    auto left = static_cast<std::uint64_t>(duration.count() > 0 ? duration.count() : 0);
    for (const detail::duration_unit& unit : detail::duration_units) {
        if (left >= unit.milliseconds) detail::append(out, {left / unit.milliseconds, unit.name});
        left %= unit.milliseconds;
    }
    return out.empty() ? "0s" : out;
}

}  // namespace v0_1_0
}  // namespace ojs
