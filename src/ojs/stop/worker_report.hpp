// worker_report and exit_status: how a worker or a loop has ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../core/shutdown_sequence.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Exit statuses of run(), and so of a program that returns them from main.
namespace exit_status {
inline constexpr int settled = 0;  ///< every claimed job was acked, failed or requeued
inline constexpr int usage = 64;   ///< not started, until a change: of an option, no handler, signals not available
inline constexpr int stuck = 70;   ///< a handler did not return, with river_dialect(); a loop's consumer threw [River]
inline constexpr int unavailable = 71;   ///< not started, for now: a port in use, an absent disk, no descriptors
inline constexpr int unreported = 75;    ///< a job was not reported, or stuck handlers stopped the worker
inline constexpr int signal_base = 128;  ///< plus the number of the third stop signal
}  // namespace exit_status

/// How the claimed jobs ended. At the end of a stop, claimed = completed + failed + requeued + gone + unreported.
struct worker_report {
    std::uint64_t claimed = 0;            ///< all of them
    std::uint64_t completed = 0;          ///< ACK
    std::uint64_t failed = 0;             ///< FAIL that uses up an attempt
    std::uint64_t interrupted = 0;        ///< runs, of these jobs, cut short by the stop or outcome::interrupted()
    std::uint64_t requeued = 0;           ///< FAIL with `requeue`: interrupted, never started, or no handler
    std::uint64_t gone = 0;               ///< the backend had already reassigned it, or its lease ran out
    std::vector<std::string> unreported;  ///< ids of jobs that were not reported, the first 10,000
    std::vector<std::string> stuck;       ///< ids of reported jobs whose handler has not returned
    std::vector<step_result> steps;       ///< steps of on_shutdown() that have run
};
}  // namespace v0_1_0
}  // namespace ojs
