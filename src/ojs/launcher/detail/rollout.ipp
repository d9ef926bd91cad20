// rollout: which processes of a group start and stop next, and the progress of a rollout.
// [RFC-041 "Rolling Replacement Algorithm"]
#pragma once

#include <algorithm>
#include <string>

#include "../../base/detail/clock.ipp"
#include "../launcher_options.ipp"
#include "instance.hpp"
#include "launcher_metrics.ipp"

namespace ojs::detail {
// Paths are made absolute, as processes are started again later, and durations short enough to be added.
inline group_options as_kept(group_options group) {
    child_options& child = group.process.child;
    for (std::chrono::milliseconds* const time :
         {&group.health_check_timeout, &group.min_ready_time, &group.process.rpc_timeout})
        *time = clamp_for_sum(*time);
    for (child_stream* const stream : {&child.input, &child.output, &child.errors})
        stream->path = absolute_path(stream->path);
    for (std::vector<std::string>* const command : {&child.command, &group.process.pre_shutdown}) {
        const bool has_folder = !command->empty() && command->front().find('/') != std::string::npos;
        if (has_folder && child.working_directory.empty()) command->front() = absolute_path(command->front());
    }
    child.working_directory = absolute_path(child.working_directory);
    return group;
}

// The restarts of one slot of a group. Guarded by the mutex of the group.
struct restart_history : ref_counted {
    explicit restart_history(const restart_options& options) : delays({options.initial_backoff, options.max_backoff}) {}

    backoff delays;
    int restarts = 0;         // since a process lasted stable_after
    time_point started_at{};  // the last process of the slot
    bool never_ran = false;   // the last process: it could not be started
};

struct restart_decision {
    time_point restart_at = time_point::max();  // max(): never
    bool degraded = false;                      // the slot is empty: max_restarts, or no start
};

// `failed`: it could not be started, or did not exit by itself with status 0.
inline restart_decision plan_restart(const restart_options& options, bool failed, restart_history& history,
                                     time_point now) {
    const bool restarts =
        options.policy == restart_policy::always || (failed && options.policy == restart_policy::on_failure);
    if (!restarts) return {};
    if (now - history.started_at >= options.stable_after) {
        history.restarts = 0;
        history.delays.reset();
    }
    if (options.max_restarts > 0 && history.restarts >= options.max_restarts) return {time_point::max(), true};
    ++history.restarts;
    return {now + history.delays.next(), false};
}

// A process that could not be started says nothing about its program: it is retried, uncounted, where processes are
// restarted at all. [WIRE 7]
inline restart_decision plan_start_retry(const restart_options& options, restart_history& history, time_point now) {
    if (options.policy == restart_policy::never) return {time_point::max(), true};
    using ms = std::chrono::milliseconds;
    history.never_ran = true;
    return {now + std::clamp<ms>(history.delays.next(), ms(100), ms(5000)), true};
}

// One process of a group. The group's mutex guards its fields.
struct group_member : ref_counted {
    group_member(std::string name, std::uint64_t number, ref<restart_history> slot)
        : id(std::move(name)), generation(number), history(std::move(slot)) {
        info.id = id;
        info.generation = generation;
    }

