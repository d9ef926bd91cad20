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

inline bool starts_with(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
}
inline bool has_part(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}
inline bool is_listed(std::string_view word, std::string_view list) {
    while (!list.empty()) {
        if (next_part(list, " ") == word) return true;
    }
    return false;
}

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
};

// If several match, the first counts: the scheduler, not the runtime, stops a container.
inline constexpr stop_platform stop_platforms[] = {
    {"kubernetes", "Kubernetes", std::chrono::seconds(30), "terminationGracePeriodSeconds", true},
    {"ecs", "Amazon ECS", std::chrono::seconds(30), "stopTimeout", true},
    {"cloud-run", "Cloud Run", std::chrono::seconds(10), "", true},
    {"nomad", "Nomad", std::chrono::seconds(5), "kill_timeout"},
    {"docker", "Docker", std::chrono::seconds(10), "stop_grace_period or docker stop -t"},
    {"podman", "Podman", std::chrono::seconds(10), "--stop-timeout or podman stop -t"},
    // Any other, with the commonest default.
    {"container", "the container", std::chrono::seconds(10),
     "terminationGracePeriodSeconds, stop_grace_period or docker stop -t"},
};

inline const stop_platform* platform_of(std::string_view runtime) {
    const stop_platform* platform = stop_platforms;
    while (platform + 1 != std::end(stop_platforms) && runtime != platform->runtime) ++platform;
    return platform;
}

