// finding: what a check found wrong or worth knowing, and what to do about it.
#pragma once

#include <string>
#include <vector>

namespace ojs {
inline namespace v0_1_0 {

enum class severity { info, warning, error };

// "info", "warning", "error". Never null. Thread-safe.
const char* to_string(severity level) noexcept;

struct finding {
    ojs::severity severity = ojs::severity::info;
    std::string id;    // short and stable: "budget-exceeded"
    std::string what;  // one line for a person
    std::string fix;   // one line; empty where nothing is to be done
};

// The worst of them; info for none. Thread-safe.
severity worst(const std::vector<finding>& findings) noexcept;

// Two lines a finding (what, fix) and one that counts them, each with its newline. Thread-safe.
std::string format_findings(const std::vector<finding>& findings);

}  // namespace v0_1_0
}  // namespace ojs
