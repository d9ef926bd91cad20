#pragma once

#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include "../base/detail/files.ipp"
#include "../base/detail/light.hpp"
#include "../base/detail/proc.ipp"
#include "../base/detail/text.hpp"
#include "container.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

template <class Rule, std::size_t count>
const Rule* find_rule(const Rule (&rules)[count], std::string_view text,
                      bool (*matches)(std::string_view text, std::string_view of_rule)) {
    for (const Rule& rule : rules) {
        if (matches(text, rule.text)) return &rule;
    }
    return nullptr;
}

// How a platform stops a process.
struct stop_platform {
    const char* runtime;
    const char* name;
    std::chrono::milliseconds grant;   // its default time from SIGTERM to SIGKILL
    const char* setting;               // the setting that changes it; empty: none
    bool adapts_grace_period = false;  // shortens an unset grace period to fit
    bool needs_no_container = false;
};

// If several match, the first counts: the scheduler, not the runtime, stops a container. docs/operating.md has the table.
inline constexpr stop_platform stop_platforms[] = {
    {"kubernetes", "Kubernetes", std::chrono::seconds(30), "terminationGracePeriodSeconds", true},
    {"ecs", "Amazon ECS", std::chrono::seconds(30), "stopTimeout", true},
    {"cloud-run", "Cloud Run", std::chrono::seconds(10), "", true},
    {"nomad", "Nomad", std::chrono::seconds(5), "kill_timeout", false, true},  // raw_exec has no container
    {"docker", "Docker", std::chrono::seconds(10), "stop_grace_period or docker stop -t"},
    {"podman", "Podman", std::chrono::seconds(10), "--stop-timeout or podman stop -t"},
    // In a container or not.
    {"pm2", "PM2", std::chrono::milliseconds(1600), "kill_timeout", false, true},
    {"s6", "s6-overlay", std::chrono::seconds(3), "S6_KILL_GRACETIME", false, true},
    {"fly", "Fly.io", std::chrono::seconds(5), "kill_timeout in fly.toml", false, true},
    {"supervisord", "supervisord", std::chrono::seconds(10), "stopwaitsecs", false, true},
    {"heroku", "Heroku", std::chrono::seconds(30), "", true, true},
    // Any other, with the commonest default.
    {"container", "the container", std::chrono::seconds(10),
     "terminationGracePeriodSeconds, stop_grace_period or docker stop -t"},
};

inline const stop_platform* platform_or_default(std::string_view runtime) {
    const stop_platform* platform = stop_platforms;
    while (platform + 1 != std::end(stop_platforms) && runtime != platform->runtime) ++platform;
    return platform;
}

// What stops this process: its supervisor, or else what runs the container. Null: unknown.
inline const stop_platform* find_platform(const container_info& info) {
    const auto* const found = platform_or_default(info.supervisor.empty() ? info.runtime : info.supervisor);
    return info.in_container || found->needs_no_container ? found : nullptr;
}

struct evidence_rule {
    const char* text;
    const char* runtime;  // empty: unknown
    bool conclusive = true;
};

inline constexpr evidence_rule marker_files[] = {
    {"/run/systemd/container", ""},  // contains a value of `container=`
    {"/.dockerenv", "docker"},
    {"/run/.containerenv", "podman"},
    {"/var/run/secrets/kubernetes.io/serviceaccount/namespace", "kubernetes"},
};

// Variables, possibly inherited: NAME, NAME=PREFIX of the value, or two that must both be set.
inline constexpr evidence_rule hint_variables[] = {
    {"KUBERNETES_SERVICE_HOST", "kubernetes"},
    {"ECS_CONTAINER_METADATA_URI_V4", "ecs"},
    {"ECS_CONTAINER_METADATA_URI", "ecs"},
    {"AWS_EXECUTION_ENV=AWS_ECS_", "ecs"},
    {"K_SERVICE K_REVISION", "cloud-run"},  // Knative sets both, too; Kubernetes counts first
    {"CLOUD_RUN_JOB", "cloud-run"},
    {"CLOUD_RUN_WORKER_POOL", "cloud-run"},
    {"NOMAD_ALLOC_ID", "nomad"},
    {"NOMAD_TASK_NAME", "nomad"},
};

// Likewise, of supervisors and platforms that are no evidence of a container. The one with the shortest time is first.
inline constexpr evidence_rule supervisor_variables[] = {
    {"pm_id", "pm2"},   {"PM2_HOME", "pm2"}, {"FLY_MACHINE_ID", "fly"}, {"SUPERVISOR_ENABLED", "supervisord"},
    {"DYNO", "heroku"},
};

