// proc: reads processes from /proc; finds nothing without it, or where OJS_SHUTDOWN_USE_PROC is 0.
#pragma once

#include <limits.h>

#include "files.ipp"
#include "light.hpp"
#include "text.hpp"

namespace ojs::detail {
// Up to 64 KiB of a file such as "1/comm"; empty if it cannot be read.
inline std::string proc_file(std::string_view root, std::string_view name) {
    if (!OJS_SHUTDOWN_USE_PROC) return {};
    return read_small_file(cat({root, "/proc/", name}), 64 * 1024).value_or({}).text;
}

struct process_facts {
    pid_t pid = 0;                  // 0: no such process
    std::string comm;               // the name of the main thread, at most 15 bytes
    char state = 0;                 // 'R', 'S', 'Z', ...
    pid_t parent = 0;               // 0: none, or in another PID namespace
    std::uint64_t start_ticks = 0;  // start time in clock ticks since boot; 0: unknown
    array<std::string> arguments;   // only of read_process(); empty for a zombie
};

// `id`: a number or "self". The text: "PID (COMM) STATE PARENT GROUP SESSION TERMINAL ..."; field 22: start time.
inline process_facts read_stat(std::string_view root, std::string_view id) {
    const std::string stat = proc_file(root, cat({id, "/stat"}));
    const std::size_t open = stat.find(" (");
    const std::size_t close = stat.rfind(") ");
    if (open > close || close == std::string::npos) return {};
    std::uint64_t fields[23] = {};  // 0: not a number
    std::string_view rest = std::string_view(stat).substr(close + 2);
    const char state = rest.empty() ? '\0' : rest[0];
    parse_number(std::string_view(stat).substr(0, open), INT_MAX, fields[1]);
    for (int i = 3; i < 23; ++i) parse_number(next_part(rest, " "), ~std::uint64_t{0}, fields[i]);
    const auto pid_in = [&fields](int field) { return static_cast<pid_t>(fields[field]); };
    return {pid_in(1), stat.substr(open + 2, close - open - 2), state, pid_in(4), fields[22], {}};
}

inline process_facts read_process(std::string_view root, std::string_view id) {
    process_facts out = read_stat(root, id);
    const std::string line = proc_file(root, cat({id, "/cmdline"}));
    for (std::string_view rest = line; !rest.empty();)
        out.arguments.push_back(std::string(next_part(rest, std::string_view("\0", 1))));
    return out;
}
}  // namespace ojs::detail
