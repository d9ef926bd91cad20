// container_evidence: what says that this is a container, of which runtime, and what PID 1 is.
#pragma once

#include <errno.h>
#include <signal.h>

#include "../../base/detail/files.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/proc.ipp"
#include "../../base/duration.hpp"

namespace ojs::detail {

// ---- PID 1, and what it does with our signals ----

struct program_rule {
    const char* names;
    pid1_kind kind;
    sigtstp_fate sigtstp = sigtstp_fate::passed_on;
};

// By comm, or by the name the program was called by.
inline constexpr program_rule program_rules[] = {
    {"tini tini-static docker-init ojs-init", pid1_kind::forwards},  // the last is as_init()
    {"dumb-init", pid1_kind::forwards, sigtstp_fate::stops_us},
    {"catatonit podman-init", pid1_kind::forwards, sigtstp_fate::dropped},
    {"pause", pid1_kind::pause},
    {"systemd init s6-svscan s6-linux-init runit runit-init runsvdir my_init supervisord openrc-init dinit "
     "finit procd shepherd launchd",
     pid1_kind::init},
    {"sh bash dash ash zsh ksh ksh93 mksh yash fish csh tcsh", pid1_kind::shell},
};

inline bool starts_with(std::string_view text, std::string_view start) {
    return text.substr(0, start.size()) == start;
}

inline bool holds(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// A command line for the log, up to its first argument: later ones may hold secrets, as in `sh -c "TOKEN=...
// ./worker"`. By words, as some programs write their whole title into the first string.
inline std::string shown_command(const array<std::string>& arguments) {
    std::string whole;
    for (const std::string& each : arguments) append(whole, {whole.empty() ? "" : " ", each});
    std::string out;
    std::string_view rest = whole;
    for (int words = 0; words < 2 && !rest.empty(); ++words) {
        const std::string_view word = next_part(rest, " \t\n");
        const std::size_t assigned = word.find('=');
        append(out, {words == 0 ? "" : " ", word.substr(0, assigned)});
        if (assigned != std::string_view::npos) append(out, {"=..."});
    }
    if (!rest.empty()) append(out, {" ..."});
    return printable(out, 120);
}

inline const program_rule* find_program_rule(const process_facts& facts) {
    std::string called;
    if (!facts.arguments.empty()) called = program_name(facts.arguments[0]);
    if (called == "busybox" && facts.arguments.size() > 1) called = program_name(facts.arguments[1]);
    // A script has its own name as comm, and its interpreter's as the name it was called by.
    for (const std::string& name : {facts.comm, called}) {
        for (const program_rule& rule : program_rules) {
            for (std::string_view names = rule.names; !names.empty();) {
                if (name == next_part(names, " ")) return &rule;
            }
        }
    }
    return nullptr;
}

inline bool is_of_kind(const process_facts& facts, pid1_kind kind) {
    const program_rule* rule = find_program_rule(facts);
    return rule != nullptr && rule->kind == kind;
}

// Whether "20:15", as dumb-init takes it, makes SIGTSTP anything but SIGSTOP.
inline bool rewrites_sigtstp(std::string_view rule) {
    std::uint64_t from = 0;
    std::uint64_t to = 0;
    return parse_number(next_part(rule, ":"), 64, from) && parse_number(rule, 64, to) &&
           from == static_cast<std::uint64_t>(SIGTSTP) && to != static_cast<std::uint64_t>(SIGSTOP);
}

// Reads the options as dumb-init's getopt_long does: -c, --single-child, -r 20:15, --rewrite=20:15.
inline bool dumb_init_passes_sigtstp(const array<std::string>& arguments) {
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

inline sigtstp_fate fate_of_sigtstp(const program_rule& rule, const process_facts& facts,
                                    const environment_lookup& environment) {
    if (rule.sigtstp != sigtstp_fate::stops_us) return rule.sigtstp;
    const char* own_session = find_variable(environment, "DUMB_INIT_SETSID");
    const bool single = own_session != nullptr && std::string_view(own_session) == "0";
    return single || dumb_init_passes_sigtstp(facts.arguments) ? sigtstp_fate::passed_on : rule.sigtstp;
}

// The shell next to PID 1 on the way from it to us; empty if there is none, or if PID 1 is no ancestor of ours.
inline std::string find_shell_between(std::string_view root, pid_t parent) {
    std::string shell;
    for (int steps = 0; parent > 1 && steps < 64; ++steps) {
        const process_facts facts = read_process(root, cat({parent}));
        if (is_of_kind(facts, pid1_kind::shell)) shell = shown_command(facts.arguments);
        parent = facts.parent;
    }
    return parent == 1 ? shell : std::string();
}

inline void look_at_pid1(const container_probe& where, container_info& out) {
    const process_facts self = read_process(where.root, "self");
    if (!self.arguments.empty()) out.program = printable(self.arguments[0], 100);
    if (out.pid == 1) {
        out.pid1 = {pid1_kind::self, self.comm, shown_command(self.arguments), sigtstp_fate::passed_on};
        return;
    }
    if (self.pid != out.pid) return;  // a /proc of another PID namespace: its PID 1 is not ours
    const process_facts first = read_process(where.root, "1");
    out.pid1.comm = printable(first.comm, 64);
    out.pid1.command = shown_command(first.arguments);
    if (const program_rule* rule = find_program_rule(first)) {
        out.pid1.kind = rule->kind;
        out.pid1.sigtstp = fate_of_sigtstp(*rule, first, where.environment);
    } else if (first.pid == 1 && same_program(where.root, first, self)) {
        out.pid1.kind = pid1_kind::self;
    }
    if (out.pid1.kind == pid1_kind::forwards) out.shell_between = find_shell_between(where.root, self.parent);
}

// ---- evidence of a container ----

struct named_runtime {
    const char* name;
    const char* runtime;
};

// Files that only containers have.
inline constexpr named_runtime marker_files[] = {
    {"/run/systemd/container", ""},  // its content says which
    {"/.dockerenv", "docker"},
    {"/run/.containerenv", "podman"},
    {"/var/run/secrets/kubernetes.io/serviceaccount/namespace", "kubernetes"},
};

struct hint_variable {
    const char* name;
    const char* runtime;
    const char* prefix = "";          // of the value
    const char* companion = nullptr;  // another variable that must be set too
};

// Variables that may also have been inherited, or set by hand.
inline constexpr hint_variable hint_variables[] = {
    {"KUBERNETES_SERVICE_HOST", "kubernetes"},
    {"ECS_CONTAINER_METADATA_URI_V4", "ecs"},
    {"ECS_CONTAINER_METADATA_URI", "ecs"},
    {"AWS_EXECUTION_ENV", "ecs", "AWS_ECS_"},
    {"K_SERVICE", "cloud-run", "", "K_REVISION"},  // also Knative's; Kubernetes is found first
    {"CLOUD_RUN_JOB", "cloud-run"},
    {"CLOUD_RUN_WORKER_POOL", "cloud-run"},
    {"NOMAD_ALLOC_ID", "nomad"},
    {"NOMAD_TASK_NAME", "nomad"},
};

// Values of `container=`. Others may come from a variable that means something else.
inline constexpr named_runtime container_values[] = {
    {"docker", "docker"},
    {"podman", "podman"},
    {"lxc", "lxc"},
    {"lxc-libvirt", "lxc"},
    {"systemd-nspawn", "systemd-nspawn"},
    {"oci", ""},
    {"buildah", "buildah"},
    {"crio", "cri-o"},
    {"containerd", "containerd"},
    {"kube", "kubernetes"},
    {"rkt", "rkt"},
    {"openvz", "openvz"},
    {"garden", "garden"},
    {"flatpak", "flatpak"},
};

// Parts of the paths that runtimes mount from.
inline constexpr named_runtime storage_paths[] = {
    {"/kubelet/pods/", "kubernetes"},   {"/docker/", "docker"},
    {"/nerdctl/", "containerd"},        {"/containers/storage/", "podman"},
    {"/overlay-containers/", "podman"}, {"/containerd/", "containerd"},
    {"io.containerd.", "containerd"},   {"/lxc/", "lxc"},
};

enum class cgroup_name {
    starts,    // the name begins like this
    parent,    // exactly this, and there is more below it
    id_after,  // this, then an id of 64 hexadecimal digits
    id_below   // exactly this, and below it such an id
};

struct cgroup_rule {
    const char* name;
    cgroup_name match;
    const char* runtime;
    bool conclusive = true;
};

// docker.service and libpod-conmon-... are the runtime itself, outside of any container.
inline constexpr cgroup_rule cgroup_rules[] = {
    {"kubepods", cgroup_name::starts, "kubernetes"},
    {"docker-", cgroup_name::id_after, "docker"},
    {"docker", cgroup_name::id_below, "docker"},
    {"libpod-", cgroup_name::id_after, "podman"},
    {"cri-containerd-", cgroup_name::id_after, "containerd"},
    {"cri-containerd", cgroup_name::id_below, "containerd"},
    {"nerdctl-", cgroup_name::id_after, "containerd"},
    {"crio-", cgroup_name::id_after, "cri-o"},
    {"lxc.payload", cgroup_name::starts, "lxc"},
    {"lxc", cgroup_name::parent, "lxc"},
    {"systemd-nspawn@", cgroup_name::starts, "systemd-nspawn"},
    {"ecs", cgroup_name::parent, "ecs"},
    {"garden", cgroup_name::parent, "garden"},
    {"nomad", cgroup_name::parent, "nomad", false},  // raw_exec tasks are in no container
    {"", cgroup_name::id_after, ""},
};

// How a platform stops a process.
struct stop_platform {
    const char* runtime;
    const char* name;
    std::chrono::milliseconds grant;  // default time from SIGTERM to SIGKILL
    const char* setting;              // that changes it; empty: none
    bool fits_drain = false;          // an unset grace period is shortened to fit
};

// With evidence of several, the first counts: the scheduler stops a container, not the runtime.
inline constexpr stop_platform stop_platforms[] = {
    {"kubernetes", "Kubernetes", std::chrono::seconds(30), "terminationGracePeriodSeconds", true},
    {"ecs", "Amazon ECS", std::chrono::seconds(30), "stopTimeout", true},
    {"cloud-run", "Cloud Run", std::chrono::seconds(10), "", true},
    {"nomad", "Nomad", std::chrono::seconds(5), "kill_timeout"},
    {"docker", "Docker", std::chrono::seconds(10), "stop_grace_period or docker stop -t"},
    {"podman", "Podman", std::chrono::seconds(10), "--stop-timeout or podman stop -t"},
};
// Any other platform, with the most common default.
inline constexpr stop_platform any_platform = {
    "container", "the container", std::chrono::seconds(10),
    "terminationGracePeriodSeconds, stop_grace_period or docker stop -t"};

// Exactly 64 hexadecimal digits, and then the end or a suffix such as ".scope".
inline bool is_container_id(std::string_view text) {
    const std::size_t end = text.find_first_not_of("0123456789abcdef");
    return end == std::string_view::npos ? text.size() == 64 : end == 64 && text[end] == '.';
}

// Keeps conclusive evidence before hints.
inline void add_evidence(std::vector<container_evidence>& list, bool conclusive, std::string_view source,
                         std::string_view found, std::string_view runtime) {
    std::size_t place = list.size();
    list.push_back({std::string(source), printable(found, 100), std::string(runtime), conclusive});
    for (; conclusive && place > 0 && !list[place - 1].conclusive; --place)
        detail::swap(list[place], list[place - 1]);
}

inline const named_runtime* find_container_value(std::string_view value) {
    for (const named_runtime& known : container_values) {
        if (value == known.name) return &known;
    }
    return nullptr;
}

inline void look_at_container_value(std::string_view value, std::string_view source,
                                    std::vector<container_evidence>& out) {
    value = trim_blanks(value, "\n ");
    const named_runtime* known = find_container_value(value);
    if (!value.empty()) {
        add_evidence(out, known != nullptr, source, cat({"container=", value}),
                     known != nullptr ? known->runtime : "");
    }
}

inline void look_at_files(const container_probe& where, std::vector<container_evidence>& out) {
    for (const named_runtime& marker : marker_files) {
        const small_file file = read_small_file(cat({where.root, marker.name}), max_proc_file_size);
        if (file.status != file_status::read && file.sys_errno != EACCES) continue;
        std::string_view found;
        std::string_view runtime = marker.runtime;
        if (runtime.empty()) {
            found = trim_blanks(file.text, "\n ");
            const named_runtime* known = find_container_value(found);
            if (known != nullptr) runtime = known->runtime;
        } else if (holds(file.text, "engine=\"buildah")) {  // "buildah-1.28.2", or "podman-4.3.1"
            runtime = "buildah";
        }
        add_evidence(out, true, marker.name, found, runtime);
    }
}

inline void look_at_variables(const container_probe& where, std::vector<container_evidence>& out) {
    const std::string first = proc_file(where.root, "1/environ");
    for (std::string_view rest = first; !rest.empty();) {
        const std::string_view variable = next_part(rest, std::string_view("\0", 1));
        if (starts_with(variable, "container="))
            look_at_container_value(variable.substr(10), "/proc/1/environ", out);
    }
    const auto find = [&](const char* name) {
        const char* set = find_variable(where.environment, name);
        return std::string_view(set == nullptr ? "" : set);
    };
    look_at_container_value(find("container"), "environment", out);
    for (const hint_variable& hint : hint_variables) {
        const std::string_view set = find(hint.name);
        if (!set.empty() && starts_with(set, hint.prefix) &&
            (hint.companion == nullptr || !find(hint.companion).empty())) {
            add_evidence(out, false, hint.name, "", hint.runtime);
        }
    }
}

inline bool matches(const cgroup_rule& rule, std::string_view name, std::string_view below) {
    const std::string_view wanted = rule.name;
    switch (rule.match) {
        case cgroup_name::starts: return starts_with(name, wanted);
        case cgroup_name::parent: return name == wanted && !below.empty();
        case cgroup_name::id_after:
            return starts_with(name, wanted) && is_container_id(name.substr(wanted.size()));
        case cgroup_name::id_below: return name == wanted && is_container_id(below);
    }
    return false;
}

inline const cgroup_rule* find_cgroup_rule(std::string_view path) {
    for (const cgroup_rule& rule : cgroup_rules) {
        for (std::string_view rest = path; !rest.empty();) {
            const std::string_view name = next_part(rest, "/:");  // containerd puts colons between some
            std::string_view below = rest;
            if (matches(rule, name, next_part(below, "/:"))) return &rule;
        }
    }
    return nullptr;
}

// Lines of "NUMBER:CONTROLLERS:PATH"; number 0 and no controllers in version 2.
inline void look_at_cgroup(const container_probe& where, std::string_view name,
                           std::vector<container_evidence>& out) {
    const std::string text = proc_file(where.root, name);
    for (std::string_view rest = text; !rest.empty();) {
        std::string_view path = next_part(rest, "\n");
        next_part(path, ":");
        next_part(path, ":");
        if (const cgroup_rule* rule = find_cgroup_rule(path))
            return add_evidence(out, rule->conclusive, cat({"/proc/", name}), path, rule->runtime);
    }
}

inline const named_runtime* find_storage(std::string_view text) {
    for (const named_runtime& storage : storage_paths) {
        if (holds(text, storage.name)) return &storage;
    }
    return nullptr;
}

// The files that runtimes put into a container, each by a mount of its own.
inline bool is_given_file(std::string_view path) {
    return path == "/etc/hosts" || path == "/etc/hostname" || path == "/etc/resolv.conf" ||
           path == "/dev/termination-log";
}

// Lines of "ID PARENT DEVICE ROOT MOUNT_POINT OPTIONS [MORE...] - TYPE SOURCE SUPER_OPTIONS". On the host, mounts of
// containers are elsewhere than at / and at the given files.
inline void look_at_mounts(const container_probe& where, std::vector<container_evidence>& out) {
    constexpr const char* source = "/proc/self/mountinfo";
    const std::string text = proc_file(where.root, "self/mountinfo");
    for (std::string_view rest = text; !rest.empty();) {
        const std::string_view line = next_part(rest, "\n");
        std::string_view fields = line;
        for (int skipped = 0; skipped < 3; ++skipped) next_part(fields, " ");
        const std::string_view mounted = next_part(fields, " ");
        const std::string_view point = next_part(fields, " ");
        if (is_given_file(point)) {
            const named_runtime* storage = find_storage(mounted);
            if (storage != nullptr)
                add_evidence(out, true, source, cat({point, " is ", mounted}), storage->runtime);
        } else if (point == "/") {
            const std::size_t dash = fields.find(" - ");
            fields.remove_prefix(dash == std::string_view::npos ? fields.size() : dash + 3);
            const bool is_overlay = holds(next_part(fields, " "), "overlay");
            const named_runtime* storage = find_storage(is_overlay ? fields : mounted);
            if (storage != nullptr || is_overlay) {
                add_evidence(
                    out, storage != nullptr, source,
                    cat({"/ is ", is_overlay ? "an overlay of " : "", is_overlay ? fields : mounted}),
                    storage != nullptr ? storage->runtime : "");
            }
        }
    }
}

// Linux gives the first PID namespace this number (PROC_PID_INIT_INO).
inline void look_at_namespace(const container_probe& where, std::vector<container_evidence>& out) {
    const std::string link = proc_link(where.root, "self/ns/pid");
    if (starts_with(link, "pid:[") && link != "pid:[4026531836]")
        add_evidence(out, false, "/proc/self/ns/pid", "a PID namespace of its own", "");
}

inline std::string choose_runtime(const std::vector<container_evidence>& evidence) {
    std::string first;
    for (const stop_platform& platform : stop_platforms) {
        for (const container_evidence& each : evidence) {
            if (each.runtime == platform.runtime) return each.runtime;
            if (first.empty()) first = each.runtime;
        }
    }
    return first;
}

// Null: only the machine's init stops this process. Nomad's raw_exec runs tasks without a container.
inline const stop_platform* find_platform(const container_info& info) {
    if (!info.in_container && info.runtime != "nomad") return nullptr;
    for (const stop_platform& platform : stop_platforms) {
        if (info.runtime == platform.runtime) return &platform;
    }
    return &any_platform;
}

// A machine that is no container has an init; hints count only where PID 1 is something else.
inline bool is_no_machine(const pid1_info& pid1) {
    return pid1.kind != pid1_kind::init && !(pid1.kind == pid1_kind::unknown && pid1.comm.empty());
}

}  // namespace ojs::detail
