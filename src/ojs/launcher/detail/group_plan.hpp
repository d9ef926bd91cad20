// group_plan: pure functions that say which processes of a group start and end next.
#pragma once

#include <algorithm>
#include <string>

#include "../../base/detail/clock.ipp"
#include "../launcher_options.hpp"
#include "instance.hpp"

namespace ojs::detail {

// ---- restarts: no clock and no thread of their own ----

// Of one place in a group, which one process after the other takes. Its owner locks.
struct restart_history : ref_counted {
    explicit restart_history(const restart_options& options) : pauses(options.first, options.last) {}

    backoff pauses;
    int restarts = 0;      // since one lasted
    time_point started{};  // the last one
};

struct restart_decision {
    time_point when = time_point::max();  // never
    bool degraded = false;                // it would be restarted, but was too often
};

// `failed`: it did not exit by itself with status 0, or could not be started.
inline restart_decision restart_after(const restart_options& options, bool failed, restart_history& history,
                                      time_point now) {
    const bool wanted =
        options.policy == restart_policy::always || (failed && options.policy == restart_policy::on_failure);
    if (!wanted) return {};
    if (now - history.started >= options.stable) {
        history.restarts = 0;
        history.pauses.reset();
    }
    if (options.limit > 0 && history.restarts >= options.limit) return {time_point::max(), true};
    ++history.restarts;
    return {now + history.pauses.next(), false};
}

// ---- the member ----

// One process of a group. Its fields are under the group's mutex, but for `id` and what is const.
struct member : ref_counted {
    member(std::string name, std::uint64_t of, ref<restart_history> where)
        : id(std::move(name)), generation(of), place(std::move(where)) {
        info.id = id;
        info.generation = generation;
    }

    const std::string id;
    const std::uint64_t generation;
    const ref<restart_history> place;
    ref<instance> process;  // none until it was started
    process_info info;      // as last told
    bool was_ready = false;
    bool failed_readiness = false;  // and was counted as that
    bool shown_routable = false;    // to the hooks
    bool leaving = false;           // is to end: it is not restarted
    bool asked = false;             // and was told so, once no hook routes to it any more
    bool given_up = false;          // forced for its ill health: it is restarted
    bool forced = false;
    bool notified = false;  // before it was there to be told
    bool fresh = false;     // started by the rollout under way
    bool proven = false;    // as the last reconciliation found it: ready for min_ready_time
    shutdown_order order;   // while it leaves
    // As reconciliations see them, so that one clock rules all decisions; time_point(): not yet.
    time_point ready_since{};
    std::uint64_t unrouted = 0;             // the routing's number for that it takes no more work
    time_point ask_by{};                    // though a hook has not returned
    time_point answer_by{};                 // asked once more whether it is ready
    time_point gone_by{};                   // or nobody waits for its end any more
    std::chrono::milliseconds stop_time{};  // by the configuration that it was started with
};

using members = array<ref<member>>;

// ---- the plan ----

// Of a process that was not asked to end.
struct plan_member {
    bool current = true;  // of the configuration that is wanted
    bool ready = false;   // takes work
    bool proven = false;  // and has for min_ready_time: only such a process makes up for another
};

struct group_goal {
    int wanted = 0;         // processes of the current configuration
    bool replaces = false;  // others make way for proven current ones; else they count like current ones
    int max_others = 0;     // of a replacement: while no current one is proven
    int min_healthy = 0;
    int max_starts = 0;  // now, by back-offs and by room
    bool may_end = true;
};

struct group_plan {
    int starts = 0;
    array<std::size_t> ends;  // by index
};

// Who ends: those that are not ready first, for they serve nobody; then the unproven; then the oldest. One
// that is ready ends only where min_healthy proven ones remain.
inline group_plan plan_group(const array<plan_member>& processes, const group_goal& goal) {
    int count[2] = {0, 0};   // others, current ones
    int proven[2] = {0, 0};  // the same
    for (const plan_member& each : processes) {
        ++count[each.current];
        proven[each.current] += each.proven ? 1 : 0;
    }
    group_plan out;
    const int filled = count[1] + (goal.replaces ? 0 : count[0]);
    out.starts = std::max(0, std::min(goal.wanted - filled, goal.max_starts));
    if (!goal.may_end) return out;
    const int room =
        goal.replaces ? (proven[1] < goal.wanted ? goal.max_others - proven[1] : 0) : goal.wanted - count[1];
    int surplus[2] = {count[0] - std::max(0, room), count[1] - goal.wanted};
    int healthy = proven[0] + proven[1];
    for (int rank = 0; rank < 3; ++rank) {
        for (std::size_t i = 0; i < processes.size(); ++i) {
            const plan_member& each = processes[i];
            const int rank_of = each.proven ? 2 : each.ready ? 1 : 0;
            if (rank_of != rank || surplus[each.current] <= 0) continue;
            const int remaining = healthy - (each.proven ? 1 : 0);
            if (each.ready && remaining < goal.min_healthy) continue;
            healthy = remaining;
            --surplus[each.current];
            out.ends.push_back(i);
        }
    }
    return out;
}

}  // namespace ojs::detail
