// group_plan: what a group needs next, as a pure function of its processes. Restarts and rollouts follow the same plan.
#pragma once

#include "../../base/detail/light.hpp"

namespace ojs::detail {

// Of a process that was not asked to end.
struct plan_member {
    bool current = true;  // of the configuration that is wanted
    bool ready = false;   // takes work
    bool proven = false;  // and has for min_ready_time: only such a process makes up for another
};

struct group_goal {
    int wanted = 0;  // processes of the current configuration
    bool replaces =
        false;           // others make way once current ones are proven; else others count like current ones
    int max_others = 0;  // of a replacement: while no current one is proven
    int min_healthy = 0;
    int max_starts = 0;  // now, by back-offs and by room
    bool may_end = true;
};

struct group_plan {
    int starts = 0;
    array<std::size_t> ends;  // by index
};

inline int at_least_zero(int number) noexcept {
    return number > 0 ? number : 0;
}

// Who ends: those that are not ready first, for they serve nobody; then the unproven; then the oldest. One that is ready ends
// only where min_healthy proven ones remain.
inline group_plan plan_group(const array<plan_member>& processes, const group_goal& goal) {
    int count[2] = {0, 0};   // others, current ones
    int proven[2] = {0, 0};  // the same
    for (const plan_member& each : processes) {
        ++count[each.current];
        proven[each.current] += each.proven ? 1 : 0;
    }
    group_plan out;
    const int filled = count[1] + (goal.replaces ? 0 : count[0]);
    out.starts =
        at_least_zero(goal.wanted - filled < goal.max_starts ? goal.wanted - filled : goal.max_starts);
    if (!goal.may_end) return out;
    const int room =
        goal.replaces ? (proven[1] < goal.wanted ? goal.max_others - proven[1] : 0) : goal.wanted - count[1];
    int surplus[2] = {count[0] - at_least_zero(room), count[1] - goal.wanted};
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
