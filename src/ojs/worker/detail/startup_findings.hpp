// startup_findings: what prevents a clean stop, for the log at the start.
#pragma once

#include <chrono>
#include <vector>

#include "../../host/container.hpp"
#include "../worker_options.hpp"

namespace ojs::detail {

// What a worker warns of at its start: the time for a stop is too short ("budget-..."), PID 1 is a shell
// ("pid1-wrapper"), a variable is unknown, the mode file is wrong. doctor() advises. Thread-safe while the environment is stable.
std::vector<finding> startup_findings(const worker_options& options, const container_probe& probe = {},
                                      std::chrono::milliseconds steps_timeout = {});

}  // namespace ojs::detail
