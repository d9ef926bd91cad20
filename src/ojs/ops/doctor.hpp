// doctor: finds what would prevent a clean stop, before the stop.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "../host/container.hpp"
#include "../worker/worker_options.hpp"
#include "finding.hpp"
#include "ops.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// Checks that container_grace_period covers the grace period, the preStop delay, reporting and exiting (5 s, or
// stop_timeout if that is longer) and `steps_timeout` (those of worker::on_shutdown()). Fixes recommend 10 s for
// reporting, as the specification does. [GS 6.2, 6.3] Findings:
// "budget-exceeded" (error): SIGKILL comes before the drain ends; "budget-tight" (warning): it comes after that;
// "budget-unknown" (warning): it is unset, and the platform's default is too short; "budget-PLATFORM" (info, such
// as "budget-kubernetes"): that default is enough; "grace-below-heartbeat" (warning): the drain may end before a
// heartbeat is due; "cancel-grace-cut" (warning): stop_timeout is too short for cancel_grace or reclaim_grace.
std::vector<finding> check_budget(const worker_options& options, std::chrono::milliseconds steps_timeout = {},
                                  const container_info& info = {});
}  // namespace detail

/// Checks everything a stop depends on: the options (validate() and the budgets of a stop), unknown variables OJS_*,
/// the container and its PID 1, blocked or ignored signals, the termination-mode file, the backend (GET
/// /ojs/v1/health), the health address of `ops`, limits. Ids of findings are stable; tokens are never shown.
///
/// Call it before signals are installed and threads started, so that it sees what was inherited. It listens on the
/// health address for a moment, and sends that one request. Returns within the timeout. [GS 4.3, 6.3]
std::vector<finding> doctor(const worker_options& options,
                            const result<ops_options>& ops = ops_options::from_environment(),
                            detail::any_ms timeout = std::chrono::milliseconds(2000),
                            const detail::container_probe& container = {});

/// The same for a loop, without a backend.
std::vector<finding> doctor(const loop_options& options,
                            const result<ops_options>& ops = ops_options::from_environment(),
                            detail::any_ms timeout = std::chrono::milliseconds(2000),
                            const detail::container_probe& container = {});

/// The highest severity of the findings; info if there are none. Thread-safe.
severity max_severity(const std::vector<finding>& findings) noexcept;

/// Two lines per finding (problem, fix) and one with the counts, each with its newline. Thread-safe.
std::string format_findings(const std::vector<finding>& findings);
}  // namespace v0_1_0
}  // namespace ojs