    const std::string id;
    const std::uint64_t generation;
    const ref<restart_history> history;
    ref<instance> process;  // null until it was started
    process_info info;      // as last reported
    bool was_ready = false;
    bool failed_readiness = false;    // and was counted
    bool announced_routable = false;  // as the routing hooks know it
    bool leaving = false;             // stops, and is not restarted
    bool shutdown_requested = false;  // after on_unroutable has returned
    bool given_up = false;            // forced because unhealthy, and restarted
    bool forced = false;
    bool poll_due = false;      // notified before `process` was set
    bool from_rollout = false;  // started by the current rollout
    bool available = false;     // ready for min_ready_time, at the last reconciliation
    shutdown_options shutdown;  // the request, while leaving
    // In the time of reconcile(); time_point(): not set.
    time_point ready_since{};
    std::uint64_t unroutable_call = 0;      // for routing::was_called()
    time_point request_by{};                // even if the hook has not returned
    time_point readiness_deadline{};        // of the last poll before it fails
    time_point exit_by{};                   // when the rollout stops waiting for its exit
    shutdown_timeouts times;                // of its own configuration, as the next
    std::chrono::milliseconds stop_time{};  // until it has exited
};

using group_members = array<ref<group_member>>;

// A process that is not leaving.
struct plan_member {
    bool current = true;     // has the target configuration
    bool ready = false;      // takes work
    bool available = false;  // has been ready for min_ready_time: only then it replaces another
};

struct group_goal {
    int target = 0;          // processes of the current configuration
    bool replacing = false;  // available current processes replace old ones; else old ones count too
    int max_old = 0;         // of a rollout: while no current process is available
    int min_healthy = 0;
    int max_starts = 0;  // allowed now
    bool may_stop = true;
};

struct group_plan {
    int starts = 0;
    array<std::size_t> stops;  // indexes
};

// Stops processes that are not ready first, then those not available, then the oldest. A ready process is only stopped
// while min_healthy available ones remain.
inline group_plan plan_group(const array<plan_member>& processes, const group_goal& goal) {
    int count[2] = {0, 0};      // old, current
    int available[2] = {0, 0};  // old, current
    for (const plan_member& candidate : processes) {
        ++count[candidate.current];
        available[candidate.current] += candidate.available ? 1 : 0;
    }
    group_plan out;
    const int filled = count[1] + (goal.replacing ? 0 : count[0]);
    out.starts = std::max(0, std::min(goal.target - filled, goal.max_starts));
    if (!goal.may_stop) return out;
    const int room =
        goal.replacing ? (available[1] < goal.target ? goal.max_old - available[1] : 0) : goal.target - count[1];
    int surplus[2] = {count[0] - std::max(0, room), count[1] - goal.target};
    int healthy = available[0] + available[1];
    for (int rank = 0; rank < 3; ++rank) {
        for (std::size_t i = 0; i < processes.size(); ++i) {
            const plan_member& candidate = processes[i];
            const int rank_of = candidate.available ? 2 : candidate.ready ? 1 : 0;
            if (rank_of != rank || surplus[candidate.current] <= 0) continue;
            const int remaining = healthy - (candidate.available ? 1 : 0);
            if (candidate.ready && remaining < goal.min_healthy) continue;
            healthy = remaining;
            --surplus[candidate.current];
            out.stops.push_back(i);
        }
    }
    return out;
}

// Guarded by the mutex of its group, which reports events to it and acts on its decisions.
struct rollout : ref_counted {
    enum class stage { forward, rolling_back, ending, ended };
    enum class canary_step { starting, watched, check_due, checking, passed };
    enum class failure_step { none, retry, roll_back, give_up };

    rollout(const group_options& new_options, rollout_options rolling, const group_options& before,
            std::uint64_t number)
        : target(as_kept(new_options)),
          options(with_retries(std::move(rolling), target.retry)),
          generation(number),
          max_old(std::max(before.desired, target.desired)),
          max_total(max_old + std::max(target.max_surge, 1)),
          min_healthy(std::min(before.min_healthy, target.min_healthy)),
          delays({options.initial_backoff, options.max_backoff}) {
        begin_stage(stage::forward);
        if (options.canary == 0) canary = canary_step::passed;
    }

