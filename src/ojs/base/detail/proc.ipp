// proc: reads processes from /proc; finds nothing without it, or where OJS_SHUTDOWN_USE_PROC is 0.
#pragma once

#include <dirent.h>
#include <limits.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "files.ipp"
#include "light.hpp"
#include "text.hpp"

namespace ojs::detail {

inline constexpr std::size_t max_proc_file_size = 64 * 1024;

inline std::string proc_path(std::string_view root, std::string_view name) {
    return cat({root, "/proc/", name});
}

// Reads a file of /proc below `root`, such as "1/comm", up to 64 KiB; empty if it cannot be read.
inline std::string proc_file(std::string_view root, std::string_view name) {
    if (!OJS_SHUTDOWN_USE_PROC) return {};
    return read_small_file(proc_path(root, name), max_proc_file_size).text;
}

// The target of a link of /proc, such as "self/ns/pid"; empty if there is none.
inline std::string proc_link(std::string_view root, std::string_view name) {
    if (!OJS_SHUTDOWN_USE_PROC) return {};
    char target[256];
    const ssize_t length = ::readlink(proc_path(root, name).c_str(), target, sizeof target);
    return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : std::string();
}

// Identifies one boot of one machine; empty if unknown.
inline std::string boot_id() {
    return std::string(trim_blanks(proc_file("", "sys/kernel/random/boot_id"), "\n"));
}

// The process id that `text` begins with; 0 if there is none.
inline pid_t leading_pid(std::string_view text) {
    std::uint64_t number = 0;
    parse_number(text.substr(0, text.find_first_not_of("0123456789")), INT_MAX, number);
    return static_cast<pid_t>(number);
}

struct process_stat {
    pid_t pid = 0;                  // 0: no such process
    char state = 0;                 // 'R', 'S', 'Z', ...
    pid_t parent = 0;               // 0: none, or in another PID namespace
    bool has_terminal = false;      // a controlling one
    std::uint64_t start_ticks = 0;  // start time in clock ticks since boot; 0: unknown
};

// `id`: a number or "self". Format: "PID (COMM) STATE PARENT GROUP SESSION TERMINAL ..."; field 22: start time.
inline process_stat read_stat(std::string_view root, std::string_view id) {
    process_stat out;
    const std::string stat = proc_file(root, cat({id, "/stat"}));
    const std::size_t comm_end = stat.rfind(')');
    out.pid = leading_pid(stat);
    if (comm_end == std::string::npos) return out;
    std::string_view rest = trim_blanks(std::string_view(stat).substr(comm_end + 1));
    if (!rest.empty()) out.state = next_part(rest, " ").front();
    out.parent = leading_pid(next_part(rest, " "));
    for (int field = 5; field < 7; ++field) next_part(rest, " ");
    const std::string_view terminal = next_part(rest, " ");
    out.has_terminal = !terminal.empty() && terminal != "0";
    for (int field = 8; field < 22; ++field) next_part(rest, " ");
    parse_number(next_part(rest, " "), ~std::uint64_t{0}, out.start_ticks);
    return out;
}

// The name of the main thread, at most 15 bytes.
inline std::string process_name(std::string_view root, std::string_view id) {
    return std::string(trim_blanks(proc_file(root, cat({id, "/comm"})).substr(0, 64), "\n"));
}

struct process_facts : process_stat {
    std::string comm;              // see process_name()
    array<std::string> arguments;  // empty for a zombie
};

// Empty if there is no such process.
inline process_facts read_process(std::string_view root, std::string_view id) {
    process_facts out;
    static_cast<process_stat&>(out) = read_stat(root, id);
    out.comm = process_name(root, id);
    const std::string line = proc_file(root, cat({id, "/cmdline"}));
    for (std::string_view rest = line; !rest.empty();)
        out.arguments.push_back(std::string(next_part(rest, std::string_view("\0", 1))));
    return out;
}

// "/usr/bin/sh" and "-sh" are "sh".
inline std::string program_name(std::string_view path) {
    const std::size_t slash = path.rfind('/');
    if (slash != std::string_view::npos) path.remove_prefix(slash + 1);
    if (!path.empty() && path.front() == '-') path.remove_prefix(1);  // a login shell
    return std::string(path);
}

inline array<pid_t> all_processes(std::string_view root) {
    array<pid_t> out;
    if (!OJS_SHUTDOWN_USE_PROC) return out;
    DIR* const folder = ::opendir(proc_path(root, "").c_str());
    if (folder == nullptr) return out;
    while (const dirent* entry = ::readdir(folder)) {
        std::uint64_t number = 0;
        if (parse_number(entry->d_name, INT_MAX, number) && number != 0)
            out.push_back(static_cast<pid_t>(number));
    }
    ::closedir(folder);
    return out;
}

}  // namespace ojs::detail
