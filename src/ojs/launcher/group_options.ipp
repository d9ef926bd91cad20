#pragma once

#include "../base/detail/text.hpp"
#include "group_options.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(restart_policy policy) noexcept {
    constexpr const char* names[] = {"never", "on_failure", "always"};
    return names[static_cast<std::size_t>(policy)];
}

namespace detail {

// Fit for an id and for a file's name.
inline bool is_plain_name(std::string_view text) noexcept {
    if (text.empty() || text.size() > 48 || text.front() == '.') return false;
    for (const char c : text) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           c == '.' || c == '_' || c == '-';
        if (!plain) return false;
    }
    return true;
}

// The first thing that is wrong with it; empty if nothing is.
inline std::string fault_in_group(const group_options& group) {
    constexpr std::chrono::milliseconds zero{0};
    const shutdown_timeouts& times = group.process.shutdown;
    const restart_options& restart = group.restart;
    if (!is_plain_name(group.name)) return "name: not 1 to 48 letters, digits, '.', '_' or '-'";
    if (!group.id_prefix.empty() && !is_plain_name(group.id_prefix)) return "id_prefix: as for a name";
    if (group.process.child.command.empty()) return "command: is empty";
    if (group.desired < 0) return "desired_instances: is negative";
    if (group.min_healthy < 0) return "min_healthy_instances: is negative";
    if (group.min_healthy > group.desired)
        return cat(
            {"min_healthy_instances (", group.min_healthy, ") > desired_instances (", group.desired, ")"});
    if (group.max_surge < 0) return "max_surge: is negative";
    if (group.health_check_timeout <= zero) return "health_check_timeout: is not above 0";
    if (times.grace_period <= zero) return "shutdown.grace_period: is not above 0";
    if (times.max_duration < times.grace_period)
        return cat({"shutdown.max_duration (", format_duration(times.max_duration),
                    ") < shutdown.grace_period (", format_duration(times.grace_period), ")"});
    if (restart.first < zero || restart.last < restart.first) return "restart: last pause < first pause";
    if (restart.limit < 0) return "restart.limit: is negative";
    return "";
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<void> check_group(const group_options& group) {
    const std::string fault = detail::fault_in_group(group);
    if (fault.empty()) return {};
    return error{errc::invalid_argument, 0,
                 detail::cat({"group \"", detail::printable(group.name, 48), "\": ", fault})};
}

}  // namespace v0_1_0
}  // namespace ojs
