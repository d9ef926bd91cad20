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

// Where to look, for tests. The defaults are this process and its machine.
struct container_probe {
    std::string root;                // goes before /proc, /.dockerenv and all other paths
    environment_lookup environment;  // empty: the environment of the process
    pid_t pid = 0;                   // 0: getpid()
};

}  // namespace detail

struct container_info {
    bool in_container = false;
    // kubernetes, ecs, cloud-run, nomad, docker, podman, containerd, lxc, ...; empty: unknown.
    std::string runtime;
    // What it was recognised by, the strongest first: "/.dockerenv", "KUBERNETES_SERVICE_HOST". Hints alone,
    // such as inherited variables, make no container if PID 1 is the init of a whole machine or unreadable.
    std::vector<std::string> evidence;
    // On PID 1, in a container. "pid1-wrapper": stop signals may not reach us, as it is a shell or unknown
    // [GS 4.3]. "pid1-sigtstp": a SIGTSTP sent to it freezes us or gets lost. Arguments, which may be
    // secrets, are not shown.
    std::vector<finding> findings;
};

// Never fails, never blocks: what cannot be read is no evidence. Thread-safe while nobody calls setenv().
container_info detect_container(const detail::container_probe& probe = {});

}  // namespace v0_1_0
}  // namespace ojs
