// signal_names: signal names and numbers, and which signals may request a stop.
#pragma once

#include <signal.h>

#include <string_view>

#include "text.hpp"

namespace ojs::detail {
inline constexpr int signal_limit = 128;  // above every signal number

struct signal_entry {
    int number;
    const char* name;
};
inline constexpr signal_entry signal_entries[] = {
    {SIGHUP, "SIGHUP"},   {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},   {SIGILL, "SIGILL"},   {SIGTRAP, "SIGTRAP"},
    {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},   {SIGFPE, "SIGFPE"},     {SIGKILL, "SIGKILL"}, {SIGUSR1, "SIGUSR1"},
    {SIGSEGV, "SIGSEGV"}, {SIGUSR2, "SIGUSR2"}, {SIGPIPE, "SIGPIPE"},   {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},
    {SIGCHLD, "SIGCHLD"}, {SIGCONT, "SIGCONT"}, {SIGSTOP, "SIGSTOP"},   {SIGTSTP, "SIGTSTP"}, {SIGTTIN, "SIGTTIN"},
    {SIGTTOU, "SIGTTOU"}, {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},   {SIGXFSZ, "SIGXFSZ"}, {SIGVTALRM, "SIGVTALRM"},
    {SIGPROF, "SIGPROF"}, {SIGSYS, "SIGSYS"},   {SIGWINCH, "SIGWINCH"},
#ifdef SIGPWR
    {SIGPWR, "SIGPWR"},
#endif
};

// "SIGTERM", ...; null if POSIX does not name the number. Async-signal-safe.
inline const char* known_signal_name(int number) noexcept {
    for (const signal_entry& entry : signal_entries) {
        if (entry.number == number) return entry.name;
    }
    return nullptr;
}

// macOS has none.
inline int realtime_signal(bool first) noexcept {
#ifdef SIGRTMIN
    return first ? SIGRTMIN : SIGRTMAX;
#else
    return first ? signal_limit : 0;
#endif
}
inline bool is_realtime(int number) noexcept {
    return number >= realtime_signal(true) && number <= realtime_signal(false) && number < signal_limit;
}

// Reads "TERM", "SIGTERM", "RTMIN+3", "RTMAX-1" or "15"; 0: unknown.
inline int signal_number(std::string_view name) noexcept {
    std::uint64_t number = 0;
    if (parse_number(name, signal_limit - 1, number)) return static_cast<int>(number);
    if (starts_with(name, "SIG")) name.remove_prefix(3);
    for (const signal_entry& entry : signal_entries) {
        if (name == entry.name + 3) return entry.number;
    }
    const bool from_min = starts_with(name, "RTMIN");
    if (!from_min && !starts_with(name, "RTMAX")) return 0;
    name.remove_prefix(5);
    const bool has_sign = starts_with(name, from_min ? "+" : "-");
    if (!name.empty() && !(has_sign && parse_number(name.substr(1), signal_limit, number))) return 0;
    const int offset = static_cast<int>(number);
    const int found = realtime_signal(from_min) + (from_min ? offset : -offset);
    return is_realtime(found) ? found : 0;
}

// Null, or why it cannot be a stop signal, as text that follows its name.
inline const char* stop_signal_error(int number, bool reclaim) noexcept {
    for (const int fault : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP})
        if (number == fault) return "reports a fault of the program";
    for (const int usual : {SIGCHLD, SIGPIPE, SIGTTOU, SIGURG})
        if (number == usual) return "is sent by the kernel in normal operation";
    if (number == SIGKILL || number == SIGSTOP) return "cannot be handled by any process";
    if (number == SIGTSTP) return "already means quiet";
    if (number == SIGCONT) return "already means resume";
    if (number == SIGTTIN) return "already requests the list of jobs in flight";
    if (number == SIGUSR1 && reclaim) return "already means reclaim (termination_mode_file)";
    return known_signal_name(number) != nullptr || is_realtime(number) ? nullptr : "is not a signal";
}
}  // namespace ojs::detail
