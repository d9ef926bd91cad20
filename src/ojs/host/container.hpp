// container: the platform that stops this process, and whether that is a container.
#pragma once

#include <unistd.h>

#include <chrono>
#include <string>

#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// How a platform stops a process.
struct stop_platform {
    const char* id;
    const char* name;
    const char* evidence;              // any of these: variables, NAME or NAME=START_OF_VALUE, and files
    std::chrono::milliseconds grant;   // its default time from SIGTERM to SIGKILL
    bool adapts_grace_period = false;  // shortens an unset grace period to fit
    bool is_container = true;          // else the process may run in one or not
};

// For tests: what to examine instead.
struct container_probe {
    std::string root;                // prefix of /proc, /.dockerenv and all other paths
    environment_lookup environment;  // empty: the process environment
    pid_t pid = 0;                   // 0: getpid()
};

struct container_info {
    const stop_platform* platform = nullptr;  // what stops this process; null: unknown
    bool in_container = false;                // then `platform` is known
};

// Thread-safe while no thread calls setenv().
container_info detect_container(const container_probe& probe = {});
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
