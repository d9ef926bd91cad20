// finding: what a check found wrong or worth knowing, and what to do about it.
#pragma once

#include <string>

namespace ojs {
inline namespace v0_1_0 {

enum class severity { info, warning, error };

// "info", "warning", "error". Never null. Thread-safe.
constexpr const char* to_string(severity level) noexcept {
    return level == severity::error ? "error" : level == severity::warning ? "warning" : "info";
}

struct finding {
    ojs::severity severity = ojs::severity::info;
    std::string id;    // short and stable: "budget-exceeded"
    std::string what;  // one line for a person
    std::string fix;   // one line; empty where nothing is to be done
};

}  // namespace v0_1_0
}  // namespace ojs
