#pragma once

#include <signal.h>
#include <unistd.h>

#include "../base/detail/exchange.hpp"
#include "../base/detail/proc.hpp"
#include "../base/detail/small_file.hpp"
#include "../base/detail/text.hpp"
#include "container.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// ---- tables ----

struct program_rule {
    const char* name;
    pid1_kind kind;
    sigtstp_fate sigtstp = sigtstp_fate::passed_on;
};

// By comm, or by the name the program was called by.
inline constexpr program_rule program_rules[] = {
    {"tini", pid1_kind::forwards},
    {"tini-static", pid1_kind::forwards},
    {"docker-init", pid1_kind::forwards},
    {"ojs-init", pid1_kind::forwards},  // as_init()
    {"dumb-init", pid1_kind::forwards, sigtstp_fate::stops_us},
    {"catatonit", pid1_kind::forwards, sigtstp_fate::dropped},
    {"podman-init", pid1_kind::forwards, sigtstp_fate::dropped},  // catatonit
    {"pause", pid1_kind::pause},
    {"systemd", pid1_kind::init},
    {"init", pid1_kind::init},
    {"s6-svscan", pid1_kind::init},
    {"s6-linux-init", pid1_kind::init},
    {"runit", pid1_kind::init},
    {"runit-init", pid1_kind::init},
    {"runsvdir", pid1_kind::init},
    {"my_init", pid1_kind::init},
    {"supervisord", pid1_kind::init},
    {"openrc-init", pid1_kind::init},
    {"dinit", pid1_kind::init},
    {"finit", pid1_kind::init},
    {"procd", pid1_kind::init},
    {"shepherd", pid1_kind::init},
    {"launchd", pid1_kind::init},
    {"sh", pid1_kind::shell},
    {"bash", pid1_kind::shell},
    {"dash", pid1_kind::shell},
    {"ash", pid1_kind::shell},
    {"zsh", pid1_kind::shell},
    {"ksh", pid1_kind::shell},
    {"ksh93", pid1_kind::shell},
    {"mksh", pid1_kind::shell},
    {"yash", pid1_kind::shell},
    {"fish", pid1_kind::shell},
    {"csh", pid1_kind::shell},
    {"tcsh", pid1_kind::shell},
};

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

