// container: whether this process runs in one, and whether PID 1 passes signals on.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// For tests: what to examine instead of this process and its machine.
struct container_probe {
    std::string root;                // prefix of /proc, /.dockerenv and all other paths
    environment_lookup environment;  // empty: the process environment
    pid_t pid = 0;                   // 0: getpid()
};

}  // namespace detail

/// What detect_container() found.
struct container_info {
    bool in_container = false;  ///< this process runs in one
    /// kubernetes, ecs, cloud-run, nomad, docker, podman, containerd, lxc, ...; empty: unknown.
    std::string runtime;
    /// pm2, s6, fly, supervisord, heroku: what stops this process, in a container or not; empty: unknown.
    std::string supervisor;
    /// What it was recognised by, the strongest first: "/.dockerenv", "KUBERNETES_SERVICE_HOST". Hints alone, such as
    /// inherited variables, are not enough if PID 1 is the init of a machine or unreadable.
    std::vector<std::string> evidence;
    /// "pid1-wrapper": PID 1 of the container is a shell, which does not pass stop signals on. [GS 4.3]
    std::vector<finding> findings;
};

/// Never fails or blocks: unreadable files are no evidence. Thread-safe while no thread calls setenv().
container_info detect_container(const detail::container_probe& probe = {});

}  // namespace v0_1_0
}  // namespace ojs
