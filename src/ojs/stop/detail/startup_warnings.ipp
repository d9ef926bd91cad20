// startup_warnings: what prevents a clean stop, for the log at the start.
#pragma once

#include "../../base/detail/text.hpp"
#include "../../host/container.ipp"
#include "../loop_options.ipp"

namespace ojs::detail {

inline void write_finding(const logger& log, std::string_view id, std::string_view problem, std::string_view fix) {
    log.write(log_level::warn, problem, {field("finding", id), field("fix", fix)});
}

// The drain and what follows it must fit into the time from SIGTERM to SIGKILL. doctor() says more. [GS 6.3]
inline void check_stop_time(const logger& log, const loop_options& options, const stop_platform* platform,
                            std::chrono::milliseconds steps_timeout) {
    const std::chrono::milliseconds set = options.container_grace_period;
    const bool is_set = set.count() > 0;
    if (!is_set && platform == nullptr) return;
    const std::chrono::milliseconds granted = is_set ? set : platform->grant;
    const auto drain = capped_sum(options.times.shutdown_grace_period, options.prestop_delay);
    const auto reports = detail::max<std::chrono::milliseconds>(std::chrono::seconds(5),
                                                                capped_sum(options.times.stop_timeout, steps_timeout));
    if (drain < granted && capped_sum(drain, reports) <= granted) return;
    const char* const id = !is_set ? "budget-unknown" : drain >= granted ? "budget-exceeded" : "budget-tight";
    write_finding(log, id,
                  cat({"the drain (", format_duration(drain), ") and the reports after it (", format_duration(reports),
                       ") need more than the ", format_duration(granted), " that ",
                       is_set ? "the container grants" : cat({platform->name, " grants by default"})}),
                  "raise that time, and set OJS_CONTAINER_GRACE_PERIOD to it, or lower "
                  "OJS_SHUTDOWN_GRACE_PERIOD");
}

// PID 1 of the container is a shell. [GS 4.3]
inline void check_shell(const logger& log, const container_info& info, const container_probe& probe) {
    const pid_t pid = probe.pid != 0 ? probe.pid : getpid();
    // PID 1 of the /proc of another PID namespace is not ours.
    if (!info.in_container || pid == 1 || read_process(probe.root, "self").pid != pid) return;
    const process_facts pid1 = read_process(probe.root, "1");
    if (is_listed(pid1.comm, shell_names) || is_listed(interpreter_name(pid1), shell_names))
        write_finding(log, "pid1-wrapper",
                      cat({"PID 1 of the container is '", printable(pid1.comm, 64),
                           "', a shell, which does not pass signals on: SIGTERM may not reach the worker"}),
                      "write the command in exec form, begin it with exec, or run it under an init such as tini");
}

// Not in a container that was entered from a terminal.
inline void warn_at_start(const logger& log, const loop_options& options, std::chrono::milliseconds steps_timeout,
                          const container_probe& probe = {}) {
    const container_info info = detect_container(probe);
    const bool by_hand =
        info.in_container && !info.platform->adapts_grace_period && read_stat(probe.root, "self").has_terminal;
    if (!by_hand) check_shell(log, info, probe);
    check_stop_time(log, options, by_hand ? nullptr : info.platform, steps_timeout);
}

}  // namespace ojs::detail
