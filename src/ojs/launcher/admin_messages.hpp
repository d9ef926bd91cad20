// admin_messages: the messages between an operator's tool and a launcher. [RFC-041 "Admin Delegated Shutdown"]
//
// The RFC names ShutdownProcess and GetProcessStatus and requires the rest (P1 "Admin delegation", "Status API",
// P2 "dry-run", "Canary"). The field numbers are ours; examples/proto/admin.proto lists them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../coordinator/message_json.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// The full service name, as in a request's path.
inline constexpr const char* manager_service = "prism.interfaces.ProcessManagerInterface";
/// A second service name, for StopProcess, which is ShutdownProcess, and GetProcessStatus. [RFC-041 "Admin
/// Delegated Shutdown"]
inline constexpr const char* admin_service = "prism.interfaces.AdminService";

/// The state of a process, as its launcher sees it. ProcessStatus.State. [RFC-041 "Process State Machine"]
enum class instance_state : std::int32_t {
    spawning,            ///< fork and exec are in progress
    starting,            ///< runs and initialises
    warming,             ///< warms up its backend connections
    ready,               ///< takes work
    unhealthy,           ///< failed a health check, or was not ready in time
    shutdown_requested,  ///< received the shutdown request
    draining,            ///< finishes its work in flight
    complete,            ///< exited with status 0
    forced,              ///< ended by SIGTERM or SIGKILL
    crashed              ///< exited in any other way
};

/// "SHUTDOWN_REQUESTED". Never null. Thread-safe.
const char* to_string(instance_state state) noexcept;

/// What a rollout does when a new process does not become ready. RollingReplaceRequest.Retry. [RFC-041 "Rollback on
/// Failed Replacement" 4]
enum class retry_policy : std::int32_t {
    as_configured,  ///< use the group's configuration
    manual,         ///< roll back; an operator decides
    immediate,      ///< start another process at once
    backoff         ///< start another process after a back-off
};

/// The phase of a group's current or last rollout. ReplacementStatus.Phase.
enum class rollout_phase : std::int32_t {
    none,          ///< there has been no rollout
    starting,      ///< waits for new processes to become ready
    canaries,      ///< watches the canaries
    draining,      ///< waits for old processes to drain
    pausing,       ///< backs off before the next retry
    rolling_back,  ///< restores the old configuration
    done,          ///< every process has the new configuration
    rolled_back,   ///< failed; the old configuration runs
    cancelled      ///< new processes that are ready are kept
};

/// "BACKOFF". Never null. Thread-safe.
const char* to_string(retry_policy policy) noexcept;
/// "ROLLING_BACK". Never null. Thread-safe.
const char* to_string(rollout_phase phase) noexcept;

/// Asks for the end of one process. ShutdownProcess.
struct shutdown_process_request {
    std::string process_id;                 ///< id of the process
    std::string reason;                     ///< for the log
    std::int32_t grace_period_seconds = 0;  ///< seconds; 0: the group's value. At most its max_duration
    std::int32_t max_shutdown_seconds = 0;  ///< seconds; 0: the group's value, which is also the maximum
    bool dry_run = false;                   ///< only reports what would be drained
    bool force = false;                     ///< skips the drain: SIGTERM now, then SIGKILL
};

/// The response to a shutdown_process_request.
struct shutdown_process_response {
    bool acknowledged = false;  ///< the shutdown has started
    std::string message;        ///< for people
    shutdown_status status;     ///< the current status of the process
};

/// Asks for the status of one process. GetProcessStatus.
struct process_status_request {
    std::string process_id;  ///< id of the process
};

/// Status of one process.
struct process_status {
    std::string process_id;                           ///< id of the process
    std::string group;                                ///< name of its group
    instance_state state = instance_state::spawning;  ///< what the launcher sees
    std::int32_t pid = 0;                             ///< process ID; 0: not started
    std::string message;                              ///< its last message, or the reason for its state
    readiness_response readiness;                     ///< its last readiness response
    shutdown_status shutdown;                         ///< its last shutdown status
    std::int64_t uptime_ms = 0;                       ///< ms since its start
    std::string exit;                                 ///< how it exited ("exit status 3"); empty: it runs
};

