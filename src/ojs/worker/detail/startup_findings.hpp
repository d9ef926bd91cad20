// startup_findings: what prevents a clean stop, for the log at the start and for doctor().
#pragma once

#include <chrono>
#include <vector>

#include "../../host/container.hpp"
#include "../worker_options.hpp"

namespace ojs::detail {

// Checks that container_grace_period covers the grace period, the preStop delay, reporting and exiting (5 s, or
// stop_timeout if that is longer) and `steps_timeout` (those of worker::on_shutdown()). Fixes recommend 10 s for
// reporting, as the specification does. [GS 6.2, 6.3] Findings:
// "budget-exceeded" (error): SIGKILL comes before the drain ends; "budget-tight" (warning): it comes after that;
// "budget-unknown" (warning): it is unset, and the platform's default is too short; "budget-PLATFORM" (info, such
// as "budget-kubernetes"): that default is enough; "grace-below-heartbeat" (warning): the drain may end before a
// heartbeat is due; "cancel-wait-cut" (warning): stop_timeout is too short for cancel_wait or reclaim_wait.
std::vector<finding> check_budget(const worker_options& options, std::chrono::milliseconds steps_timeout = {},
                                  const container_info& info = {});

// The cheap checks of doctor(), without infos on PID 1 and the mode file. Thread-safe while the environment is stable.
std::vector<finding> startup_findings(const worker_options& options, const container_probe& probe = {},
                                      std::chrono::milliseconds steps_timeout = {});

}  // namespace ojs::detail