    // A process of the rollout failed. During a rollback the first error stays the reason.
    void fail(const std::string& id, std::string why) {
        failed = true;
        if (current_stage != stage::forward) return;
        report.failed_id = id;
        report.error = std::move(why);
    }
    void fail_without_retry(std::string why) {
        may_retry = false;
        fail("", std::move(why));
    }
    failure_step handle_failure(time_point now) {
        if (!exchange(failed, false) || now < paused_until) return failure_step::none;  // another is handled
        if (may_retry && retries_left > 0) {
            --retries_left;
            ++status.retries;
            paused_until = now + delays.next();
            return failure_step::retry;
        }
        if (current_stage != stage::forward) return failure_step::give_up;
        report.rolled_back = true;
        begin_stage(stage::rolling_back);
        return failure_step::roll_back;
    }
    // `available` of the `needed` canaries are available. True: the step has changed.
    bool watch_canaries(time_point now, int available, int needed) {
        const canary_step before = canary;
        if (canary == canary_step::passed) return false;
        if (available < needed) canary = canary_step::starting;
        if (available >= needed && canary == canary_step::starting) {
            canary = canary_step::watched;
            watched_until = now + clamp_for_sum(options.canary_time);
        } else if (canary == canary_step::watched && now >= watched_until) {
            canary = options.canary_check ? canary_step::check_due : canary_step::passed;
        }
        return canary != before;
    }
    // Calls the user's check. An exception counts as a failure.
    result<void> run_canary_check(const std::vector<process_info>& started) const {
        try {
            return options.canary_check(started);
        } catch (...) {
            return error{errc::system, 0, cat({"canary_check threw: ", thrown_text()})};
        }
    }
    // True: there is progress to log.
    bool update_status(time_point now, int old_count, bool draining) {
        report.replaced = std::max(0, report.total - old_count);
        status.phase = report.rolled_back    ? rollout_phase::rolling_back
                       : now < paused_until  ? rollout_phase::pausing
                       : watched_until > now ? rollout_phase::canaries
                       : draining            ? rollout_phase::draining
                                             : rollout_phase::starting;
        status.replaced = report.replaced;
        status.failed_id = report.failed_id;
        status.error = report.error;
        if (current_stage != stage::forward || draining || report.replaced <= logged_replaced || old_count == 0)
            return false;
        logged_replaced = report.replaced;
        return true;
    }
    // Takes the counts of new and old processes. Returns group_info::message.
    std::string finish(int new_count, int old_count) {
        const bool done = outcome == rollout_result::done;
        current_stage = stage::ended;
        report.cancelled = outcome == rollout_result::cancelled;
        report.replaced = done ? report.total : report.rolled_back ? new_count : std::max(0, report.total - old_count);
        report.mixed = !done && new_count > 0 && (report.rolled_back || old_count > 0);
        status.phase = done               ? rollout_phase::done
                       : report.cancelled ? rollout_phase::cancelled
                                          : rollout_phase::rolled_back;
        status.replaced = report.replaced;
        status.cancelling = false;
        const std::string counts = cat({report.replaced, " of ", report.total});
        if (done) return cat({"replaced ", counts});
        if (report.cancelled) return cat({"cancelled, replaced ", counts});
        return cat({report.mixed ? "rolled back in part: " : "rolled back: ", report.failed_id,
                    report.failed_id.empty() ? "" : " ", report.error});
    }

    const group_options target;
    const rollout_options options;
    const std::uint64_t generation;
    const int max_old;      // processes of the old configuration
    const int max_total;    // processes at any time, including draining ones
    const int min_healthy;  // the smaller one of both configurations

    stage current_stage = stage::forward;
    canary_step canary = canary_step::starting;
    time_point paused_until{};
    time_point watched_until{};
    bool failed = false;                            // since the last reconciliation
    rollout_result outcome = rollout_result::done;  // valid from stage::ending
    rollout_report report;
    rollout_status status;

  private:
    void begin_stage(stage next) noexcept {
        current_stage = next;
        retries_left = options.max_retries;
        delays.reset();
        paused_until = time_point();
    }
    static rollout_options with_retries(rollout_options out, const retry_options& configured) {
        if (out.max_retries != -1) return out;
        out.max_retries = configured.max_retries;
        out.initial_backoff = configured.initial_backoff;
        out.max_backoff = configured.max_backoff;
        return out;
    }

    int retries_left = 0;
    backoff delays;
    bool may_retry = true;
    int logged_replaced = 0;
};

// Whether the machine has the programs of a group. errc::invalid_argument: the group, the path and the reason.
inline result<void> check_programs(const group_options& group) {
    const auto fault = [&](const char* key, const error& why) {
        return error{errc::invalid_argument, 0, cat({"group ", group.name, ", ", key, ": ", why.text})};
    };
    result<void> found = check_program(group.process.child);
    if (!found) return fault("command", found.error());
    if (group.process.pre_shutdown.empty()) return {};
    child_options before = group.process.child;
    before.command = group.process.pre_shutdown;
    found = check_program(before);
    return found ? found : fault("pre_shutdown", found.error());
}

// errc::invalid_argument: as check_group(), another name, or invalid options.
inline result<void> check_rollout(const group_options& current, const group_options& target,
                                  const rollout_options& options) {
    const auto fault = [](std::string text) { return error{errc::invalid_argument, 0, std::move(text)}; };
    result<void> valid = check_group(target);
    if (!valid) return valid;
    if (target.name != current.name) return fault("a rollout cannot rename a group");
    if (options.canary < 0) return fault("canary: must not be negative");
    if (options.canary_time.count() < 0) return fault("canary_time: must not be negative");
    if (options.max_retries < -1) return fault("max_retries: must not be below -1");
    std::string wrong = fault_in_backoff("", options.initial_backoff, options.max_backoff);
    return wrong.empty() ? result<void>() : fault(std::move(wrong));
}
}  // namespace ojs::detail
