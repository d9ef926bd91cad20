// startup_findings: what prevents a clean stop, for the log at the start.
#pragma once

#include <chrono>
#include <vector>

#include "../../host/container.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {

// What a worker warns of at its start: the time for a stop is too short ("budget-..."), PID 1 is a shell
// ("pid1-wrapper"), the mode file is wrong. doctor() advises. Thread-safe while the environment is stable.
std::vector<finding> startup_findings(const loop_options& options, const container_probe& probe = {},
                                      std::chrono::milliseconds steps_timeout = {});
// "variable-unknown" for each variable OJS_* that is not one of these.
std::vector<finding> unknown_variables(const array<std::string>& known);

}  // namespace ojs::detail
