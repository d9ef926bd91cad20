// container: whether this process runs in one, and whether PID 1 passes signals on.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {

// Where to look. The defaults are this process and the machine it runs on.
struct container_probe {
    std::string root;                // goes before /proc, /.dockerenv and all other paths
    environment_lookup environment;  // empty: the environment of the process
    pid_t pid = 0;                   // 0: getpid()
};

struct container_evidence {
    std::string source;      // "/.dockerenv", "/proc/self/cgroup", "KUBERNETES_SERVICE_HOST"
    std::string found;       // what was found there, fit for a log line; empty: only that it is there
    std::string runtime;     // what it speaks for; empty: no runtime in particular
    bool conclusive = true;  // false: a hint, such as an inherited variable or a container of another kind
};

// What PID 1 does with signals for us.
enum class pid1_kind {
    self,      // this process, or another run of the same program (which started us by `docker exec`)
    forwards,  // a small init (tini, dumb-init, catatonit, as_init()) that passes them on
    shell,     // does not pass them on, nor dies of them
    init,      // systemd, s6, runit, supervisord, ...: stops its services in its own way
    pause,     // of a PID namespace that several containers share; signals come to us directly
    unknown
};

// What becomes of a SIGTSTP sent to PID 1.
enum class sigtstp_fate { passed_on, stops_us, dropped };

struct pid1_info {
    pid1_kind kind = pid1_kind::unknown;
    std::string comm;  // its name; empty where /proc does not tell
    // Its command line up to the first argument: later ones may hold secrets, as may what follows a '=', which is left
    // out.
    std::string command;
    sigtstp_fate sigtstp = sigtstp_fate::passed_on;
};

struct container_info {
    bool in_container = false;
    // kubernetes, ecs, cloud-run, nomad, docker, podman, containerd, lxc, ...; empty: not known.
    std::string runtime;
    std::vector<container_evidence> evidence;  // the strongest first
    pid_t pid = 0;                             // our own
    std::string program;                       // how we were called
    pid1_info pid1;
    // The same of a shell between a PID 1 that forwards and us, as in `tini -- sh -c ...`.
    std::string shell_between;
};

// Never fails and never blocks: what cannot be read is no evidence. Hints alone make no container where PID 1 is the
// init of a whole machine, or cannot be read. Thread-safe, if the environment does not change meanwhile.
container_info detect_container(const container_probe& where = {});

// "pid1-wrapper": stop signals do not reach us, as a shell or something unknown is PID 1 [GS 4.3]. "pid1-sigtstp": a
// SIGTSTP sent to PID 1 freezes us or gets lost. None outside of containers. Thread-safe.
std::vector<finding> check_pid1(const container_info& info);

}  // namespace v0_1_0
}  // namespace ojs
