// proc: what /proc tells about processes; nothing where there is none, or where OJS_SHUTDOWN_USE_PROC is 0.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "array.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::size_t longest_proc_file = 64 * 1024;

// A file of /proc below `root`, such as "1/comm"; empty where it cannot be read. At most 64 KiB.
std::string proc_file(std::string_view root, std::string_view name);
// Where a link of /proc leads, such as "self/ns/pid"; empty where there is none.
std::string proc_link(std::string_view root, std::string_view name);

// Names one boot of one machine; empty where that is not to be known.
std::string boot_id();

struct process_stat {
    pid_t pid = 0;                  // 0: there is no such process
    char state = 0;                 // 'R', 'S', 'Z', ...
    pid_t parent = 0;               // 0: none, or in another PID namespace
    std::uint64_t start_ticks = 0;  // when it was started, in clock ticks since the boot; 0: not told
};
// `id` is a number or "self".
process_stat read_stat(std::string_view root, std::string_view id);

// The name of its main thread: 15 bytes at most.
std::string process_name(std::string_view root, std::string_view id);

struct process_facts {
    pid_t pid = 0;
    pid_t parent = 0;              // see process_stat
    std::string comm;              // see process_name()
    array<std::string> arguments;  // empty for a zombie
};

// All empty where the process is not there.
process_facts read_process(std::string_view root, std::string_view id);

// "/usr/bin/sh" and "-sh" are "sh".
std::string program_name(std::string_view path);

// Whether two processes run the same executable; where that cannot be read, whether they go by the same name.
bool same_program(std::string_view root, const process_facts& a, const process_facts& b);

// The ids of all processes, and no others.
array<pid_t> all_processes(std::string_view root);

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
