// launcher_options: what a launcher runs, how it replaces it, and what is known of it. [RFC-041]
//
// Plain structs; the states are in admin_messages. Thread-safety: as for any struct.
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

// ---- a process ----

// It has ended.
constexpr bool is_final(instance_state state) noexcept {
    return state == instance_state::complete || state == instance_state::forced ||
           state == instance_state::crashed;
}
// It was asked to shut down, or has ended.
constexpr bool is_stopping(instance_state state) noexcept {
    return state == instance_state::shutdown_requested || state == instance_state::draining ||
           is_final(state);
}

// Times of 0 are those of the options, and longer ones are cut to them.
struct shutdown_options {
    std::string reason;  // for the log, and told to the process
    std::chrono::milliseconds grace_period{0};
    std::chrono::milliseconds max_duration{0};
};

// The protocol's defaults. [WIRE 4]
struct shutdown_timeouts {
    std::chrono::milliseconds grace_period{3000};   // from the request on, until more time must be asked for
    std::chrono::milliseconds max_duration{10000};  // from the request on, all of it for the drain
    std::chrono::milliseconds report_time{0};  // from max_duration to SIGTERM, to report what was cut short
    std::chrono::milliseconds poll_interval{500};  // between two questions for its status
    std::chrono::milliseconds kill_delay{2000};    // from SIGTERM to SIGKILL
    // SIGTERM after the grace period already, where no more time was asked for, and after that time where it was.
    bool force_without_request = false;
};

struct process_options {
#ifdef __linux__
    process_options() {
        child.death_signal = SIGTERM;
    }  // it drains as well where the launcher was killed
#endif
    child_options child;  // command, environment, streams, limits, ...
    // False: it does not speak the protocol, so it is ready once it runs, and is ended by signals. [RFC-041 goal 8]
    bool has_coordinator = true;
    // For one that does not: http://HOST[:PORT][/TARGET] or unix:/PATH[:/TARGET], in which {id} is its id. It
    // is ready once a GET is answered with 200, and unhealthy after `unhealthy_after` other answers, or none,
    // in a row. Empty: ready once it runs.
    std::string ready_url;
    std::chrono::milliseconds rpc_timeout{1000};         // of one request to it; what that began may go on
    std::chrono::milliseconds readiness_timeout{30000};  // from its start until it must have been ready
    std::chrono::milliseconds readiness_interval{500};   // between two looks until then
    std::chrono::milliseconds health_interval{5000};     // and afterwards; 0: not looked at any more
    int unhealthy_after = 3;                             // failed looks in a row, once it was ready
    shutdown_timeouts shutdown;
};

// A copy of the moment.
struct process_info {
    std::string id;
    std::string group;
    instance_state state = instance_state::spawning;
    bool routable = false;  // is ready, and said so when it was last asked
    pid_t pid = 0;
    std::string address;           // of its coordinator; empty where it has none
    std::string message;           // the last thing it said, or why it is as it is
    readiness_response readiness;  // its last answers
    shutdown_status shutdown;
    child_exit exit;                             // once it is over
    bool killed = false;                         // SIGKILL was needed
    std::chrono::milliseconds startup{0};        // from its start to ready; 0: not yet
    std::chrono::milliseconds shutdown_took{0};  // from the request to its end; 0: not yet
    time_point started{};
    time_point changed{};          // of the state
    std::uint64_t generation = 0;  // of its group's configuration
};

// ---- a group of them ----

// What becomes of a process that ended though nobody asked it to. Apart from that stands the rolling
// replacement, during which nothing is restarted. [RFC-041, open question 4]
enum class restart_policy : std::uint8_t {
    never,
    on_failure,  // not where it exits with status 0 by itself
    always
};
// "never", "on_failure", "always". Never null. Thread-safe.
const char* to_string(restart_policy policy) noexcept;

// Pauses double from initial_backoff to max_backoff, each cut by a random part of its half, and are 24 days at most. Of
// each place in a group apart.
struct restart_options {
    restart_policy policy = restart_policy::on_failure;
    std::chrono::milliseconds initial_backoff{1000};
    std::chrono::milliseconds max_backoff{30000};
    std::chrono::milliseconds stable_after{60000};  // who has run so long begins anew with `initial_backoff`
    // Restarts without one that lasted `stable_after`; then the group is degraded, and goes on with one fewer. 0: no limit.
    int max_restarts = 5;
};

// How often a replacement tries another process for one that did not become and stay ready, and the pause
// before: it doubles from `initial_backoff` to `max_backoff`, each cut by a random part of its half. Both 0: at once. [RFC-041
// "Rollback on Failed Replacement" 4]
struct retry_options {
    int max_retries = 0;  // 0: it is rolled back, and an operator decides
    std::chrono::milliseconds initial_backoff{1000};
    std::chrono::milliseconds max_backoff{30000};
};

// Processes of one kind. launcher_config has the RFC's names of these.
struct group_options {
    std::string name;       // letters, digits, '.', '_' and '-': it is part of ids and of socket paths
    std::string id_prefix;  // ids are PREFIX-N, no N twice; empty: the name
    process_options process;
    int desired = 1;
    int min_healthy = 0;  // a replacement never leaves fewer ready
    int max_surge = 1;    // and never makes more than so many above `desired`; 0: 1
    std::chrono::milliseconds health_check_timeout{30000};  // for a new one to be ready
    // Only a process that has been ready so long counts as a new one that is; one that fails before fails the
    // replacement. -1: 5 s, and 1 s where it neither takes part nor has a ready_url, for it is ready once it
    // runs.
    std::chrono::milliseconds min_ready_time{-1};
    restart_options restart;
    retry_options retry;  // of a replacement by this configuration
};

