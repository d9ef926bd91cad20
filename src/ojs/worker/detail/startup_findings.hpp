// startup_findings: what stands in the way of a clean stop, for the log at the start and for doctor().
#pragma once

#include <chrono>
#include <vector>

#include "../../host/container.hpp"
#include "../worker_options.hpp"

namespace ojs::detail {

// The grace period and the preStop delay against container_grace_period, which must also hold the 5 s, or
// stop_timeout if that is longer, and `closing` (the limits of worker::on_shutdown()), that reporting and
// exiting may take. Fixes recommend 10 s for that, as the specification does. "budget-exceeded" (error): the
// drain reaches SIGKILL. "budget-tight" (warning): the rest does. If it is unset, the platform's default
// counts: "budget-unknown" (warning): it is too short; "budget-PLATFORM" (info, such as "budget-kubernetes"):
// it is enough. "grace-below-heartbeat" (warning): the drain may end before a heartbeat is due.
// "cancel-wait-cut" (warning): stop_timeout is too short for cancel_wait or reclaim_wait. [GS 6.2, 6.3]
std::vector<finding> check_budget(const worker_options& options, std::chrono::milliseconds closing = {},
                                  const container_info& info = {});

// The cheap checks of doctor(), without notes (info) on PID 1 and the mode file: budgets, variables, PID 1,
// the mode file, and in Kubernetes the probes. Thread-safe if the environment does not change meanwhile.
std::vector<finding> startup_findings(const worker_options& options, const container_probe& where = {},
                                      std::chrono::milliseconds closing = {});

}  // namespace ojs::detail