// Null: not a container. Nomad's raw_exec runs tasks without one.
inline const stop_platform* find_platform(const container_info& info) {
    return info.in_container || info.runtime == "nomad" ? platform_of(info.runtime) : nullptr;
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
        if (found.runtime.empty() || platform_of(runtime) < platform_of(found.runtime))
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
    std::string_view find(std::string_view name) const {
        const char* const value = find_variable(probe_.environment, std::string(name).c_str());
        return value != nullptr ? value : "";
    }
    void check_variables() {
        const std::string environment = proc_file(probe_.root, "1/environ");
        for (std::string_view rest = environment; !rest.empty();) {
            std::string_view value = next_part(rest, std::string_view("\0", 1));
            if (next_part(value, "=") == "container") check_container_value(value, "/proc/1/environ");
        }
        check_container_value(find("container"), "container");
        for (const evidence_rule& hint : hint_variables) {
            std::string_view second = hint.text;
            std::string_view start = next_part(second, " ");
            const std::string_view name = next_part(start, "=");
            const std::string_view value = find(name);
            if (!value.empty() && starts_with(value, start) && (second.empty() || !find(second).empty()))
                add(std::string(name), &hint, false);
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

enum class pid1_kind {
    direct,    // signals reach us: PID 1 is this program, or the pause process of a pod
    forwards,  // a small init that forwards them
    shell,     // neither forwards them nor dies of them
    init,      // stops its services itself
    unknown
};

// The effect of a SIGTSTP sent to PID 1.
enum class sigtstp_effect { passed_on, stops_us, dropped };

struct pid1_rule {
    const char* text;  // names: comm, or the name in argv[0]
    pid1_kind kind;
    sigtstp_effect sigtstp = sigtstp_effect::passed_on;
};

inline constexpr pid1_rule pid1_rules[] = {
    {"tini tini-static docker-init ojs-init", pid1_kind::forwards},  // the last is as_init()
    {"dumb-init", pid1_kind::forwards, sigtstp_effect::stops_us},
    {"catatonit podman-init", pid1_kind::forwards, sigtstp_effect::dropped},
    {"pause", pid1_kind::direct},
    {"systemd init s6-svscan s6-linux-init runit runit-init runsvdir my_init supervisord openrc-init dinit "
     "finit procd shepherd launchd",
     pid1_kind::init},
    {"sh bash dash ash zsh ksh ksh93 mksh yash fish csh tcsh", pid1_kind::shell},
};

inline pid1_rule find_pid1_rule(const process_facts& facts) {
    std::string argv0_name;
    if (!facts.arguments.empty()) argv0_name = program_name(facts.arguments[0]);
    if (argv0_name == "busybox" && facts.arguments.size() > 1) argv0_name = program_name(facts.arguments[1]);
    // A script has its own name as comm, and its interpreter's in argv[0].
    const pid1_rule* rule = find_rule(pid1_rules, facts.comm, is_listed);
    if (rule == nullptr) rule = find_rule(pid1_rules, argv0_name, is_listed);
    return rule != nullptr ? *rule : pid1_rule{"", pid1_kind::unknown};
}

inline bool is_of_kind(const process_facts& facts, pid1_kind kind) {
    return find_pid1_rule(facts).kind == kind;
}

// Up to the first argument: later ones may be secrets (`sh -c`). Split at blanks: argv[0] may be a whole title.
inline std::string describe_command(const process_facts& facts) {
    std::string command;
    for (const std::string& argument : facts.arguments)
        append(command, {command.empty() ? "" : " ", argument});
    if (command.empty()) command = facts.comm;
    if (command.empty()) return "a process that cannot be read";
    std::string out;
    std::string_view rest = command;
    for (int words = 0; words < 2 && !rest.empty(); ++words) {
        const std::string_view word = next_part(rest, " \t\n");
        const std::size_t assigned = word.find('=');
        append(out, {words == 0 ? "" : " ", word.substr(0, assigned), assigned < word.size() ? "=..." : ""});
    }
    if (!rest.empty()) append(out, {" ..."});
    return cat({"'", printable(out, 120), "'"});
}

// Whether "20:15", as dumb-init takes it, makes SIGTSTP anything but SIGSTOP.
inline bool rewrites_sigtstp(std::string_view rule) {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    return parse_number(next_part(rule, ":"), 64, from) && parse_number(rule, 64, to) &&
           from == static_cast<std::uint64_t>(SIGTSTP) && to != static_cast<std::uint64_t>(SIGSTOP);
}

// Reads the options as dumb-init's getopt_long does: -c, --single-child, -r 20:15, --rewrite=20:15.
inline bool dumb_init_passes_sigtstp(const array<std::string>& arguments,
                                     const environment_lookup& environment) {
    const char* const own_session = find_variable(environment, "DUMB_INIT_SETSID");
    if (own_session != nullptr && std::string_view(own_session) == "0") return true;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        std::string_view option = arguments[i];
        if (option.size() < 2 || option.front() != '-' || option == "--") return false;
        const bool is_long = starts_with(option, "--");
        option.remove_prefix(is_long ? 2 : 1);
        const std::string_view name = is_long ? next_part(option, "=") : std::string_view();
        bool takes_value = is_long && starts_with("rewrite", name);
        if (is_long && starts_with("single-child", name)) return true;
        while (!is_long && !takes_value && !option.empty()) {
            if (option.front() == 'c') return true;
            takes_value = option.front() == 'r';
            option.remove_prefix(1);
        }
        if (!takes_value) continue;
        if (option.empty() && i + 1 < arguments.size()) option = arguments[++i];
        if (rewrites_sigtstp(option)) return true;
    }
    return false;
}

// The shell nearest to PID 1 among our ancestors; empty if there is none, or PID 1 is not an ancestor.
inline std::string find_shell_between(std::string_view root, pid_t parent) {
    std::string shell;
    for (int steps = 0; parent > 1 && steps < 64; ++steps) {
        const process_facts facts = read_process(root, cat({parent}));
        if (is_of_kind(facts, pid1_kind::shell)) shell = describe_command(facts);
        parent = facts.parent;
    }
    return parent == 1 ? shell : std::string();
}

inline std::string describe_container(std::string_view runtime) {
    std::string out = "runs in a container";
    if (!runtime.empty()) append(out, {" (", runtime, ")"});
    return out;
}

inline finding wrapper_finding(const container_info& info, pid_t pid, const process_facts& self,
                               std::string_view wrapper) {
    const std::string program = self.arguments.empty() ? "./worker" : printable(self.arguments[0], 100);
    return {
        severity::warning, "pid1-wrapper",
        cat({"process ", pid, " ", describe_container(info.runtime), " whose PID 1 is ", wrapper,
             ": SIGTERM may not reach the worker, and jobs in flight are then killed with the container"}),
        cat({"write the command in exec form, CMD [\"", program, "\"], or begin it with exec (sh -c 'exec ",
             program, "'), or run it under an init such as tini"})};
}

inline finding sigtstp_finding(std::string_view comm, bool freezes) {
    return {
        freezes ? severity::warning : severity::info, "pid1-sigtstp",
        cat({"PID 1 is ", printable(comm, 64),
             freezes ? ", which turns SIGTSTP into SIGSTOP: `kill -TSTP 1` freezes the worker, instead of "
                       "making it quiet"
                     : ", which does not pass SIGTSTP on: `kill -TSTP 1` does not make the worker quiet"}),
        cat({freezes ? cat({"run dumb-init with --single-child or with --rewrite ", SIGTSTP, ":", SIGTSTP,
                            ", or "})
                     : "",
             "use `worker --signal quiet` or POST /quiet, which reach the worker itself"})};
}

// Appends the findings. True: PID 1 may be the init of a machine.
inline bool check_pid1(const container_probe& probe, container_info& out) {
    const pid_t pid = probe.pid != 0 ? probe.pid : getpid();
    if (pid == 1) return false;
    const process_facts self = read_process(probe.root, "self");
    // PID 1 of the /proc of another PID namespace is not ours.
    const process_facts pid1 = self.pid == pid ? read_process(probe.root, "1") : process_facts();
    pid1_rule rule = find_pid1_rule(pid1);
    if (rule.kind == pid1_kind::unknown && pid1.pid == 1 && is_same_program(probe.root, pid1, self))
        rule.kind = pid1_kind::direct;
    std::string problem;
    if (rule.kind == pid1_kind::shell) problem = ", a shell, which does not pass signals on";
    if (rule.kind == pid1_kind::unknown) problem = ", which may not pass signals on";
    if (rule.kind == pid1_kind::forwards) {
        problem = find_shell_between(probe.root, self.parent);
        if (!problem.empty())
            problem =
                cat({", and which is started by ", problem, ", a shell, which does not pass signals on"});
    }
    if (!problem.empty())
        out.findings.push_back(wrapper_finding(out, pid, self, cat({describe_command(pid1), problem})));
    const bool stops_us = rule.sigtstp == sigtstp_effect::stops_us;
    const bool is_rewritten = stops_us && dumb_init_passes_sigtstp(pid1.arguments, probe.environment);
    if (rule.sigtstp != sigtstp_effect::passed_on && !is_rewritten)
        out.findings.push_back(sigtstp_finding(pid1.comm, stops_us));
    return rule.kind == pid1_kind::init || (rule.kind == pid1_kind::unknown && pid1.comm.empty());
}

}  // namespace detail

OJS_SHUTDOWN_INLINE container_info detect_container(const detail::container_probe& probe) {
    detail::evidence_search search(probe);
    container_info out = std::move(search.found);
    const bool is_machine = detail::check_pid1(probe, out);
    out.in_container = search.conclusive > 0 || (!out.evidence.empty() && !is_machine);
    if (!out.in_container) out.findings.clear();
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
