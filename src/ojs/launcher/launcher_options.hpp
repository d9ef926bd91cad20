// launcher_options: the options of a launcher, its groups and its processes. [RFC-041]
//
// Plain structs without synchronisation. The states are in admin_messages.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../base/log.hpp"
#include "../process/child_process.hpp"
#include "admin_messages.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// True when the process has exited.
constexpr bool is_final(instance_state state) noexcept {
    return state == instance_state::complete || state == instance_state::forced || state == instance_state::crashed;
}
/// True when the process received the shutdown request, or has exited.
constexpr bool is_stopping_or_ended(instance_state state) noexcept {
    return state == instance_state::shutdown_requested || state == instance_state::draining || is_final(state);
}

/// A shutdown request. A time of 0 means the value of shutdown_timeouts; its max_duration is the maximum of both.
struct shutdown_options {
    std::string reason;                         ///< for the log and the process
    std::chrono::milliseconds grace_period{0};  ///< replaces shutdown_timeouts::grace_period
    std::chrono::milliseconds max_duration{0};  ///< replaces shutdown_timeouts::max_duration
};

/// The timeouts of a shutdown; the defaults are the protocol's. [WIRE 4]
struct shutdown_timeouts {
    std::chrono::milliseconds grace_period{3000};   ///< from the request until the process must request more time
    std::chrono::milliseconds max_duration{10000};  ///< from the request to the end of the drain
    std::chrono::milliseconds report_time{0};       ///< from max_duration to SIGTERM, to report interrupted work
    std::chrono::milliseconds poll_interval{500};   ///< between two status requests
    std::chrono::milliseconds kill_delay{2000};     ///< from SIGTERM to SIGKILL
    /// True: SIGTERM after the grace period, or after the additional time that the process requested.
    bool force_without_request = false;
};

/// How to start, check and stop a process.
struct process_options {
#ifdef __linux__
    /// SIGTERM when the launcher dies, so that the process drains then too.
    process_options() { child.death_signal = SIGTERM; }
#endif
    child_options child;  ///< command, environment ({id} in it is the process id), streams, limits, ...
    /// False: the process does not implement the protocol: it is ready once it runs, and signals stop it. [RFC-041 goal
    /// 8]
    bool has_coordinator = true;
    /// Without a coordinator: http://HOST[:PORT][/TARGET] or unix:/PATH[:/TARGET]; {id} stands for the process id. The
    /// process is ready once a GET returns 200, and unhealthy after `unhealthy_after` consecutive failures. Empty:
    /// ready once it runs.
    std::string ready_url;
    std::chrono::milliseconds rpc_timeout{1000};         ///< per request; one that timed out may still take effect
    std::chrono::milliseconds readiness_timeout{30000};  ///< from the start until it must be ready
    std::chrono::milliseconds readiness_interval{500};   ///< between two checks until it is ready
    std::chrono::milliseconds health_interval{5000};     ///< between two checks afterwards; 0: no more checks
    int unhealthy_after = 3;                             ///< consecutive failed checks of a ready process
    shutdown_timeouts shutdown;                          ///< the limits of its shutdown
    /// A program and its arguments, run before the first shutdown request, as to deregister the process from service
    /// discovery; after the timeout, or a force, it is killed. Its result is only logged. It has the environment of the
    /// process, with OJS_PROCESS_ID and OJS_PROCESS_PID. Empty: none.
    std::vector<std::string> pre_shutdown;
    std::chrono::milliseconds pre_shutdown_timeout{5000};  ///< from its start
};

/// A snapshot of a process.
struct process_info {
    std::string id;                                   ///< PREFIX-N
    std::string group;                                ///< name of its group
    instance_state state = instance_state::spawning;  ///< what the launcher sees
    bool routable = false;                            ///< is ready, and its last readiness response confirms it
    pid_t pid = 0;                                    ///< 0: not started
    std::string address;                              ///< of its coordinator; empty: it has none
    std::string message;                              ///< its last message, or the reason for its state
    readiness_response readiness;                     ///< its last readiness response
    shutdown_status shutdown;                         ///< its last shutdown status
    child_exit exit;                                  ///< valid once it has exited
    bool killed = false;                              ///< SIGKILL was needed
    std::chrono::milliseconds startup_duration{0};    ///< from start to ready; 0: not ready yet
    std::chrono::milliseconds shutdown_duration{0};   ///< from the request to the exit; 0: still runs
    time_point started_at{};                          ///< when it was started
    time_point changed_at{};                          ///< when its state last changed
    std::uint64_t generation = 0;                     ///< of its configuration
};

