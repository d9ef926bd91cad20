// finding: what a check of the doctor found.
#pragma once

#include <string>

namespace ojs {
inline namespace v0_1_0 {
/// How bad a finding is.
enum class severity { info, warning, error };

/// "info", "warning", "error". Never null. Thread-safe.
constexpr const char* to_string(severity level) noexcept {
    return level == severity::error ? "error" : level == severity::warning ? "warning" : "info";
}

/// What a check found, and what to do about it.
struct finding {
    ojs::severity severity = ojs::severity::info;  ///< how serious it is
    std::string id;                                ///< short and stable: "budget-exceeded"
    std::string problem;                           ///< one line for a person
    std::string fix;                               ///< one line; empty: nothing to do
};
}  // namespace v0_1_0
}  // namespace ojs
