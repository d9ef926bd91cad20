// restart_policy: whether and when what ended is started again. No clock and no thread of its own.
#pragma once

#include "../../base/detail/backoff.hpp"
#include "../../base/detail/ref.hpp"
#include "../group_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

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

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
