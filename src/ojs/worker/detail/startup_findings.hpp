// startup_findings: what stands in the way of a clean stop, as a worker logs it at its start, and doctor() reports it.
#pragma once

#include <chrono>
#include <vector>

#include "../../base/error.hpp"
#include "../../host/container.hpp"
#include "../worker_options.hpp"

namespace ojs::detail {

// "budget-exceeded" (error): the grace period and the preStop delay reach what the container grants, so that SIGKILL
// comes before the drain ends. "budget-tight" (warning): they fit, but not with the 5 s, or stop_timeout if that is
// longer, that reporting and exiting may take. The fix recommends 10 s for that, as the specification does. Both count
// `closing`, the limits of worker::on_shutdown(). If container_grace_period is unset, the default of the platform in `info`
// counts: "budget-unknown" (warning): they need more; "budget-PLATFORM" (info, such as "budget-kubernetes"): they fit.
// "grace-below-heartbeat" (warning): the drain may end before one heartbeat is due. "cancel-wait-cut" (warning): cancel_wait
// or reclaim_wait is longer than what stop_timeout leaves for it. Thread-safe. [GS 6.2, 6.3]
std::vector<finding> check_budget(const worker_options& options, std::chrono::milliseconds closing = {},
                                  const container_info& info = {});

// The cheap checks of doctor(), without notes (info) on PID 1 and the mode file: budgets, variables, PID 1, the
// termination-mode file, and in Kubernetes the probes. Thread-safe if the environment does not change meanwhile.
std::vector<finding> startup_findings(const worker_options& options, const container_probe& where = {},
                                      std::chrono::milliseconds closing = {});

}  // namespace ojs::detail
