#pragma once

#include <signal.h>

#include "signal_names.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct signal_entry {
    int number;
    const char* name;
    bool ends_process = true;  // where nobody handles it
};
inline constexpr signal_entry signal_entries[] = {
    {SIGHUP, "SIGHUP"},          {SIGINT, "SIGINT"},          {SIGQUIT, "SIGQUIT"},
    {SIGILL, "SIGILL"},          {SIGTRAP, "SIGTRAP"},        {SIGABRT, "SIGABRT"},
    {SIGBUS, "SIGBUS"},          {SIGFPE, "SIGFPE"},          {SIGKILL, "SIGKILL"},
    {SIGUSR1, "SIGUSR1"},        {SIGSEGV, "SIGSEGV"},        {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},        {SIGALRM, "SIGALRM"},        {SIGTERM, "SIGTERM"},
    {SIGCHLD, "SIGCHLD", false}, {SIGCONT, "SIGCONT", false}, {SIGSTOP, "SIGSTOP", false},
    {SIGTSTP, "SIGTSTP", false}, {SIGTTIN, "SIGTTIN", false}, {SIGTTOU, "SIGTTOU", false},
    {SIGURG, "SIGURG", false},   {SIGXCPU, "SIGXCPU"},        {SIGXFSZ, "SIGXFSZ"},
    {SIGVTALRM, "SIGVTALRM"},    {SIGPROF, "SIGPROF"},        {SIGSYS, "SIGSYS"},
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

OJS_SHUTDOWN_INLINE bool ends_process(int number) noexcept {
    const signal_entry* const known = find_signal(number);
    return known != nullptr && known->ends_process;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
