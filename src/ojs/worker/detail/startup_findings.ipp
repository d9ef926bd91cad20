#pragma once

#include <unistd.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "../../host/container.ipp"
#include "../../host/termination_mode.hpp"
#include "../worker_options.ipp"
#include "startup_findings.hpp"

extern "C" char** environ;

namespace ojs::detail {

// The parts of stop_timeout: first for the last heartbeat, then for reporting cancelled handlers.
inline std::chrono::milliseconds last_beat_time(std::chrono::milliseconds stop_timeout) noexcept {
    return detail::min(stop_timeout / 5, std::chrono::milliseconds(500));
}
inline steady_clock::duration report_time(steady_clock::duration left) noexcept {
    return detail::min<steady_clock::duration>(left / 2, std::chrono::seconds(3));
}

// Counts negative values as 0 and returns the maximum instead of overflowing.
inline std::chrono::milliseconds capped_sum(std::chrono::milliseconds a,
                                            std::chrono::milliseconds b) noexcept {
    constexpr auto none = std::chrono::milliseconds::zero();
    a = detail::max(a, none);
    b = detail::max(b, none);
    return a > no_limit - b ? no_limit : a + b;
}

inline std::chrono::milliseconds after_drain(const worker_options& options,
                                             std::chrono::milliseconds steps_timeout,
                                             std::chrono::milliseconds min) noexcept {
    return detail::max(min, capped_sum(options.times.stop_timeout, steps_timeout));
}

inline std::string describe_need(const worker_options& options) {
    std::string out = "the unlimited grace period";
    if (options.times.shutdown_grace_period != no_limit)
        out = cat({"the grace period of ", format_duration(options.times.shutdown_grace_period)});
    if (options.prestop_delay.count() > 0)
        append(out, {" plus the preStop delay of ", format_duration(options.prestop_delay)});
    return out;
}

// Two fixes: a longer grant of the container or, if possible, a shorter grace period of the worker.
inline std::string budget_fix(const worker_options& options, const stop_platform& platform,
                              std::chrono::milliseconds granted, std::chrono::milliseconds steps_timeout) {
    const auto other_time =
        capped_sum(options.prestop_delay, after_drain(options, steps_timeout, std::chrono::seconds(10)));
    const auto need = capped_sum(options.times.shutdown_grace_period, other_time);
    std::string out;
    if (*platform.setting == '\0') {
        out = cat({platform.name, " grants no more time: let longer jobs save checkpoints"});
    } else if (need < no_limit) {
        out = cat({"let ", platform.name, " grant ", format_duration(need), " (", platform.setting,
                   ") and set OJS_CONTAINER_GRACE_PERIOD to the same"});
    }
    if (other_time < granted)
        append(out, {out.empty() ? "" : "; or ", "set OJS_SHUTDOWN_GRACE_PERIOD to ",
                     format_duration(granted - other_time), " or less"});
    return out;
}

// Checks against what the container grants, or else what its platform grants by default. [GS 6.3]
inline void check_grant(const worker_options& options, std::chrono::milliseconds steps_timeout,
                        const stop_platform& platform, std::vector<finding>& out) {
    const bool is_known = options.container_grace_period.count() > 0;
    const auto granted = is_known ? options.container_grace_period : platform.grant;
    const auto drain = capped_sum(options.times.shutdown_grace_period, options.prestop_delay);
    const auto tail = after_drain(options, steps_timeout, std::chrono::seconds(5));
    const bool fits = drain < granted && capped_sum(drain, tail) <= granted;
    if (is_known && fits) return;
    const bool is_fixed = *platform.setting == '\0';
    const std::string need = describe_need(options);
    const std::string grant = format_duration(granted);
    const std::string by_default =
        cat({grant, " that ", platform.name, " grants",
             is_fixed ? "" : cat({" unless ", platform.setting, " says otherwise"})});
    finding found{severity::warning, "budget-tight", "",
                  budget_fix(options, platform, granted, steps_timeout)};
    if (fits) {
        found = {severity::info, cat({"budget-", platform.runtime}),
                 cat({need, " fits into the ", by_default}),
                 is_fixed ? "let jobs that take longer save checkpoints"
                          : cat({"where jobs take longer, set OJS_SHUTDOWN_GRACE_PERIOD, ", platform.setting,
                                 " to 10s more, and OJS_CONTAINER_GRACE_PERIOD to that"})};
    } else if (!is_known) {
        found.id = "budget-unknown";
        found.problem = cat({need, " and the ", format_duration(tail), " for reporting need more than the ",
                             by_default, "; OJS_CONTAINER_GRACE_PERIOD is unset"});
    } else if (drain >= granted) {
        found.severity = severity::error;
        found.id = "budget-exceeded";
        found.problem = cat({need, " cannot fit into the ", grant,
                             " the container grants: SIGKILL comes before the drain ends"});
    } else {
        found.problem = cat({need, " leaves ", format_duration(granted - drain), " of the ", grant,
                             " the container grants; interrupting, reporting and exiting may take ",
                             format_duration(tail)});
    }
    out.push_back(std::move(found));
}

inline void check_cancel_wait(const worker_options& options, std::vector<finding>& out) {
    const auto requested = detail::max(options.times.cancel_wait, options.times.reclaim_wait);
    const auto left = options.times.stop_timeout - last_beat_time(options.times.stop_timeout);
    const auto granted = left - std::chrono::duration_cast<std::chrono::milliseconds>(report_time(left));
    if (requested <= granted) return;
    out.push_back(
        {severity::warning, "cancel-wait-cut",
         cat({"cancelled handlers have ", format_duration(requested), " to return, but the stop_timeout of ",
              format_duration(options.times.stop_timeout), " leaves them ", format_duration(granted)}),
         cat({"set OJS_STOP_TIMEOUT to ",
              format_duration(capped_sum(requested, std::chrono::milliseconds(3500))),
              ", or shorten the wait"})});
}

inline void check_heartbeat(const worker_options& options, std::vector<finding>& out) {
    if (options.times.shutdown_grace_period > options.heartbeat_interval) return;
    out.push_back(
        {severity::warning, "grace-below-heartbeat",
         cat({"the grace period of ", format_duration(options.times.shutdown_grace_period),
              " is not longer than the heartbeat interval of ", format_duration(options.heartbeat_interval)}),
         cat({"set OJS_SHUTDOWN_GRACE_PERIOD to your longest job and ",
              format_duration(capped_sum(options.heartbeat_interval, std::chrono::seconds(10))),
              " more (the heartbeat interval plus 10s)"})});
}

OJS_SHUTDOWN_INLINE std::vector<finding> check_budget(const worker_options& options,
                                                      std::chrono::milliseconds steps_timeout,
                                                      const container_info& info) {
    std::vector<finding> out;
    const stop_platform* platform = find_platform(info);
    if (platform == nullptr && options.container_grace_period.count() > 0) platform = platform_of("");
    if (platform != nullptr) check_grant(options, steps_timeout, *platform, out);
    check_cancel_wait(options, out);
    check_heartbeat(options, out);
    return out;
}

inline void check_variables(std::vector<finding>& out) {
    known_variables known;
    const worker_options unused;
    visit_options(unused, known);
    for (const char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        std::string_view name = *entry;
        name = next_part(name, "=");
        // Kubernetes sets some for every service, which may be named "ojs".
        const bool is_of_service = name.find("_SERVICE_") != name.npos || name.find("_PORT") != name.npos;
        if (name.substr(0, 4) != "OJS_" || is_of_service) continue;
        const std::string_view nearest = nearest_name(name, known.names);
        if (nearest == name) continue;
        out.push_back(
            {severity::warning, "variable-unknown",
             cat({printable(name), " is set, but the worker reads no such variable"}),
             nearest.empty() ? "unset it, or see docs/options.md" : cat({"did you mean ", nearest, "?"})});
    }
}

// Checks the file before any stop. It may be written later, so a missing one is not yet an error.
inline void check_mode_file(const worker_options& options, std::vector<finding>& out) {
    static constexpr struct {
        severity level;
        const char* id;
        const char* consequence;
    } faults[] = {
        {severity::info, "", ""},  // indexed by termination_evidence, whose first value is not an error
        {severity::warning, "mode-file-stale", ": left over from an earlier stop?"},
        {severity::info, "mode-file-missing", ": without it every stop hands jobs back at once"},
        {severity::error, "mode-file-unreadable", ""},
        {severity::warning, "mode-file-content", ""}};
    if (options.termination_mode_file.empty()) return;
    const termination_mode mode = read_termination_mode(options.termination_mode_file);
    if (!mode.is_reclaim()) return;
    const auto& fault = faults[static_cast<std::size_t>(mode.evidence)];
    out.push_back({fault.level, fault.id, cat({mode.message, fault.consequence}),
                   "let a normal deployment write NORMAL_SHUTDOWN to it before the worker starts"});
}

inline constexpr const char* probe_advice =
    "for probes, set OJS_HEALTH_ADDR=0.0.0.0:8081, and use /livez for the liveness probe";

inline void check_settings(const worker_options& options, const container_info& info,
                           const container_probe& probe, std::chrono::milliseconds steps_timeout,
                           std::vector<finding>& out) {
    for (finding& found : check_budget(options, steps_timeout, info)) out.push_back(std::move(found));
    if (info.runtime == "kubernetes" && options.health_address.empty())
        out.push_back({severity::info, "health-kubernetes",
                       "no health address is set: the pod's probes would fail", probe_advice});
    for (const worker_part_factory& factory : options.parts) {
        if (factory.inspect) factory.inspect(options, info, out);
    }
    if (!probe.environment) check_variables(out);
}

// From a terminal or by `docker exec`, not as the container's command. A platform that adapts runs no such processes.
inline bool is_started_by_hand(const container_probe& probe, const container_info& info) {
    const stop_platform* const platform = find_platform(info);
    if (platform == nullptr || platform->adapts_grace_period) return false;
    const process_stat self = read_stat(probe.root, "self");
    const bool is_command = self.pid == 1 || self.parent == 1 || self.session == 1;
    return self.pid != 0 && (self.has_terminal || !is_command);
}

// Replaces the findings about a container's command by one line.
inline void fold_command_findings(std::vector<finding>& findings) {
    std::vector<finding> kept;
    std::string ids;
    for (finding& found : findings) {
        if (is_listed(found.id, "budget-unknown pid1-wrapper pid1-sigtstp")) {
            append(ids, {ids.empty() ? "" : ", ", found.id});
        } else {
            kept.push_back(std::move(found));
        }
    }
    if (!ids.empty())
        kept.push_back(
            {severity::info, "started-by-hand",
             cat({"started by hand in a container; as its command it would have the findings ", ids}),
             "for details, run it with --doctor, or call ojs::doctor()"});
    findings = std::move(kept);
}

OJS_SHUTDOWN_INLINE std::vector<finding> startup_findings(const worker_options& options,
                                                          const container_probe& probe,
                                                          std::chrono::milliseconds steps_timeout) {
    std::vector<finding> out;
    container_info info = detect_container(probe);
    check_settings(options, info, probe, steps_timeout, out);
    check_mode_file(options, info.findings);
    for (finding& found : info.findings) {
        if (found.severity > severity::info) out.push_back(std::move(found));
    }
    if (is_started_by_hand(probe, info)) fold_command_findings(out);
    return out;
}

}  // namespace ojs::detail
