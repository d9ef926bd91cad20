// budget: whether the grace period fits into what the container grants.
#pragma once

#include <chrono>
#include <vector>

#include "../base/error.hpp"
#include "../host/container.hpp"
#include "worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {

namespace detail {

// How stop_timeout is shared out: the last heartbeat's part, and, of the rest, what cancelled handlers must leave for
// reporting them.
inline std::chrono::milliseconds last_beat_time(std::chrono::milliseconds stop_timeout) noexcept {
    constexpr std::chrono::milliseconds max{500};
    return stop_timeout / 5 < max ? stop_timeout / 5 : max;
}
inline steady_clock::duration report_time(steady_clock::duration left) noexcept {
    constexpr std::chrono::seconds max{3};
    return left / 2 < max ? left / 2 : max;
}

}  // namespace detail

// "budget-exceeded" (error): the grace period and the preStop delay reach what the container grants, so that SIGKILL
// comes before the drain ends. "budget-tight" (warning): they fit, but not with the 5 s, or stop_timeout if that is
// longer, that reporting and exiting may take; with exactly that they do. Both with the numbers and a value that works,
// which has 10 s for it, as the specification recommends. Both count `closing`, which worker::on_shutdown() steps may
// take. If container_grace_period is unset, the default of the platform in `info` counts: "budget-unknown"
// (warning): they need more; "budget-PLATFORM" (info, such as "budget-kubernetes"): they fit. "grace-below-heartbeat"
// (warning): the drain may end before one heartbeat is due. "cancel-wait-cut" (warning): cancel_wait or reclaim_wait is
// longer than what stop_timeout leaves for it. Thread-safe. [GS 6.2, 6.3]
std::vector<finding> check_budget(const worker_options& options,
                                  std::chrono::milliseconds closing = std::chrono::milliseconds(0),
                                  const container_info& info = {});

// max_job_duration + heartbeat_interval + safety_margin; the longest there is where that would overflow, and negative
// ones count as 0. [GS 6.2]
std::chrono::milliseconds grace_period_for(
    std::chrono::milliseconds max_job_duration, std::chrono::milliseconds heartbeat_interval,
    std::chrono::milliseconds safety_margin = std::chrono::milliseconds(10000)) noexcept;

}  // namespace v0_1_0
}  // namespace ojs
