// pid1: what PID 1 of a container does with signals.
#pragma once

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../base/detail/proc.ipp"
#include "../../base/detail/text.hpp"
#include "../../host/container.ipp"
#include "../finding.hpp"

namespace ojs::detail {
// By device and inode of /proc/PID/exe; if one cannot be read, by the name in argv[0].
inline bool is_same_program(std::string_view root, const process_facts& a, const process_facts& b) {
    struct stat one {};
    struct stat other {};
    const std::string exe_a = cat({root, "/proc/", a.pid, "/exe"});
    const std::string exe_b = cat({root, "/proc/", b.pid, "/exe"});
    if (::stat(exe_a.c_str(), &one) == 0 && ::stat(exe_b.c_str(), &other) == 0)
        return one.st_dev == other.st_dev && one.st_ino == other.st_ino;
    const process_facts now = read_process(root, cat({a.pid}));  // without arguments: it has ended since it was listed
    return !now.arguments.empty() && !b.arguments.empty() &&
           program_name(now.arguments[0]) == program_name(b.arguments[0]);
}

inline constexpr const char* shell_effect = "a shell, which does not pass signals on";

// `wrapper`: what PID 1 is.
inline std::string wrapper_problem(const container_info& info, const process_facts& self, std::string_view wrapper) {
    return cat({"process ", self.pid, " runs in a container (", info.platform->id, ") whose PID 1 is ", wrapper,
                ": SIGTERM may not reach the worker, and jobs in flight are then killed with the container"});
}
inline std::string wrapper_fix(const process_facts& self) {
    const std::string program = self.arguments.empty() ? "./worker" : printable(self.arguments[0], 100);
    return cat({"write the command in exec form, CMD [\"", program, "\"], or begin it with exec (sh -c 'exec ", program,
                "'), or run it under an init such as tini"});
}

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
    {"dumb-init", pid1_kind::forwards, sigtstp_effect::stops_us},
    {"catatonit podman-init", pid1_kind::forwards, sigtstp_effect::dropped},
    {"tini tini-static docker-init ojs-init", pid1_kind::forwards},  // the last is run_as_init()
    {"pause", pid1_kind::direct},
    {shell_names, pid1_kind::shell},
    {forwarder_names, pid1_kind::init},  // the others
};

inline pid1_rule find_pid1_rule(const process_facts& facts) {
    for (const pid1_rule& rule : pid1_rules) {
        if (is_named(facts, rule.text)) return rule;
    }
    return {"", pid1_kind::unknown};
}

inline bool is_of_kind(const process_facts& facts, pid1_kind kind) { return find_pid1_rule(facts).kind == kind; }

// Up to the first argument: later ones may be secrets (`sh -c`). Split at blanks: argv[0] may be a whole title.
inline std::string describe_command(const process_facts& facts) {
    std::string command;
    for (const std::string& argument : facts.arguments) append(command, {command.empty() ? "" : " ", argument});
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

// Looks for -c, --single-child, -r 20:15 and --rewrite=20:15 before the program.
inline bool dumb_init_passes_sigtstp(const array<std::string>& arguments, const environment_lookup& environment) {
    const char* const own_session = find_variable(environment, "DUMB_INIT_SETSID");
    if (own_session != nullptr && std::string_view(own_session) == "0") return true;
    for (std::size_t i = 1; i < arguments.size(); ++i) {
        const std::string_view argument = arguments[i];
        const bool is_option = starts_with(argument, "-");
        const bool is_long = starts_with(argument, "--");
        if (starts_with(argument, "--s") || (is_option && !is_long && has_part(argument, "c"))) return true;
        const std::size_t rule = argument.find_first_of("0123456789");
        if (rule < argument.size() && rewrites_sigtstp(argument.substr(rule))) return true;
        if (!is_option && rule != 0) return false;  // the program
    }
    return false;
}

inline finding sigtstp_finding(std::string_view comm, bool freezes) {
    return {freezes ? severity::warning : severity::info, "pid1-sigtstp",
            cat({"PID 1 is ", printable(comm, 64),
                 freezes ? ", which turns SIGTSTP into SIGSTOP: `kill -TSTP 1` freezes the worker, instead of "
                           "making it quiet"
                         : ", which does not pass SIGTSTP on: `kill -TSTP 1` does not make the worker quiet"}),
            cat({freezes ? cat({"run dumb-init with --single-child or with --rewrite ", SIGTSTP, ":", SIGTSTP, ", or "})
                         : "",
                 "use `worker --signal quiet` or POST /quiet, which reach the worker itself"})};
}

// "pid1-wrapper": PID 1 of the container may not forward stop signals [GS 4.3]. "pid1-sigtstp": a SIGTSTP sent to it
// freezes this process or is lost. Arguments may be secrets, and are not shown.
inline void check_pid1(const container_probe& probe, const container_info& info, std::vector<finding>& out) {
    const pid_t pid = probe.pid != 0 ? probe.pid : getpid();
    if (pid == 1 || !info.in_container) return;
    process_facts self = read_process(probe.root, "self");
    // PID 1 of the /proc of another PID namespace is not ours.
    const process_facts pid1 = self.pid == pid ? read_process(probe.root, "1") : process_facts();
    self.pid = pid;
    pid1_rule rule = find_pid1_rule(pid1);
    if (rule.kind == pid1_kind::unknown && pid1.pid == 1 && is_same_program(probe.root, pid1, self))
        rule.kind = pid1_kind::direct;
    std::string problem;
    if (rule.kind == pid1_kind::shell) problem = cat({", ", shell_effect});
    if (rule.kind == pid1_kind::unknown) problem = ", which may not pass signals on";
    if (rule.kind == pid1_kind::forwards) {
        const process_facts between = find_wrapper(probe.root, self);
        const char* const effect = is_named(between, shell_names) ? shell_effect : "which may not pass signals on";
        if (between.pid != 0) problem = cat({", and which is started by ", describe_command(between), ", ", effect});
    }
    if (!problem.empty())
        out.push_back({severity::warning, "pid1-wrapper",
                       wrapper_problem(info, self, cat({describe_command(pid1), problem})), wrapper_fix(self)});
    const bool stops_us = rule.sigtstp == sigtstp_effect::stops_us;
    const bool is_rewritten = stops_us && dumb_init_passes_sigtstp(pid1.arguments, probe.environment);
    if (rule.sigtstp != sigtstp_effect::passed_on && !is_rewritten) out.push_back(sigtstp_finding(pid1.comm, stops_us));
}
}  // namespace ojs::detail
