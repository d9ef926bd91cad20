// group_member: one process of a group, its place there, and whether what ended is started again.
#pragma once

#include <string>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../group_options.hpp"
#include "instance.hpp"

namespace ojs::detail {

// ---- restarts: no clock and no thread of their own ----

enum class how_ended {
    asked_for,  // also where it took signals
    by_itself,  // with status 0
    failed      // anything else, and what could not be started
};

// Of one place in a group, which one process after the other takes. Its owner locks.
struct restart_history : ref_counted {
    explicit restart_history(const restart_options& options) : pauses(options.first, options.last) {}

    backoff pauses;
    int restarts = 0;      // since one lasted
    time_point started{};  // the last one
};

struct restart_decision {
    bool restart = false;
    time_point when = time_point::max();
    bool degraded = false;  // it would be restarted, but was too often
};

inline restart_decision restart_after(const restart_options& options, how_ended how, restart_history& history,
                                      time_point now) {
    const bool wanted = how == how_ended::failed
                            ? options.policy != restart_policy::never
                            : how == how_ended::by_itself && options.policy == restart_policy::always;
    if (!wanted) return {};
    if (now - history.started >= options.stable) {
        history.restarts = 0;
        history.pauses.reset();
    }
    if (options.limit > 0 && history.restarts >= options.limit) return {false, time_point::max(), true};
    ++history.restarts;
    return {true, now + history.pauses.next(), false};
}

// ---- the member ----

// One process of a group. Its fields are under the group's mutex, but for `id` and what is const.
struct member : ref_counted {
    member(std::string name, std::uint64_t of, ref<restart_history> where)
        : id(std::move(name)), generation(of), place(std::move(where)) {}

    const std::string id;
    const std::uint64_t generation;
    const ref<restart_history> place;
    ref<instance> process;  // none until it was started
    process_info info;      // as last told
    bool was_ready = false;
    bool failed_readiness = false;  // and was counted as that
    bool told_routable = false;     // to the hooks
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

}  // namespace ojs::detail
