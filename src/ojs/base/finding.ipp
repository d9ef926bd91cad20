#pragma once

#include "detail/text.hpp"
#include "finding.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(severity level) noexcept {
    static const char* const names[] = {"info", "warning", "error"};
    return names[static_cast<std::size_t>(level)];
}

OJS_SHUTDOWN_INLINE severity worst(const std::vector<finding>& findings) noexcept {
    severity out = severity::info;
    for (const finding& each : findings) {
        if (each.severity > out) out = each.severity;
    }
    return out;
}

OJS_SHUTDOWN_INLINE std::string format_findings(const std::vector<finding>& findings) {
    std::string out;
    int counts[3] = {};
    for (const finding& each : findings) {
        ++counts[static_cast<std::size_t>(each.severity)];
        std::string level = to_string(each.severity);
        level.resize(9, ' ');
        detail::append(out, {level, each.id, ": ", each.what, "\n"});
        if (!each.fix.empty()) detail::append(out, {"         fix: ", each.fix, "\n"});
    }
    detail::append(out, {counts[2], counts[2] == 1 ? " error, " : " errors, ", counts[1],
                         counts[1] == 1 ? " warning\n" : " warnings\n"});
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