/// Whether a process that exited by itself is restarted. During a rollout nothing is restarted. [RFC-041, open question
/// 4]
enum class restart_policy : std::uint8_t {
    never,       ///< its slot stays empty
    on_failure,  ///< unless it exited with status 0
    always       ///< whatever its exit status
};
/// "never", "on_failure", "always". Never null. Thread-safe.
const char* to_string(restart_policy policy) noexcept;

/// The back-off doubles from initial_backoff to max_backoff, minus a random part of up to half; 24 days at most. Each
/// slot of a group has its own.
struct restart_options {
    restart_policy policy = restart_policy::on_failure;  ///< which exits lead to a restart
    std::chrono::milliseconds initial_backoff{1000};     ///< before the first restart
    std::chrono::milliseconds max_backoff{30000};        ///< upper bound of the back-off
    std::chrono::milliseconds stable_after{60000};       ///< a run of this length resets back-off and count
    /// Consecutive restarts of a slot; then the slot stays empty and the group is degraded. 0: no limit.
    int max_restarts = 5;
};

/// How often a rollout starts another process for one that did not become and stay ready. The back-off doubles from
/// initial_backoff to max_backoff, minus a random part of up to half; both 0: at once. [RFC-041 "Rollback on Failed
/// Replacement" 4]
struct retry_options {
    int max_retries = 0;                              ///< 0: roll back; an operator decides
    std::chrono::milliseconds initial_backoff{1000};  ///< before the first retry
    std::chrono::milliseconds max_backoff{30000};     ///< upper bound of the back-off
};

/// A group of processes with one configuration. read_launcher_config() reads it by the RFC's names.
struct group_options {
    std::string name;         ///< letters, digits, '.', '_', '-'; part of ids and socket paths
    std::string id_prefix;    ///< ids are PREFIX-N, each N used once; empty: the name
    process_options process;  ///< the configuration of each process
    int desired = 1;          ///< number of processes
    int min_healthy = 0;      ///< ready processes that a rollout never goes below
    int max_surge = 1;        ///< processes above `desired` during a rollout; 0: 1
    std::chrono::milliseconds health_check_timeout{30000};  ///< from start to ready
    /// A new process is available once it has been ready this long; one that fails before fails the rollout. -1: 5 s,
    /// or 1 s without a coordinator and ready_url, as such a process is ready once it runs.
    std::chrono::milliseconds min_ready_time{-1};
    restart_options restart;  ///< of processes that exit by themselves
    retry_options retry;      ///< of a rollout to this configuration
};

/// Options of one rollout.
struct rollout_options {
    std::string reason;                        ///< for the log and the processes
    int canary = 0;                            ///< number of processes to replace first
    std::chrono::milliseconds canary_time{0};  ///< how long the canaries must stay ready
    /// Called after canary_time, in the thread that called rollout(); an error rolls back.
    function<result<void>(const std::vector<process_info>&)> canary_check;
    /// Replaces retry_options::max_retries; -1: the configuration's retries and back-off.
    int max_retries = -1;
    std::chrono::milliseconds initial_backoff{1000};  ///< before the first retry
    std::chrono::milliseconds max_backoff{30000};     ///< upper bound of the back-off
    bool dry_run = false;                             ///< only reports what would be drained
};

/// What a dry run found out about one process.
struct drain_preview {
    std::string id;              ///< of the process
    shutdown_metrics in_flight;  ///< its work in flight
    std::string error;           ///< why in_flight is unknown; empty: it is known
};

/// The result of a rollout.
struct rollout_report {
    int replaced = 0;                        ///< old processes replaced and not restored
    int total = 0;                           ///< processes when the rollout began
    bool rolled_back = false;                ///< a new process failed; the old configuration was restored
    bool cancelled = false;                  ///< new processes that are ready are kept
    bool mixed = false;                      ///< both configurations run: after a cancellation or a failed rollback
    std::string failed_id;                   ///< the process that caused the rollback
    std::string error;                       ///< why it was rolled back
    std::vector<drain_preview> would_drain;  ///< dry run only: in drain order
};

/// A snapshot of a group.
struct group_info {
    group_options options;                ///< its current configuration
    std::vector<process_info> processes;  ///< running ones by age, then the last exited ones
    int ready = 0;                        ///< processes that take work
    bool replacing = false;               ///< a rollout is in progress
    bool degraded = false;                ///< a slot is empty: it failed too often, or cannot start; a rollout fills it
    bool quiet = false;                   ///< the launcher is quiet: it starts, replaces and kills no process
    std::uint64_t generation = 0;         ///< of the configuration; each rollout increments it
    std::string message;                  ///< the result of the last rollout
    rollout_status rollout;               ///< the current or the last rollout
};

