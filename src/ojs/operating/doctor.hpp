// doctor: finds what would prevent a clean stop, before the stop.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../host/container.hpp"
#include "../worker/worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {

// Checks everything a stop depends on: the options (validate() and the budgets of a stop), unknown variables OJS_*, the
// container and its PID 1, blocked or ignored signals, the termination-mode file, the backend (GET /ojs/v1/health), the
// health address, limits. Ids of findings are stable; tokens are never shown.
//
// Call it before signals are installed and threads started, so that it sees what was inherited. It listens on the
// health address for a moment, and sends that one request. Returns within the timeout. [GS 4.3, 6.3]
std::vector<finding> doctor(const worker_options& options,
                            std::chrono::milliseconds timeout = std::chrono::milliseconds(2000),
                            const detail::container_probe& container = {});

// The highest severity of the findings; info if there are none. Thread-safe.
severity max_severity(const std::vector<finding>& findings) noexcept;

// Two lines per finding (problem, fix) and one with the counts, each with its newline. Thread-safe.
std::string format_findings(const std::vector<finding>& findings);

}  // namespace v0_1_0
}  // namespace ojs