// Values of `container=`. Others may belong to an unrelated variable.
inline constexpr evidence_rule container_values[] = {
    {"docker", "docker"},
    {"podman", "podman"},
    {"lxc lxc-libvirt", "lxc"},
    {"systemd-nspawn", "systemd-nspawn"},
    {"oci", ""},
    {"buildah", "buildah"},
    {"crio", "cri-o"},
    {"containerd", "containerd"},
    {"kube", "kubernetes"},
};

// Parts of the paths that runtimes mount.
inline constexpr evidence_rule storage_paths[] = {
    {"/kubelet/pods/", "kubernetes"},   {"/docker/", "docker"},
    {"/nerdctl/", "containerd"},        {"/containers/storage/", "podman"},
    {"/overlay-containers/", "podman"}, {"/containerd/", "containerd"},
    {"io.containerd.", "containerd"},   {"/lxc/", "lxc"},
};

// Parts of cgroup_shape(). docker.service and libpod-conmon-# are the runtimes, outside containers.
inline constexpr evidence_rule cgroup_paths[] = {
    {"/kubepods", "kubernetes"},
    {"/docker-#", "docker"},
    {"/docker/#", "docker"},
    {"/libpod-#", "podman"},
    {"/cri-containerd-#", "containerd"},
    {"/cri-containerd/#", "containerd"},
    {"/nerdctl-#", "containerd"},
    {"/crio-#", "cri-o"},
    {"/lxc.payload", "lxc"},
    {"/lxc/", "lxc"},
    {"/systemd-nspawn@", "systemd-nspawn"},
    {"/ecs/", "ecs"},
    {"/garden/", "garden"},
    {"/nomad/", "nomad", false},  // raw_exec tasks run without a container
    {"/#", ""},
};

// A cgroup file with '/' for ':' (containerd separates some names by it) and '#' for a container id (64 hex digits).
inline std::string cgroup_shape(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::size_t digits = detail::min(text.find_first_not_of("0123456789abcdef"), text.size());
        const std::string_view after = text.substr(digits, 1);
        const bool is_whole = (out.empty() || has_part("/-", {&out.back(), 1})) && has_part(".:/\n", after);
        out += digits == 64 && is_whole ? "#" : text.substr(0, digits);
        out += after == ":" ? "/" : after;
        text.remove_prefix(digits + after.size());
    }
    return out;
}

// The sources of the mounts that runtimes make; on the host, mounts of containers are elsewhere. A line is "ID PARENT
// DEVICE ROOT MOUNT_POINT OPTIONS [MORE...] - TYPE SOURCE SUPER_OPTIONS".
inline std::string mount_sources(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        std::string_view fields = next_part(text, "\n");
        for (int skipped = 0; skipped < 3; ++skipped) next_part(fields, " ");
        const std::string_view source = next_part(fields, " ");
        const std::string_view point = next_part(fields, " ");
        if (!is_listed(point, "/ /etc/hosts /etc/hostname /etc/resolv.conf /dev/termination-log")) continue;
        const bool is_overlay =
            has_part(fields, " - overlay ") || has_part(fields, " - fuse.fuse-overlayfs ");
        append(out, {is_overlay && point == "/" ? fields : source, "\n"});
    }
    return out;
}

class evidence_search {
  public:
    explicit evidence_search(const container_probe& probe) : probe_(probe) {
        check_marker_files();
        check_variables();
        for (const char* name : {"self/cgroup", "1/cgroup"}) {
            const std::string shape = cgroup_shape(proc_file(probe.root, name));
            const evidence_rule* const rule = find_rule(cgroup_paths, shape, has_part);
            if (rule != nullptr) add(cat({"/proc/", name}), rule, rule->conclusive);
        }
        check_mounts();
        // The first PID namespace of Linux has this number (PROC_PID_INIT_INO).
        const std::string link = proc_link(probe.root, "self/ns/pid");
        if (!link.empty() && link != "pid:[4026531836]") add("/proc/self/ns/pid", nullptr, false);
    }

    container_info found;
    std::ptrdiff_t conclusive = 0;  // how many; they come first in `evidence`

