// startup_warnings: what prevents a clean stop, for the log at the start.
#pragma once

#include "../../base/detail/text.hpp"
#include "../../host/container.ipp"
#include "../loop_options.ipp"

namespace ojs::detail {

inline void write_finding(const logger& log, const char* id, std::string problem, std::string fix) {
    log.write(log_level::warn, std::move(problem), {field("finding", id), field("fix", std::move(fix))});
}

// The drain and what follows it must fit into the time from SIGTERM to SIGKILL. doctor() says more. [GS 6.3]
inline void check_stop_time(const logger& log, const loop_options& options, const stop_platform* platform,
                            std::chrono::milliseconds steps_timeout) {
    const stop_budget budget = budget_of(options, platform, steps_timeout);
    if (budget.granted.count() <= 0 || budget.fits()) return;
    const bool is_set = options.container_grace_period.count() > 0;
    const char* const id = !is_set                          ? "budget-unknown"
                           : budget.drain >= budget.granted ? "budget-exceeded"
                                                            : "budget-tight";
    write_finding(
        log, id,
        cat({"the drain (", format_duration(budget.drain), ") and the reports after it (",
             format_duration(budget.reports), ") need more than the ", format_duration(budget.granted),
             " that ", is_set ? "the container grants" : cat({platform->name, " grants by default"})}),
        "raise that time, and set OJS_CONTAINER_GRACE_PERIOD to it, or lower "
        "OJS_SHUTDOWN_GRACE_PERIOD");
}

// PID 1 of the container is a shell. [GS 4.3]
inline void check_shell(const logger& log, const container_info& info, const container_probe& probe) {
    const pid_t pid = probe.pid != 0 ? probe.pid : getpid();
    const process_facts self = read_process(probe.root, "self");
    // PID 1 of the /proc of another PID namespace is not ours.
    if (!info.in_container || pid == 1 || self.pid != pid) return;
    const process_facts pid1 = read_process(probe.root, "1");
    if (is_listed(pid1.comm, shell_names) || is_listed(interpreter_name(pid1), shell_names))
        write_finding(log, "pid1-wrapper",
                      wrapper_problem(info, self, cat({"'", printable(pid1.comm, 64), "', ", shell_effect})),
                      wrapper_fix(self));
}

// Not in a container that was entered from a terminal.
inline void warn_at_start(const logger& log, const loop_options& options,
                          std::chrono::milliseconds steps_timeout, const container_probe& probe = {}) {
    const container_info info = detect_container(probe);
    const bool by_hand = info.in_container && !info.platform->adapts_grace_period &&
                         read_stat(probe.root, "self").has_terminal;
    if (!by_hand) check_shell(log, info, probe);
    check_stop_time(log, options, by_hand ? nullptr : info.platform, steps_timeout);
}

}  // namespace ojs::detail