/// Asks for the end of all processes of a group. ShutdownGroup.
struct shutdown_group_request {
    std::string group;                      ///< name of the group
    std::string reason;                     ///< for the log
    bool dry_run = false;                   ///< only reports what would be drained
    bool force = false;                     ///< skips the drain: SIGTERM now, then SIGKILL
    std::int32_t grace_period_seconds = 0;  ///< that of shutdown_process_request
    std::int32_t max_shutdown_seconds = 0;  ///< that of shutdown_process_request
};

/// The response to a shutdown_group_request.
struct shutdown_group_response {
    bool acknowledged = false;  ///< the shutdown has begun
    std::string message;        ///< for people
    /// Dry run only: the processes that would be drained, with their work in flight.
    std::vector<process_status> processes;
};

/// Asks for the status of a group. GetGroupStatus.
struct group_status_request {
    std::string group;  ///< name of the group
};

/// The progress of a rollout.
struct rollout_status {
    rollout_phase phase = rollout_phase::none;  ///< where it stands
    std::int32_t replaced = 0;                  ///< old processes replaced by new ones
    std::int32_t total = 0;                     ///< processes when it began
    std::int32_t retries = 0;                   ///< new processes started after one did not become ready
    bool cancelling = false;                    ///< ends when its current step has ended
    std::string failed_id;                      ///< the last process that did not become ready
    std::string error;                          ///< why it failed
};

/// Status of a group.
struct group_status {
    std::string group;                      ///< name of the group
    std::int32_t desired = 0;               ///< number of processes to keep running
    std::int32_t min_healthy = 0;           ///< a rollout never leaves fewer ready
    std::int32_t ready = 0;                 ///< number of ready processes
    bool replacing = false;                 ///< a rollout is in progress
    bool degraded = false;                  ///< a slot is empty: failed too often, or cannot start
    std::string message;                    ///< the result of the last rollout
    std::vector<process_status> processes;  ///< running ones by age, then the last that ended
    rollout_status rollout;                 ///< the current or the last rollout
    bool quiet = false;                     ///< the launcher is quiet: it starts, replaces and kills no process
};

/// Asks for a rollout: new processes for all of a group. RollingReplace.
struct rollout_request {
    std::string group;                                 ///< name of the group
    std::string reason;                                ///< for the log and the processes
    std::int32_t canary = 0;                           ///< number of processes to replace first
    std::int32_t canary_seconds = 0;                   ///< seconds they must stay ready before the rest follows
    bool dry_run = false;                              ///< only reports what would be drained
    retry_policy retry = retry_policy::as_configured;  ///< when a new process does not become ready
    std::int32_t retries = 0;                          ///< maximum; 0: as configured
};

/// The response to a rollout_request.
struct rollout_response {
    bool acknowledged = false;              ///< the rollout has started
    std::string message;                    ///< for people
    std::vector<process_status> processes;  ///< dry run only: the processes that would be drained, in order
};

/// Cancels a rollout. New processes that are ready are kept, and so are old ones that still run. CancelReplace.
struct cancel_rollout_request {
    std::string group;   ///< name of the group
    std::string reason;  ///< for the log
};

/// The response to a cancel_rollout_request.
struct cancel_rollout_response {
    bool acknowledged = false;  ///< the cancellation has started
    std::string message;        ///< for people
    rollout_status rollout;     ///< its current progress
};

/// Asks for the names of all groups. ListGroups.
struct list_groups_request {};

/// The response to a list_groups_request.
struct list_groups_response {
    std::vector<std::string> groups;  ///< their names
};

namespace detail {
message_view json_fields(shutdown_process_request& message, adl_tag);
message_view json_fields(shutdown_process_response& message, adl_tag);
message_view json_fields(process_status_request& message, adl_tag);
message_view json_fields(process_status& message, adl_tag);
message_view json_fields(shutdown_group_request& message, adl_tag);
message_view json_fields(shutdown_group_response& message, adl_tag);
message_view json_fields(group_status_request& message, adl_tag);
message_view json_fields(rollout_status& message, adl_tag);
message_view json_fields(group_status& message, adl_tag);
message_view json_fields(rollout_request& message, adl_tag);
message_view json_fields(rollout_response& message, adl_tag);
message_view json_fields(cancel_rollout_request& message, adl_tag);
message_view json_fields(cancel_rollout_response& message, adl_tag);
message_view json_fields(list_groups_request& message, adl_tag);
message_view json_fields(list_groups_response& message, adl_tag);
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
