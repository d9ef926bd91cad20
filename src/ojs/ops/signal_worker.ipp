#pragma once

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../base/detail/light.hpp"
#include "../base/detail/proc.ipp"
#include "../base/detail/signal_names.ipp"
#include "../base/detail/text.hpp"
#include "../host/container.ipp"
#include "signal_worker.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
struct worker_command {
    std::string_view name;
    int number;
};
inline constexpr worker_command worker_commands[] = {
    {"quiet", SIGTSTP}, {"resume", SIGCONT}, {"stop", SIGTERM}, {"reclaim", SIGUSR1}};

// 0: unknown. OJS_STOP_SIGNALS is the worker's as well: both have the container's environment.
inline int signal_of(std::string_view name) {
    const char* const stops = name == "stop" ? std::getenv("OJS_STOP_SIGNALS") : nullptr;
    const std::string_view first = stops == nullptr ? "" : std::string_view(stops);
    const int chosen = signal_number(trim_blanks(first.substr(0, first.find(',')), " "));
    if (stop_signal_error(chosen, false) == nullptr) return chosen;
    for (const worker_command& command : worker_commands) {
        if (command.name == name) return command.number;
    }
    return 0;
}

inline bool contains_pid(const array<process_facts>& processes, pid_t pid) {
    const auto is_it = [pid](const process_facts& each) { return each.pid == pid; };
    return std::any_of(processes.begin(), processes.end(), is_it);
}

inline array<process_facts> read_all_processes(std::string_view root) {
    array<process_facts> out;
    DIR* const folder = ::opendir(cat({root, "/proc"}).c_str());
    if (folder == nullptr) return out;
    while (const dirent* entry = ::readdir(folder)) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
        process_facts each = read_process(root, entry->d_name);
        if (each.pid != 0) out.push_back(std::move(each));
    }
    ::closedir(folder);
    return out;
}

inline array<process_facts> find_same_programs(std::string_view root, const process_facts& self) {
    array<process_facts> out;
    for (const process_facts& each : read_all_processes(root)) {
        if (each.pid != self.pid && is_same_program(root, each, self)) out.push_back(each);
    }
    return out;
}

// The process to signal, by the rules of signal_worker().
inline result<pid_t> find_other_process(std::string_view root) {
    const process_facts self = read_process(root, "self");
    if (self.pid == 0) return error{errc::unsupported, 0, "cannot find the worker without /proc; give its process id"};
    const array<process_facts> same = find_same_programs(root, self);
    if (self.pid != 1 && contains_pid(same, 1)) return pid_t{1};
    pid_t found = 0;
    int count = 0;
    std::string list;
    for (const process_facts& each : same) {
        if (contains_pid(same, each.parent)) continue;
        found = each.pid;
        append(list, {count++ == 0 ? "" : ", ", each.pid});
    }
    if (count == 1) return found;
    if (count == 0) return error{errc::system, ESRCH, "no other process runs this program"};
    return error{errc::busy, 0, cat({"several processes run this program (", list, "); give the id of one"})};
}

// Whether one of these masks of /proc/PID/status has the signal; `otherwise` if /proc does not show it.
inline bool in_masks(std::string_view root, pid_t pid, int number, std::initializer_list<const char*> masks,
                     bool otherwise) {
    const std::string status = proc_file(root, cat({static_cast<long>(pid), "/status"}));
    unsigned long long found = 0;
    for (const char* mask : masks) {
        const std::size_t at = status.find(mask);
        if (at == std::string::npos) return otherwise;
        found |= std::strtoull(status.c_str() + at + std::strlen(mask), nullptr, 16);
    }
    return (found >> (number - 1) & 1) != 0;
}

// Whether the process neither blocks, ignores nor handles the signal; false if /proc does not show it.
inline bool would_end(std::string_view root, pid_t pid, int number) {
    return !in_masks(root, pid, number, {"\nSigBlk:\t", "\nSigIgn:\t", "\nSigCgt:\t"}, true);
}

// The kernel drops a pending SIGCONT when it sends SIGTSTP or SIGTTIN, and the reverse: the caller's next signal must
// come later. A process that is stopped or blocks the signal is not awaited for long.
inline void await_delivery(pid_t pid, int number) {
    const time_point deadline = deadline_after(std::chrono::milliseconds(500));
    while (in_masks("", pid, number, {"\nShdPnd:\t"}, false) && steady_clock::now() < deadline) ::usleep(1000);
}

inline error not_prepared(pid_t pid) {
    return {errc::unsupported, 0,
            cat({"process ", pid,
                 " has no handler for SIGUSR1, which would end it; start the worker with OJS_TERMINATION_MODE_FILE"})};
}

// A forwarding init handles or blocks all signals: one of its children must be prepared.
inline result<void> check_child(std::string_view root, pid_t init, int number) {
    bool has_child = false;
    for (const process_facts& each : read_all_processes(root)) {
        if (each.parent != init || each.arguments.empty()) continue;
        if (!would_end(root, each.pid, number)) return {};
        has_child = true;
    }
    if (has_child) return not_prepared(init);
    return error{errc::system, ESRCH, cat({"the program below process ", init, " has ended"})};
}

// Catches the usual mistakes: a worker without the spot policy, or a job's child instead of the controller. [Spot]
inline result<void> check_prepared(std::string_view root, pid_t pid, int number) {
    if (is_of_kind(read_process(root, cat({pid})), pid1_kind::forwards)) return check_child(root, pid, number);
    if (would_end(root, pid, number)) return not_prepared(pid);
    return {};
}

inline error cannot_signal(pid_t pid, int failed) {
    if (failed == ESRCH) return {errc::system, failed, cat({"there is no process ", pid})};
    return {errc::system, failed,
            failed == EPERM ? cat({"not allowed to signal process ", pid, ": it belongs to another user"})
                            : cat({"cannot signal process ", pid, ": ", errno_text(failed)})};
}
}  // namespace detail

OJS_SHUTDOWN_INLINE result<pid_t> find_worker(std::string_view command, pid_t pid) {
    const int number = detail::signal_of(command);
    if (number == 0) {
        return error{errc::invalid_argument, 0,
                     detail::cat({"'", detail::printable(command, 40), "' is none of quiet, resume, stop, reclaim"})};
    }
    if (pid < 0) return error{errc::invalid_argument, 0, "a process id cannot be negative"};
    result<pid_t> target = pid != 0 ? result<pid_t>(pid) : detail::find_other_process("");
    if (!target) return target;
    if (::kill(*target, 0) != 0) return detail::cannot_signal(*target, errno);
    if (number == SIGUSR1) {
        const result<void> prepared = detail::check_prepared("", *target, number);
        if (!prepared) return prepared.error();
    }
    return target;
}

OJS_SHUTDOWN_INLINE result<pid_t> signal_worker(std::string_view command, pid_t pid) {
    result<pid_t> target = find_worker(command, pid);
    const int number = detail::signal_of(command);
    if (target && ::kill(*target, number) != 0) return detail::cannot_signal(*target, errno);
    if (target && (number == SIGTSTP || number == SIGCONT)) detail::await_delivery(*target, number);
    return target;
}
}  // namespace v0_1_0
}  // namespace ojs