// Variables that may also have been inherited, or set by hand.
inline constexpr named_runtime hint_variables[] = {
    {"KUBERNETES_SERVICE_HOST", "kubernetes"},
    {"ECS_CONTAINER_METADATA_URI_V4", "ecs"},
    {"ECS_CONTAINER_METADATA_URI", "ecs"},
    {"NOMAD_ALLOC_ID", "nomad"},
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

// What schedules containers says more about how they are stopped than what runs them.
inline constexpr const char* orchestrators[] = {"kubernetes", "ecs", "nomad"};

// ---- text ----

inline std::string_view next_part(std::string_view& text, std::string_view separators) {
    const std::size_t end = text.find_first_of(separators);
    const std::string_view out = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return out;
}

inline bool starts_with(std::string_view text, std::string_view start) {
    return text.substr(0, start.size()) == start;
}

inline bool holds(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// Exactly 64 hexadecimal digits, and then the end or a suffix such as ".scope".
inline bool is_container_id(std::string_view text) {
    const std::size_t end = text.find_first_not_of("0123456789abcdef");
    return end == std::string_view::npos ? text.size() == 64 : end == 64 && text[end] == '.';
}

// A command line for the log, up to its first argument: later ones may hold secrets, as in `sh -c "TOKEN=... ./worker"`.
// By words, as some programs write their whole title into the first string.
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

inline std::string_view trimmed(std::string_view text) {
    while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
    return text;
}

// ---- PID 1 ----

inline const program_rule* find_program_rule(const process_facts& facts) {
    std::string called;
    if (!facts.arguments.empty()) called = program_name(facts.arguments[0]);
    if (called == "busybox" && facts.arguments.size() > 1) called = program_name(facts.arguments[1]);
    // A script has its own name as comm, and its interpreter's as the name it was called by.
    for (const std::string& name : {facts.comm, called}) {
        for (const program_rule& rule : program_rules) {
            if (name == rule.name) return &rule;
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

// ---- evidence ----

class evidence_list {
  public:
    explicit evidence_list(std::vector<container_evidence>& list) : list_(list) {}

    void add(bool conclusive, std::string_view source, std::string_view found, std::string_view runtime) {
        std::size_t place = list_.size();
        list_.push_back({std::string(source), printable(found, 100), std::string(runtime), conclusive});
        if (!conclusive) return;
        for (; place > conclusive_; --place) detail::swap(list_[place], list_[place - 1]);
        ++conclusive_;
    }
    bool is_conclusive() const { return conclusive_ > 0; }

  private:
    std::vector<container_evidence>& list_;
    std::size_t conclusive_ = 0;
};

inline const named_runtime* find_container_value(std::string_view value) {
    for (const named_runtime& known : container_values) {
        if (value == known.name) return &known;
    }
    return nullptr;
}

inline void look_at_container_value(std::string_view value, std::string_view source, evidence_list& out) {
    value = trimmed(value);
    const named_runtime* known = find_container_value(value);
    if (!value.empty())
        out.add(known != nullptr, source, cat({"container=", value}), known != nullptr ? known->runtime : "");
}

// engine="podman-4.3.1", or "buildah-1.28.2"
inline const char* containerenv_runtime(std::string_view content, const char* usual) {
    return holds(content, "engine=\"buildah") ? "buildah" : usual;
}

inline void look_at_files(const container_probe& where, evidence_list& out) {
    for (const named_runtime& marker : marker_files) {
        const small_file file = read_small_file(cat({where.root, marker.name}), longest_proc_file);
        const bool is_there = file.status == file_status::read || file.sys_errno == EACCES;
        if (!is_there) continue;
        const std::string_view content = trimmed(file.text);
        const named_runtime* known = find_container_value(content);
        if (*marker.runtime == '\0') {
            out.add(true, marker.name, content, known != nullptr ? known->runtime : "");
        } else {
            out.add(true, marker.name, "", containerenv_runtime(content, marker.runtime));
        }
    }
}

inline void look_at_variables(const container_probe& where, evidence_list& out) {
    const std::string first = proc_file(where.root, "1/environ");
    for (std::string_view rest = first; !rest.empty();) {
        const std::string_view variable = next_part(rest, std::string_view("\0", 1));
        if (starts_with(variable, "container="))
            look_at_container_value(variable.substr(10), "/proc/1/environ", out);
    }
    const char* value = find_variable(where.environment, "container");
    if (value != nullptr) look_at_container_value(value, "environment", out);
    for (const named_runtime& hint : hint_variables) {
        const char* set = find_variable(where.environment, hint.name);
        if (set != nullptr && *set != '\0') out.add(false, hint.name, "", hint.runtime);
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
inline void look_at_cgroup(const container_probe& where, std::string_view name, evidence_list& out) {
    const std::string text = proc_file(where.root, name);
    for (std::string_view rest = text; !rest.empty();) {
        std::string_view path = next_part(rest, "\n");
        next_part(path, ":");
        next_part(path, ":");
        if (const cgroup_rule* rule = find_cgroup_rule(path))
            return out.add(rule->conclusive, cat({"/proc/", name}), path, rule->runtime);
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
inline void look_at_mounts(const container_probe& where, evidence_list& out) {
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
            if (storage != nullptr) out.add(true, source, cat({point, " is ", mounted}), storage->runtime);
        } else if (point == "/") {
            const std::size_t dash = fields.find(" - ");
            fields.remove_prefix(dash == std::string_view::npos ? fields.size() : dash + 3);
            const bool is_overlay = holds(next_part(fields, " "), "overlay");
            const named_runtime* storage = find_storage(is_overlay ? fields : mounted);
            if (storage != nullptr || is_overlay) {
                out.add(storage != nullptr, source,
                        cat({"/ is ", is_overlay ? "an overlay of " : "", is_overlay ? fields : mounted}),
                        storage != nullptr ? storage->runtime : "");
            }
        }
    }
}

// Linux gives the first PID namespace this number (PROC_PID_INIT_INO).
inline void look_at_namespace(const container_probe& where, evidence_list& out) {
    const std::string link = proc_link(where.root, "self/ns/pid");
    if (starts_with(link, "pid:[") && link != "pid:[4026531836]")
        out.add(false, "/proc/self/ns/pid", "a PID namespace of its own", "");
}

inline std::string choose_runtime(const std::vector<container_evidence>& evidence) {
    std::string first;
    for (const container_evidence& each : evidence) {
        for (const char* orchestrator : orchestrators) {
            if (each.runtime == orchestrator) return each.runtime;
        }
        if (first.empty()) first = each.runtime;
    }
    return first;
}

// A machine that is no container has an init; hints count only where PID 1 is something else.
inline bool is_no_machine(const pid1_info& pid1) {
    return pid1.kind != pid1_kind::init && !(pid1.kind == pid1_kind::unknown && pid1.comm.empty());
}

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
