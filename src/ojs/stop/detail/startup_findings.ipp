// startup_findings: what prevents a clean stop, for the log at the start.
#pragma once

#include "../../base/detail/text.hpp"
#include "../../host/container.ipp"
#include "../../host/termination_mode.hpp"
#include "../loop_options.ipp"

extern "C" char** environ;

namespace ojs::detail {

// The drain and what follows it must fit into the time from SIGTERM to SIGKILL. doctor() says more. [GS 6.3]
inline void check_stop_time(const loop_options& options, const stop_platform* platform,
                            std::chrono::milliseconds steps_timeout, std::vector<finding>& out) {
    const bool is_set = options.container_grace_period.count() > 0;
    const stop_budget budget = budget_of(options, platform, steps_timeout);
    if ((!is_set && platform == nullptr) || budget.fits()) return;
    const auto need =
        capped_sum(budget.drain, after_drain(options.times, steps_timeout, std::chrono::seconds(10)));
    out.push_back(
        {severity::warning,
         !is_set                          ? "budget-unknown"
         : budget.drain >= budget.granted ? "budget-exceeded"
                                          : "budget-tight",
         cat({"the drain (", format_duration(budget.drain), ") and the reports after it (",
              format_duration(budget.reports), ") need more than the ", format_duration(budget.granted),
              " that ", is_set ? "the container grants" : cat({platform->name, " grants by default"})}),
         cat({need == no_limit ? ""
                               : cat({"raise that time to ", format_duration(need),
                                      " and set OJS_CONTAINER_GRACE_PERIOD to the same, or "}),
              "lower OJS_SHUTDOWN_GRACE_PERIOD"})});
}

// "variable-unknown" for each variable OJS_* that is not one of these.
inline std::vector<finding> unknown_variables(const array<std::string>& known) {
    std::vector<finding> out;
    for (const char* const* entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
        std::string_view name = *entry;
        name = next_part(name, "=");
        // Kubernetes sets some for every service, which may be named "ojs".
        bool is_known = name.find("_SERVICE_") != name.npos || name.find("_PORT") != name.npos;
        for (const std::string& each : known) is_known = is_known || each == name;
        if (starts_with(name, "OJS_") && !is_known)
            out.push_back({severity::warning, "variable-unknown",
                           cat({printable(name), " is set, but the worker does not know this variable"}),
                           "unset it, or see docs/options.md"});
    }
    return out;
}

inline constexpr const char* mode_file_fix =
    "let a normal deployment write NORMAL_SHUTDOWN to it before the worker starts";
// Not in the words of a stop, which operators search for.
inline std::string describe_mode_file(const termination_mode& mode) {
    const bool is_old = mode.evidence == termination_evidence::reclaim;
    return cat({mode.found, is_old ? " (left over from an earlier stop?)" : "",
                ": a stop by signal hands jobs back at once"});
}

// From a terminal, and not by a supervisor or a platform that adapts, which runs no such processes.
inline bool is_started_by_hand(const container_probe& probe, const container_info& info) {
    return info.in_container && !info.platform->adapts_grace_period &&
           read_stat(probe.root, "self").has_terminal;
}

// What a worker warns of at its start: the time for a stop is too short ("budget-..."), PID 1 is a shell
// ("pid1-wrapper"), the mode file is wrong. doctor() advises. Thread-safe while the environment is stable.
inline std::vector<finding> startup_findings(const loop_options& options, const container_probe& probe = {},
                                             std::chrono::milliseconds steps_timeout = {}) {
    const container_info info = detect_container(probe);
    const bool by_hand = is_started_by_hand(probe, info);  // not the container's own command
    std::vector<finding> out;
    if (!by_hand) check_shell(probe, info, out);
    check_stop_time(options, by_hand ? nullptr : info.platform, steps_timeout, out);
    const std::string& file = options.termination_mode_file;
    const termination_mode mode = file.empty() ? termination_mode() : read_termination_mode(file);
    if (mode.is_reclaim() && mode.evidence != termination_evidence::missing)  // it may be written later
        out.push_back({severity::warning, "mode-file", describe_mode_file(mode), mode_file_fix});
    return out;
}

}  // namespace ojs::detail
