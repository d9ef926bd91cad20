// instance: the interface of a process to its group.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "../../base/log.hpp"
#include "../launcher_options.hpp"

namespace ojs::detail {
// Capped, so that a sum of a few does not overflow.
inline std::chrono::milliseconds clamp_for_sum(std::chrono::milliseconds time) noexcept {
    return std::min<std::chrono::milliseconds>(time, std::chrono::hours(24 * 365 * 30));
}

// From the shutdown request to the exit, pre_shutdown and SIGKILL included.
inline std::chrono::milliseconds stop_time(const process_options& options) noexcept {
    const shutdown_timeouts& timeouts = options.shutdown;
    const bool has_hook = !options.pre_shutdown.empty();
    return clamp_for_sum(timeouts.max_duration) + clamp_for_sum(timeouts.report_time) +
           2 * clamp_for_sum(timeouts.kill_delay) + std::chrono::seconds(5) +
           (has_hook ? clamp_for_sum(options.pre_shutdown_timeout) : std::chrono::milliseconds(0));
}

// What a request gets: its own times, or the group's; none is longer than the group's max_duration.
inline shutdown_timeouts granted_times(const shutdown_options& asked, shutdown_timeouts times) noexcept {
    constexpr std::chrono::milliseconds zero{0};
    if (asked.max_duration > zero) times.max_duration = std::min(asked.max_duration, times.max_duration);
    if (asked.grace_period > zero) times.grace_period = asked.grace_period;
    times.grace_period = std::min(times.grace_period, times.max_duration);
    return times;
}

// One process, from its start to its end. Every member is thread-safe.
class instance : public ref_counted {
  public:
    virtual process_info info() const = 0;
    // Returns at once; only the first call has an effect.
    virtual void shut_down(const shutdown_options& options) = 0;
    // SIGTERM now, SIGKILL after kill_delay. Returns at once.
    virtual void force() = 0;
    // Polls readiness or status now. Returns at once.
    virtual void poll() = 0;
    // Blocks until the process has answered, for an operator.
    virtual result<shutdown_status> request_status(time_point deadline) = 0;
};

// Called after every change, in order, by the thread of the instance, with no lock held. Must be short.
using instance_callback = function<void(const process_info& now, instance_state before)>;

struct instance_spec {
    std::string id;
    std::string group;
    process_options options;
    std::uint64_t generation = 0;
    std::string address;           // where its coordinator listens; empty: it has none
    std::string launcher_address;  // where it sends notifications; empty: nowhere
    // Records the pid before exec(); the descriptor, once readable, ends a wait for the disk. May be empty.
    function<result<void>(pid_t pid, int interrupt_fd)> record;
};

using instance_starter = function<result<ref<instance>>(const instance_spec&, instance_callback)>;

// Starts a real process. Returns before it runs; `changed` reports the start or its failure. An error: out of threads,
// descriptors or memory. The last reference kills a process that still runs.
result<ref<instance>> start_instance(const instance_spec& spec, instance_callback changed, const logger& log);
}  // namespace ojs::detail