struct rolling_options {
    std::string reason;  // for the log and the processes
    int canary = 0;      // so many first; once they are ready, all must stay so for canary_wait
    std::chrono::milliseconds canary_wait{0};
    // After that wait: an error rolls the replacement back. Called by the thread that replaces.
    function<result<void>(const std::vector<process_info>&)> canary_check;
    // As retry_options; -1: those of the configuration, with its pauses.
    int retries = -1;
    std::chrono::milliseconds initial_backoff{1000};
    std::chrono::milliseconds max_backoff{30000};
    bool dry_run = false;  // only says what would be drained
};

// What a dry run found of one process.
struct drain_preview {
    std::string id;
    shutdown_metrics in_flight;
    std::string error;  // why that is not known; empty: it is
};

struct rolling_report {
    int replaced = 0;  // old ones that ended, or gave way to new ones, and were not put back
    int total = 0;
    bool rolled_back = false;  // one did not become ready, or a canary failed; the old ones came back
    bool cancelled = false;    // what had been replaced stays
    bool mixed = false;        // both configurations run: after a cancel, or a rollback that failed too
    std::string failed_id;     // the process because of which
    std::string error;         // why it was rolled back
    std::vector<drain_preview> would_drain;  // of a dry run: in the order in which they would be
};

// A copy of the moment.
struct group_info {
    group_options options;
    std::vector<process_info> processes;  // that run, by age; then the last that ended
    int ready = 0;
    bool replacing = false;
    bool degraded = false;  // goes on with fewer: some failed too often. A replacement that succeeds ends it
    bool quiet = false;     // the launcher is: nothing is started, replaced or given up
    std::uint64_t generation = 0;    // of the configuration; a replacement counts it up
    std::string message;             // how the last replacement ended
    replacement_status replacement;  // how far it came, or the one under way has
};

struct launcher_options {
    std::vector<group_options> groups;
    // Where an operator is answered: unix:/PATH (0600, its folder not writable by others) or HOST:PORT; empty: nowhere.
    // docs/launcher.md has what is answered.
    std::string admin_address;
    // Wanted for all but /metrics and /healthz; must be set where other machines can connect.
    std::string admin_token;
    // What that server answers at /, to a browser: HTML that asks it further, as tools/launcher/status.html
    // does. Its origin alone may then ask too. Empty: nothing is there.
    std::string status_page;
    // Asked, by the threads of that server, for the configuration a group is to be replaced with. Empty: the
    // one it has.
    function<result<group_options>(const std::string& name)> reload;
    // Where children listen: ours or root's, and not writable by others. Empty: a new folder of 0700, removed
    // at the end, or, where there is a state_file, by the next launcher.
    std::string socket_folder;
    // Holds what runs, so that the next launcher finds what one that was killed has left; its folder must be
    // there, and is best in memory (/run). One launcher at a time has it, and no process is started that
    // cannot be written there. Empty: none. Without /proc nobody can tell one process from a later one of its
    // number, and nothing is found.
    std::string state_file;
    bool reap_orphans = true;  // at the start, which takes as long; false: they are only named in the log
    std::chrono::milliseconds orphan_grace_period{10000};  // from SIGTERM to SIGKILL, to their groups
    log_options log;
    // For whoever gives them work: called from one thread, in order. A process is asked to shut down when its
    // on_unroutable has returned, or after a second. [RFC-041 "Launcher removes kv-1 from routing table"]
    function<void(const process_info&)> on_routable;
    function<void(const process_info&)> on_unroutable;
    function<void(const process_info&)> on_change;  // of anything
};

// errc::invalid_argument, with the field by its name, for a group that cannot be meant. Thread-safe.
result<void> check_group(const group_options& group);

// ---- from a file ----

// The RFC's launcher-config.yaml as JSON (`yq -o json` writes it), with the same keys and some of ours:
//
//     {"admin": "unix:/run/kv/admin.sock", "socket_folder": "/run/kv",
//      "state_file": "/run/kv.state", "reap_orphans": true, "orphan_grace_period": "10s",
//      "process_groups": [{
//        "name": "keyvalue-runner", "command": ["kv", "--port", "0"], "environment": {"LEVEL": "2"},
//        "working_directory": "/", "id_prefix": "kv", "has_coordinator": true, "rpc_timeout": "1s",
//        "desired_instances": 2, "min_healthy_instances": 1, "max_surge": 1, "health_check_timeout": "30s",
//        "min_ready_time": "5s", "health_interval": "5s", "unhealthy_after": 3,
//        "shutdown": {"grace_period": "3s", "max_duration": "10s", "report_time": "0s", "poll_interval": "500ms",
//                     "kill_delay": "2s", "force_without_request": false},
//        "restart_policy": "on-failure",
//        "restart": {"initial_backoff": "1s", "max_backoff": "30s", "stable_after": "1m", "max_restarts": 5},
//        "retry_policy": "backoff",
//        "retry": {"initial_backoff": "1s", "max_backoff": "30s", "max_retries": 3}}]}
//
// retry_policy is of a replacement: manual, immediate or backoff. `admin` is admin_address. With
// "has_coordinator": false there may be a ready_url, "http://127.0.0.1:8080/ready".
//
// All but the name and the command of each group may be left out. Durations as parse_duration() reads them,
// or whole numbers of seconds. errc::invalid_argument, with the way to it ("process_groups[0].max_surge"): an
// unknown key, one that is there twice, a value of another type or that cannot be meant, and what contradicts
// something else. `log` is that of OJS_LOG_LEVEL and OJS_LOG_FORMAT, for which the same holds. Thread-safe,
// as far as `lookup` is.
result<launcher_options> read_launcher_config(std::string_view json,
                                              const environment_lookup& lookup = nullptr);

}  // namespace v0_1_0
}  // namespace ojs