  private:
    void add(std::string source, const evidence_rule* rule, bool is_conclusive) {
        const char* const runtime = rule != nullptr ? rule->runtime : "";
        const auto first_hint = found.evidence.begin() + conclusive;
        found.evidence.insert(is_conclusive ? first_hint : found.evidence.end(), std::move(source));
        conclusive += is_conclusive ? 1 : 0;
        if (found.runtime.empty() || platform_or_default(runtime) < platform_or_default(found.runtime))
            found.runtime = runtime;
    }
    void check_marker_files() {
        for (const evidence_rule& marker : marker_files) {
            const small_file file = read_small_file(cat({probe_.root, marker.text}), max_proc_file_size);
            if (file.status != file_status::read && file.sys_errno != EACCES) continue;
            const auto* const named = find_rule(container_values, trim_blanks(file.text, "\n "), is_listed);
            add(marker.text, *marker.runtime == '\0' ? named : &marker, true);
        }
    }
    void check_container_value(std::string_view value, const char* source) {
        value = trim_blanks(value, "\n ");
        const evidence_rule* const rule = find_rule(container_values, value, is_listed);
        if (!value.empty()) add(source, rule, rule != nullptr);
    }
    std::string_view variable(std::string_view name) const {
        const char* const value = find_variable(probe_.environment, std::string(name).c_str());
        return value != nullptr ? value : "";
    }
    void check_variables() {
        const std::string environment = proc_file(probe_.root, "1/environ");
        bool is_found = false;  // the first counts, as for getenv(3)
        for (std::string_view rest = environment; !rest.empty() && !is_found;) {
            std::string_view value = next_part(rest, std::string_view("\0", 1));
            is_found = next_part(value, "=") == "container";
            if (is_found) check_container_value(value, "/proc/1/environ");
        }
        check_container_value(variable("container"), "container");
        for (const evidence_rule& hint : hint_variables) {
            std::string_view second = hint.text;
            std::string_view start = next_part(second, " ");
            const std::string_view name = next_part(start, "=");
            const std::string_view value = variable(name);
            if (!value.empty() && starts_with(value, start) && (second.empty() || !variable(second).empty()))
                add(std::string(name), &hint, false);
        }
        for (const evidence_rule& supervisor : supervisor_variables) {
            if (found.supervisor.empty() && !variable(supervisor.text).empty())
                found.supervisor = supervisor.runtime;
        }
    }
    void check_mounts() {
        const std::string sources = mount_sources(proc_file(probe_.root, "self/mountinfo"));
        const evidence_rule* const rule = find_rule(storage_paths, sources, has_part);
        const bool is_overlay = has_part(sources, " - ");
        if (rule != nullptr || is_overlay) add("/proc/self/mountinfo", rule, rule != nullptr);
    }

    const container_probe& probe_;
};

inline constexpr const char* shell_names = "sh bash dash ash zsh ksh ksh93 mksh yash fish csh tcsh";
inline constexpr const char* init_names =
    "systemd init s6-svscan s6-linux-init runit runit-init runsvdir my_init supervisord openrc-init dinit "
    "finit procd shepherd launchd";

// A script has its own name as comm, and its interpreter's in argv[0].
inline std::string interpreter_name(const process_facts& facts) {
    const array<std::string>& arguments = facts.arguments;
    const std::string out = arguments.empty() ? "" : program_name(arguments[0]);
    return out == "busybox" && arguments.size() > 1 ? program_name(arguments[1]) : out;
}
inline bool runs_one_of(const process_facts& facts, std::string_view names) {
    return is_listed(facts.comm, names) || is_listed(interpreter_name(facts), names);
}

inline std::string describe_container(std::string_view runtime) {
    return cat({"runs in a container", runtime.empty() ? "" : " (", runtime, runtime.empty() ? "" : ")"});
}

inline finding wrapper_finding(const container_info& info, const process_facts& self,
                               std::string_view wrapper) {
    const std::string program = self.arguments.empty() ? "./worker" : printable(self.arguments[0], 100);
    return {
        severity::warning, "pid1-wrapper",
        cat({"process ", self.pid, " ", describe_container(info.runtime), " whose PID 1 is ", wrapper,
             ": SIGTERM may not reach the worker, and jobs in flight are then killed with the container"}),
        cat({"write the command in exec form, CMD [\"", program, "\"], or begin it with exec (sh -c 'exec ",
             program, "'), or run it under an init such as tini"})};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE container_info detect_container(const detail::container_probe& probe) {
    using namespace detail;
    evidence_search search(probe);
    container_info out = std::move(search.found);
    const pid_t pid = probe.pid != 0 ? probe.pid : getpid();
    const process_facts self = read_process(probe.root, "self");
    // PID 1 of the /proc of another PID namespace is not ours.
    const process_facts pid1 = self.pid == pid ? read_process(probe.root, "1") : process_facts();
    const bool is_machine = pid != 1 && (pid1.comm.empty() || runs_one_of(pid1, init_names));
    out.in_container = search.conclusive > 0 || (!out.evidence.empty() && !is_machine);
    const std::string parent = out.in_container ? process_name(probe.root, cat({self.parent})) : "";
    if (parent == "s6-supervise" && out.supervisor != "pm2") out.supervisor = "s6";
    if (out.in_container && pid != 1 && runs_one_of(pid1, shell_names))
        out.findings.push_back(wrapper_finding(
            out, self, cat({"'", printable(pid1.comm, 64), "', a shell, which does not pass signals on"})));
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
