// exit_status: what a worker's process tells whoever started it.
#pragma once

namespace ojs {
inline namespace v0_1_0 {

// Exit statuses of run(), and so of a program that returns them from main.
namespace exit_status {
inline constexpr int settled = 0;  // every claimed job was acked, failed or handed back
inline constexpr int usage = 64;   // a bad option, no handler, no signals: nothing was started
inline constexpr int stuck = 70;   // a handler did not return, where dialect::stuck_status says so [River]
inline constexpr int steps_not_run = 71;  // a worker::on_shutdown() step did not run: out of memory
inline constexpr int unreported = 75;     // a job was not reported, or stuck handlers stopped the worker
inline constexpr int signal_base = 128;   // plus the number of the third stop signal
}  // namespace exit_status

}  // namespace v0_1_0
}  // namespace ojs
