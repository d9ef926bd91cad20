#pragma once

#include <signal.h>
#include <unistd.h>

#include "../base/detail/text.hpp"
#include "container.hpp"
#include "detail/container_evidence.ipp"
#include "detail/pid1.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline finding wrapper_finding(const container_info& info, std::string_view wrapper) {
    const std::string program = info.program.empty() ? "./worker" : info.program;
    finding out;
    out.severity = severity::warning;
    out.id = "pid1-wrapper";
    out.what = cat({"process ", info.pid, " runs in a container",
                    info.runtime.empty() ? "" : cat({" (", info.runtime, ")"}), " whose PID 1 is ", wrapper,
                    ": SIGTERM may never get here, and jobs in flight are then killed with the container"});
    out.fix =
        cat({"write the command in exec form, CMD [\"", program, "\"], or begin it with exec (sh -c 'exec ",
             program, "'), or run it under an init such as tini"});
    return out;
}

inline finding sigtstp_finding(const container_info& info) {
    const bool freezes = info.pid1.sigtstp == sigtstp_fate::stops_us;
    finding out;
    out.severity = freezes ? severity::warning : severity::info;
    out.id = "pid1-sigtstp";
    out.what = cat(
        {"PID 1 is ", info.pid1.comm, ", which ",
         freezes ? "turns SIGTSTP into SIGSTOP: `kill -TSTP 1` freezes the worker, instead of making it quiet"
                 : "does not pass SIGTSTP on: `kill -TSTP 1` does not make the worker quiet"});
    const std::string as_it_is = cat({SIGTSTP, ":", SIGTSTP});
    out.fix =
        cat({freezes ? cat({"run dumb-init with --single-child or with --rewrite ", as_it_is, ", or "}) : "",
             "use `worker --signal quiet` or POST /quiet, which reach the worker itself"});
    return out;
}

}  // namespace detail

OJS_SHUTDOWN_INLINE container_info detect_container(const container_probe& where) {
    container_info out;
    out.pid = where.pid != 0 ? where.pid : getpid();
    detail::look_at_pid1(where, out);
    detail::evidence_list evidence(out.evidence);
    detail::look_at_files(where, evidence);
    detail::look_at_variables(where, evidence);
    detail::look_at_cgroup(where, "self/cgroup", evidence);
    detail::look_at_cgroup(where, "1/cgroup", evidence);
    detail::look_at_mounts(where, evidence);
    detail::look_at_namespace(where, evidence);
    out.in_container = evidence.is_conclusive() || (!out.evidence.empty() && detail::is_no_machine(out.pid1));
    out.runtime = detail::choose_runtime(out.evidence);
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<finding> check_pid1(const container_info& info) {
    std::vector<finding> out;
    if (!info.in_container) return out;
    const std::string& command = info.pid1.command.empty() ? info.pid1.comm : info.pid1.command;
    const std::string named =
        command.empty() ? "a process that cannot be read" : detail::cat({"'", command, "'"});
    if (info.pid1.kind == pid1_kind::shell) {
        out.push_back(detail::wrapper_finding(info, named + ", a shell, which does not pass signals on"));
    } else if (info.pid1.kind == pid1_kind::unknown) {
        out.push_back(detail::wrapper_finding(info, named + ", which may not pass signals on"));
    } else if (!info.shell_between.empty()) {
        out.push_back(detail::wrapper_finding(
            info, detail::cat({named, ", and which is started by '", info.shell_between,
                               "', a shell, which does not pass signals on"})));
    }
    if (info.pid1.sigtstp != sigtstp_fate::passed_on) out.push_back(detail::sigtstp_finding(info));
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
