#pragma once

#include <signal.h>
#include <unistd.h>

#include "../base/detail/text.hpp"
#include "container.hpp"
#include "detail/container_evidence.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline finding wrapper_finding(const container_info& info, std::string_view wrapper) {
    const std::string program = info.program.empty() ? "./worker" : info.program;
    return {
        severity::warning, "pid1-wrapper",
        cat({"process ", info.pid, " runs in a container",
             info.runtime.empty() ? "" : cat({" (", info.runtime, ")"}), " whose PID 1 is ", wrapper,
             ": SIGTERM may never get here, and jobs in flight are then killed with the container"}),
        cat({"write the command in exec form, CMD [\"", program, "\"], or begin it with exec (sh -c 'exec ",
             program, "'), or run it under an init such as tini"})};
}

inline finding sigtstp_finding(const container_info& info) {
    const bool freezes = info.pid1.sigtstp == sigtstp_fate::stops_us;
    const std::string rewrite =
        cat({"run dumb-init with --single-child or with --rewrite ", SIGTSTP, ":", SIGTSTP, ", or "});
    return {
        freezes ? severity::warning : severity::info, "pid1-sigtstp",
        cat({"PID 1 is ", info.pid1.comm, ", which ",
             freezes
                 ? "turns SIGTSTP into SIGSTOP: `kill -TSTP 1` freezes the worker, instead of making it quiet"
                 : "does not pass SIGTSTP on: `kill -TSTP 1` does not make the worker quiet"}),
        cat({freezes ? rewrite : "",
             "use `worker --signal quiet` or POST /quiet, which reach the worker itself"})};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE container_info detect_container(const container_probe& where) {
    container_info out;
    out.pid = where.pid != 0 ? where.pid : getpid();
    detail::look_at_pid1(where, out);
    detail::look_at_files(where, out.evidence);
    detail::look_at_variables(where, out.evidence);
    detail::look_at_cgroup(where, "self/cgroup", out.evidence);
    detail::look_at_cgroup(where, "1/cgroup", out.evidence);
    detail::look_at_mounts(where, out.evidence);
    detail::look_at_namespace(where, out.evidence);
    out.in_container =
        !out.evidence.empty() && (out.evidence.front().conclusive || detail::is_no_machine(out.pid1));
    out.runtime = detail::choose_runtime(out.evidence);
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<finding> check_pid1(const container_info& info) {
    std::vector<finding> out;
    if (!info.in_container) return out;
    const std::string& command = info.pid1.command.empty() ? info.pid1.comm : info.pid1.command;
    const std::string named =
        command.empty() ? "a process that cannot be read" : detail::cat({"'", command, "'"});
    std::string doubt;
    if (info.pid1.kind == pid1_kind::shell) {
        doubt = ", a shell, which does not pass signals on";
    } else if (info.pid1.kind == pid1_kind::unknown) {
        doubt = ", which may not pass signals on";
    } else if (!info.shell_between.empty()) {
        doubt = detail::cat({", and which is started by '", info.shell_between,
                             "', a shell, which does not pass signals on"});
    }
    if (!doubt.empty()) out.push_back(detail::wrapper_finding(info, named + doubt));
    if (info.pid1.sigtstp != sigtstp_fate::passed_on) out.push_back(detail::sigtstp_finding(info));
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
