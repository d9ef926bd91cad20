// rollout: one rolling replacement of a group, from its begin to its end. [RFC-041 "Rolling Replacement Algorithm"]
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../group_options.ipp"
#include "launcher_metrics.ipp"

namespace ojs::detail {

// Its fields are under the group's mutex, but for what is const.
struct rollout : ref_counted {
    enum class stage { forward, rolling_back, ending, ended };
    enum class canary_step { starting, watched, check_due, checking, passed };

    rollout(group_options given, rolling_options with, const group_options& before, std::uint64_t number)
        : to(std::move(given)),
          options(with.retries == -1 ? with_retries(std::move(with), to.retry) : std::move(with)),
          generation(number),
          max_others(larger(before.desired, to.desired)),
          max_total(max_others + larger(to.max_surge, 1)),
          min_healthy(before.min_healthy < to.min_healthy ? before.min_healthy : to.min_healthy),
          pauses(options.retry_first, options.retry_last) {
        begin_stage(stage::forward);
        if (options.canary == 0) canaries = canary_step::passed;
    }

    void begin_stage(stage next) noexcept {
        at = next;
        retries_left = options.retries;
        pauses.reset();
        paused_until = time_point();
    }
    static int larger(int one, int other) noexcept { return one > other ? one : other; }
    static rolling_options with_retries(rolling_options out, const retry_options& configured) {
        out.retries = configured.limit;
        out.retry_first = configured.first;
        out.retry_last = configured.last;
        return out;
    }

    const group_options to;
    const rolling_options options;
    const std::uint64_t generation;
    const int max_others;   // of other configurations
    const int max_total;    // processes at any moment, those that drain included
    const int min_healthy;  // what both configurations can hold

    stage at = stage::forward;
    int retries_left = 0;
    backoff pauses;
    time_point paused_until{};
    canary_step canaries = canary_step::starting;
    time_point watched_until{};
    bool failed = false;  // since the last reconciliation
    bool may_retry = true;
    int told_replaced = 0;
    replacement_end result = replacement_end::done;  // once it is ending
    rolling_report report;
};

}  // namespace ojs::detail