/// Options of a launcher.
struct launcher_options {
    std::vector<group_options> groups;  ///< what it runs
    /// Listens for operators here: unix:/PATH (0600, its folder not writable by others) or HOST:PORT. Empty: no admin
    /// server. docs/launcher.md lists the requests.
    std::string admin_address;
    /// Required for all requests but /metrics and /healthz. Must be set if other machines can connect.
    std::string admin_token;
    /// HTML served at / for browsers, such as tools/launcher/status.html. Requests from its own origin are then
    /// allowed. Empty: no page.
    std::string status_page;
    /// Returns the configuration for a rollout that an operator requests; called by one thread at a time. A rollout
    /// whose call takes more than 2 s is refused; that call may outlive the launcher. Empty: the current configuration.
    function<result<group_options>(const std::string& name)> reload;
    /// Folder of the children's sockets: ours or root's, not writable by others. Empty: a new private folder, removed
    /// at the end, or by the next launcher if there is a state_file.
    std::string socket_folder;
    /// Records running processes, so that the next launcher finds the orphans of a killed one. Its folder must exist,
    /// best in memory (/run). One launcher locks it at a time; a process that cannot be recorded is not started. Empty:
    /// none. Without /proc no orphan is found, as pids may be reused.
    std::string state_file;
    bool reap_orphans = true;                              ///< stop orphans before the start; false: only log them
    std::chrono::milliseconds orphan_grace_period{10000};  ///< from SIGTERM to SIGKILL of their groups
    log_options log;                                       ///< where the launcher logs
    /// Routing hooks, called in order by one thread: a process starts or stops taking work. Its shutdown is requested
    /// when on_unroutable has returned, or after a second. [RFC-041 "Launcher removes kv-1 from routing table"]
    function<void(const process_info&)> on_routable;
    function<void(const process_info&)> on_unroutable;  ///< remove it from the routing table
    function<void(const process_info&)> on_change;      ///< any change of a process
};

/// errc::invalid_argument for an invalid group; the error names the field. Thread-safe.
result<void> check_group(const group_options& group);

/// Reads the RFC's launcher-config.yaml as JSON (`yq -o json` converts it), with the same keys and some of ours.
///
///     {"admin": "unix:/run/kv/admin.sock", "socket_folder": "/run/kv",
///      "state_file": "/run/kv.state", "reap_orphans": true, "orphan_grace_period": "10s",
///      "process_groups": [{
///        "name": "keyvalue-runner", "command": ["kv", "--port", "0"], "environment": {"LEVEL": "2"},
///        "working_directory": "/", "id_prefix": "kv", "has_coordinator": true, "rpc_timeout": "1s",
///        "desired_instances": 2, "min_healthy_instances": 1, "max_surge": 1, "health_check_timeout": "30s",
///        "min_ready_time": "5s", "health_interval": "5s", "unhealthy_after": 3,
///        "pre_shutdown": {"command": ["deregister"], "timeout": "5s"},
///        "shutdown": {"grace_period": "3s", "max_duration": "10s", "report_time": "0s", "poll_interval": "500ms",
///                     "kill_delay": "2s", "force_without_request": false},
///        "restart_policy": "on-failure",
///        "restart": {"initial_backoff": "1s", "max_backoff": "30s", "stable_after": "1m", "max_restarts": 5},
///        "retry_policy": "backoff",
///        "retry": {"initial_backoff": "1s", "max_backoff": "30s", "max_retries": 3}}]}
///
/// retry_policy applies to rollouts: manual, immediate or backoff. `admin` is admin_address. With
/// "has_coordinator": false a ready_url is allowed, "http://127.0.0.1:8080/ready".
///
/// Only the name and the command of each group are required. Durations are those of parse_duration(), or whole
/// seconds. errc::invalid_argument, with the path ("process_groups[0].max_surge"), for unknown and duplicate
/// keys, invalid values and contradictions. OJS_LOG_LEVEL and OJS_LOG_FORMAT set `log`, with the same errors.
/// Thread-safe if `lookup` is.
result<launcher_options> read_launcher_config(std::string_view json, const environment_lookup& lookup = nullptr);
}  // namespace v0_1_0
}  // namespace ojs
