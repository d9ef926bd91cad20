#pragma once

#include <signal.h>

#include "signal_names.hpp"
#include "text.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct signal_entry {
    int number;
    const char* name;
    bool ends_process = true;  // where nobody handles it
};
inline constexpr signal_entry signal_entries[] = {
    {SIGHUP, "SIGHUP"},
    {SIGINT, "SIGINT"},
    {SIGQUIT, "SIGQUIT"},
    {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},
    {SIGABRT, "SIGABRT"},
    {SIGBUS, "SIGBUS"},
    {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},
    {SIGUSR1, "SIGUSR1"},
    {SIGSEGV, "SIGSEGV"},
    {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},
    {SIGALRM, "SIGALRM"},
    {SIGTERM, "SIGTERM"},
    {SIGCHLD, "SIGCHLD", false},
    {SIGCONT, "SIGCONT", false},
    {SIGSTOP, "SIGSTOP", false},
    {SIGTSTP, "SIGTSTP", false},
    {SIGTTIN, "SIGTTIN", false},
    {SIGTTOU, "SIGTTOU", false},
    {SIGURG, "SIGURG", false},
    {SIGXCPU, "SIGXCPU"},
    {SIGXFSZ, "SIGXFSZ"},
    {SIGVTALRM, "SIGVTALRM"},
    {SIGPROF, "SIGPROF"},
    {SIGSYS, "SIGSYS"},
#ifdef SIGPWR
    {SIGPWR, "SIGPWR"},
#endif
#ifdef SIGWINCH
    {SIGWINCH, "SIGWINCH", false},
#endif
};

inline const signal_entry* find_signal(int number) noexcept {
    for (const signal_entry& each : signal_entries) {
        if (each.number == number) return &each;
    }
    return nullptr;
}

OJS_SHUTDOWN_INLINE const char* known_signal_name(int number) noexcept {
    const signal_entry* const known = find_signal(number);
    return known == nullptr ? nullptr : known->name;
}

OJS_SHUTDOWN_INLINE bool is_realtime(int number) noexcept {
    return number >= SIGRTMIN && number <= SIGRTMAX && number < signal_limit;
}

OJS_SHUTDOWN_INLINE int signal_number(std::string_view name) noexcept {
    std::uint64_t number = 0;
    if (parse_number(name, signal_limit - 1, number)) return static_cast<int>(number);
    if (name.substr(0, 3) == "SIG") name.remove_prefix(3);
    for (const signal_entry& each : signal_entries) {
        if (name == each.name + 3) return each.number;
    }
    const bool up = name.substr(0, 5) == "RTMIN";
    if (!up && name.substr(0, 5) != "RTMAX") return 0;
    name.remove_prefix(5);
    const auto range = static_cast<std::uint64_t>(SIGRTMAX - SIGRTMIN);
    if (!name.empty() && (name[0] != (up ? '+' : '-') || !parse_number(name.substr(1), range, number)))
        return 0;
    return up ? SIGRTMIN + static_cast<int>(number) : SIGRTMAX - static_cast<int>(number);
}

OJS_SHUTDOWN_INLINE const char* stop_signal_fault(int number, bool reclaim) noexcept {
    switch (number) {
        case SIGKILL:
        case SIGSTOP: return "cannot be handled by any process";
        case SIGABRT:
        case SIGBUS:
        case SIGFPE:
        case SIGILL:
        case SIGSEGV:
        case SIGSYS:
        case SIGTRAP: return "reports a fault of the program";
        case SIGTSTP: return "already means quiet";
        case SIGCONT: return "already means resume";
        case SIGTTIN: return "already asks for the jobs in flight";
        case SIGCHLD:
        case SIGPIPE:
        case SIGTTOU:
        case SIGURG: return "is sent by the kernel in normal operation";
        case SIGUSR1: return reclaim ? "already means reclaim (termination_mode_file)" : nullptr;
        default: return find_signal(number) != nullptr || is_realtime(number) ? nullptr : "is not a signal";
    }
}

OJS_SHUTDOWN_INLINE bool ends_process(int number) noexcept {
    const signal_entry* const known = find_signal(number);
    return known != nullptr && known->ends_process;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
