// run_command: the commands of a worker's program, for operators and deployments.
#pragma once

#include <optional>

#include "../worker/worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Runs a command of the program's arguments. Call it in main, once the options are complete, before signals are installed
/// and threads started:
///
///     if (const auto status = ojs::run_command(argc, argv, options)) return *status;
///
/// --doctor                      prints the findings of doctor(); 1 if one of them is an error
/// --signal NAME [PID] [--wait]  signal_worker(NAME, PID); 1 if no process got the signal. --wait, for a preStop hook:
///                               then waits for prestop_delay, or until that process has ended
/// --init                        run_as_init(); the program continues
/// Other words with two dashes, or in another number: an error, with the usage, and 64. Without any the words are the
/// program's own, and nothing happens. Invalid `options` end all but --doctor and --signal by report_startup_error().
std::optional<int> run_command(int argc, const char* const* argv, const result<worker_options>& options);
}  // namespace v0_1_0
}  // namespace ojs
