#pragma once

#include <cstdint>

#include "detail/clock.ipp"
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
}  // namespace detail

OJS_SHUTDOWN_INLINE result<std::chrono::milliseconds> parse_duration(std::string_view text) {
    std::uint64_t total = 0;
    if (detail::parse_number(text, detail::max_duration_ms, total)) {
        const std::chrono::milliseconds count{total};
        if (total <= 3600) return count * 1000;
        return detail::invalid(detail::cat({"'", total, "' has no unit: ", total, "s (", format_duration(count * 1000),
                                            ") or ", total, "ms (", format_duration(count), ")? write the unit"}));
    }
    std::string_view rest = text;
    for (const detail::duration_unit& each : detail::duration_units) {
        const std::size_t digits = detail::min(rest.find_first_not_of("0123456789"), rest.size());
        std::string_view unit = rest.substr(digits);
        unit = unit.substr(0, unit.find_first_of("0123456789"));
        std::uint64_t number = 0;
        const std::uint64_t max = (detail::max_duration_ms - total) / each.milliseconds;
        if (unit != each.name || !detail::parse_number(rest.substr(0, digits), max, number)) continue;
        total += number * each.milliseconds;
        rest.remove_prefix(digits + unit.size());
    }
    if (rest.empty() && !text.empty()) return std::chrono::milliseconds(total);
    return detail::invalid(detail::cat(
        {"'", detail::printable(text, 40), "' is not a duration (write 500ms, 30s, 1m30s, 1h, or whole seconds)"}));
}

OJS_SHUTDOWN_INLINE std::string format_duration(detail::any_ms duration) {
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
