#pragma once

#include "../base/detail/text.hpp"
#include "../host/detail/container_evidence.ipp"
#include "budget.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline std::chrono::milliseconds sum(std::chrono::milliseconds a, std::chrono::milliseconds b) noexcept {
    constexpr auto most = std::chrono::milliseconds::max();
    constexpr auto none = std::chrono::milliseconds::zero();
    if (a < none) a = none;
    if (b < none) b = none;
    return a > most - b ? most : a + b;
}

inline std::chrono::milliseconds longer(std::chrono::milliseconds a, std::chrono::milliseconds b) noexcept {
    return a < b ? b : a;
}

inline std::string shown_need(const worker_options& options) {
    std::string out = "the grace period without a limit";
    if (options.times.shutdown_grace_period != no_limit)
        out = cat({"the grace period of ", format_duration(options.times.shutdown_grace_period)});
    if (options.prestop_delay > std::chrono::milliseconds::zero())
        append(out, {" and the preStop delay of ", format_duration(options.prestop_delay)});
    return out;
}

// What comes after the drain, at least `least` of it.
inline std::chrono::milliseconds tail_of(const worker_options& options, std::chrono::milliseconds closing,
                                         std::chrono::milliseconds least) noexcept {
    return longer(least, sum(options.times.stop_timeout, closing));
}

// The two ways out: a longer grace period of the container, or, where there is room for one, a shorter one of ours.
inline std::string budget_fix(const worker_options& options, const stop_platform& platform,
                              std::chrono::milliseconds granted, std::chrono::milliseconds closing) {
    const auto tail = tail_of(options, closing, std::chrono::seconds(10));
    const auto need = sum(sum(options.times.shutdown_grace_period, options.prestop_delay), tail);
    std::string out;
    if (*platform.setting == '\0') {
        out = cat({platform.name, " grants no more: let longer jobs save checkpoints"});
    } else if (need < no_limit) {
        out = cat({"let ", platform.name, " grant ", format_duration(need), " (", platform.setting,
                   "), and say so in OJS_CONTAINER_GRACE_PERIOD"});
    }
    const auto spent = sum(options.prestop_delay, tail);
    if (spent < granted)
        append(out, {out.empty() ? "" : "; or ", "set OJS_SHUTDOWN_GRACE_PERIOD to ",
                     format_duration(granted - spent), " or less"});
    return out;
}

// If container_grace_period is unset, the platform's default counts. [GS 6.3]
inline void check_container_grace(const worker_options& options, std::chrono::milliseconds closing,
                                  const stop_platform* known, std::vector<finding>& out) {
    const bool is_set = options.container_grace_period.count() > 0;
    if (!is_set && known == nullptr) return;
    const stop_platform& platform = known != nullptr ? *known : any_platform;
    const auto granted = is_set ? options.container_grace_period : platform.grant;
    const auto need = sum(options.times.shutdown_grace_period, options.prestop_delay);
    const auto tail = tail_of(options, closing, std::chrono::seconds(5));
    const bool fits = need < granted && sum(need, tail) <= granted;
    if (is_set && fits) return;
    const std::string shown = shown_need(options);
    const char* const ending = options.prestop_delay.count() > 0 ? "" : "s";  // of the verb
    finding found{severity::warning, "budget-unknown", "", budget_fix(options, platform, granted, closing)};
    if (!is_set) {
        const bool is_fixed = *platform.setting == '\0';
        const std::string grant =
            cat({format_duration(granted), " that ", platform.name, " grants",
                 is_fixed ? "" : cat({" unless ", platform.setting, " says otherwise"})});
        found.what = cat({shown, " and the ", format_duration(tail), " for reporting need more than the ",
                          grant, "; OJS_CONTAINER_GRACE_PERIOD is unset"});
        if (fits) {
            found = {severity::info, cat({"budget-", platform.runtime}),
                     cat({shown, " fit", ending, " into the ", grant}),
                     is_fixed
                         ? std::string("let jobs that take longer save checkpoints")
                         : cat({"where jobs take longer, set OJS_SHUTDOWN_GRACE_PERIOD, ", platform.setting,
                                " to 10s more, and OJS_CONTAINER_GRACE_PERIOD to that"})};
        }
    } else if (need >= granted) {
        found.severity = severity::error;
        found.id = "budget-exceeded";
        found.what = cat({shown, " cannot fit into the ", format_duration(granted),
                          " the container grants: SIGKILL comes before the drain ends"});
    } else {
        found.id = "budget-tight";
        found.what = cat({shown, " leave", ending, " ", format_duration(granted - need), " of the ",
                          format_duration(granted),
                          " the container grants; interrupting, reporting and exiting may take ",
                          format_duration(tail)});
    }
    out.push_back(std::move(found));
}

inline void check_cancel_wait(const worker_options& options, std::vector<finding>& out) {
    const auto wanted = longer(options.times.cancel_wait, options.times.reclaim_wait);
    const auto left = options.times.stop_timeout - last_beat_time(options.times.stop_timeout);
    const auto granted = left - std::chrono::duration_cast<std::chrono::milliseconds>(report_time(left));
    if (wanted <= granted) return;
    out.push_back(
        {severity::warning, "cancel-wait-cut",
         cat({"cancelled handlers are to have ", format_duration(wanted),
              " to return, but the stop_timeout of ", format_duration(options.times.stop_timeout),
              " leaves them ", format_duration(granted)}),
         cat({"set OJS_STOP_TIMEOUT to ", format_duration(sum(wanted, std::chrono::milliseconds(3500))),
              ", or shorten the wait"})});
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::vector<finding> check_budget(const worker_options& options,
                                                      std::chrono::milliseconds closing,
                                                      const container_info& info) {
    std::vector<finding> out;
    detail::check_container_grace(options, closing, detail::find_platform(info), out);
    detail::check_cancel_wait(options, out);
    if (options.times.shutdown_grace_period <= options.heartbeat_interval) {
        const auto least = grace_period_for({}, options.heartbeat_interval);
        out.push_back(
            {severity::warning, "grace-below-heartbeat",
             detail::cat({"the grace period of ", format_duration(options.times.shutdown_grace_period),
                          " is not longer than the heartbeat interval of ",
                          format_duration(options.heartbeat_interval)}),
             detail::cat({"set OJS_SHUTDOWN_GRACE_PERIOD to your longest job and ", format_duration(least),
                          " more (the heartbeat interval and 10s)"})});
    }
    return out;
}

OJS_SHUTDOWN_INLINE std::chrono::milliseconds grace_period_for(
    std::chrono::milliseconds max_job_duration, std::chrono::milliseconds heartbeat_interval,
    std::chrono::milliseconds safety_margin) noexcept {
    return detail::sum(detail::sum(max_job_duration, heartbeat_interval), safety_margin);
}

}  // namespace v0_1_0
}  // namespace ojs
