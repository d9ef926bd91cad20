// startup_findings: what stands in the way of a clean stop, as a worker logs it.
#pragma once

#include <chrono>
#include <vector>

#include "../base/error.hpp"
#include "../host/container.hpp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {

// The cheap checks of doctor(), which a worker logs at start: budgets, variables, PID 1, the termination-mode file, and in
// Kubernetes the probes. `closing` as in check_budget(). Thread-safe if the environment does not change meanwhile.
std::vector<finding> startup_findings(const worker_options& options, const container_probe& where = {},
                                      std::chrono::milliseconds closing = std::chrono::milliseconds(0));

}  // namespace v0_1_0
}  // namespace ojs
