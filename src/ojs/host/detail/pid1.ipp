// pid1: what PID 1 is, and what it does with our signals.
#pragma once

#include <signal.h>

#include "../../base/detail/proc.ipp"
#include "../../base/detail/text.hpp"
#include "../container.hpp"

namespace ojs::detail {

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

}  // namespace ojs::detail
