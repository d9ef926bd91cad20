// admin_messages: what an operator's tool and a launcher say to each other. [RFC-041 "Admin Delegated Shutdown"]
//
// The RFC names ShutdownProcess and GetProcessStatus and wants the rest (P1 "Admin delegation", "Status API",
// P2 "dry-run", "Canary"); the numbers are ours, as examples/proto/admin.proto lists them. As messages
// otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "../coordinator/message_json.hpp"

namespace ojs {
inline namespace v0_1_0 {

inline constexpr const char* manager_service = "prism.interfaces.ProcessManagerInterface";

// Where a process stands, as its launcher sees it. ProcessStatus.State. [RFC-041 "Process State Machine"]
enum class instance_state : std::int32_t {
    spawning,            // being started
    starting,            // runs, initialises
    warming,             // backend connections warm up
    ready,               // takes work
    unhealthy,           // failed a check, or was not ready in time
    shutdown_requested,  // was asked to shut down
    draining,            // finishes the work in flight
    complete,            // ended cleanly, because it was asked to
    forced,              // ended by SIGTERM or SIGKILL
    crashed              // ended otherwise
};

// "SHUTDOWN_REQUESTED"; as to_string(shutdown_state).
const char* to_string(instance_state state) noexcept;

// What a replacement does where a new process does not become ready. RollingReplaceRequest.Retry. [RFC-041 "Rollback on
// Failed Replacement" 4]
enum class retry_policy : std::int32_t {
    as_configured,  // what the group's configuration has
    manual,         // it is rolled back, and an operator decides
    immediate,      // another is tried at once
    backoff         // another is tried after a pause
};

// Where a replacement stands, the last one of its group. ReplacementStatus.Phase.
enum class replacement_phase : std::int32_t {
    none,          // there was none
    starting,      // new processes become ready
    canaries,      // the first ones are watched
    draining,      // old ones finish their work
    pausing,       // until another one is tried
    rolling_back,  // the old configuration comes again
    done,
    rolled_back,
    cancelled
};

// "BACKOFF", "ROLLING_BACK"; as to_string(shutdown_state).
const char* to_string(retry_policy policy) noexcept;
const char* to_string(replacement_phase phase) noexcept;

// ---- ShutdownProcess ----

struct shutdown_process_request {
    std::string process_id;
    std::string reason;                     // for the log
    std::int32_t grace_period_seconds = 0;  // s; 0: what its group has; never more than that
    std::int32_t max_shutdown_seconds = 0;  // the same
    bool dry_run = false;                   // only tells what would be drained
    bool force = false;                     // nothing is drained: SIGTERM now, then SIGKILL
};

struct shutdown_process_response {
    bool acknowledged = false;  // the shutdown has begun
    std::string message;
    shutdown_status status;  // of the process, now
};

// ---- GetProcessStatus ----

struct process_status_request {
    std::string process_id;
};

struct process_status {
    std::string process_id;
    std::string group;
    instance_state state = instance_state::spawning;
    std::int32_t pid = 0;
    std::string message;           // what it said last, or why it is as it is
    readiness_response readiness;  // its last answers
    shutdown_status shutdown;
    std::int64_t uptime_ms = 0;  // ms since it was started
    std::string exit;            // how it ended ("exit status 3"); empty: it runs
};

// ---- ShutdownGroup ----

struct shutdown_group_request {
    std::string group;
    std::string reason;
    bool dry_run = false;
    bool force = false;  // nothing is drained: SIGTERM now, then SIGKILL
};

struct shutdown_group_response {
    bool acknowledged = false;
    std::string message;
    std::vector<process_status>
        processes;  // of a dry run: what would be drained, and what they have in flight
};

// ---- GetGroupStatus ----

struct group_status_request {
    std::string group;
};

// How far a replacement has come.
struct replacement_status {
    replacement_phase phase = replacement_phase::none;
    std::int32_t replaced = 0;  // old ones that gave way to new ones
    std::int32_t total = 0;
    std::int32_t retries = 0;  // new ones that did not become ready, after which another was tried
    bool cancelling = false;   // it ends as soon as what it has begun has ended
    std::string failed_id;     // the last one that did not become ready
    std::string error;         // it did not
};

struct group_status {
    std::string group;
    std::int32_t desired = 0;
    std::int32_t min_healthy = 0;
    std::int32_t ready = 0;
    bool replacing = false;  // a rolling replacement is under way
    bool degraded = false;   // goes on with fewer than desired: they failed too often
    std::string message;     // how the last replacement ended
    std::vector<process_status> processes;
    replacement_status replacement;  // that is under way, or the last one
    bool quiet = false;              // the launcher is: nothing is started, replaced or given up
};

// ---- RollingReplace ----

struct rolling_replace_request {
    std::string group;
    std::string reason;
    std::int32_t canary = 0;          // so many first
    std::int32_t canary_seconds = 0;  // s that those must stay ready before the rest follows
    bool dry_run = false;
    retry_policy retry = retry_policy::as_configured;
    std::int32_t retries = 0;  // at most; 0: as configured
};

struct rolling_replace_response {
    bool acknowledged = false;  // it has begun
    std::string message;
    std::vector<process_status> processes;  // of a dry run: what would be drained, in that order
};

// ---- CancelReplace ----

// No more is replaced. What was replaced stays, and so does what was not.
struct cancel_replace_request {
    std::string group;
    std::string reason;  // for the log
};

struct cancel_replace_response {
    bool acknowledged = false;  // it goes no further
    std::string message;
    replacement_status replacement;  // as it stands
};

// ---- ListGroups ----

struct list_groups_request {};

struct list_groups_response {
    std::vector<std::string> groups;
};

namespace detail {
message_view describe(shutdown_process_request& message, in_detail);
message_view describe(shutdown_process_response& message, in_detail);
message_view describe(process_status_request& message, in_detail);
message_view describe(process_status& message, in_detail);
message_view describe(shutdown_group_request& message, in_detail);
message_view describe(shutdown_group_response& message, in_detail);
message_view describe(group_status_request& message, in_detail);
message_view describe(replacement_status& message, in_detail);
message_view describe(group_status& message, in_detail);
message_view describe(rolling_replace_request& message, in_detail);
message_view describe(rolling_replace_response& message, in_detail);
message_view describe(cancel_replace_request& message, in_detail);
message_view describe(cancel_replace_response& message, in_detail);
message_view describe(list_groups_request& message, in_detail);
message_view describe(list_groups_response& message, in_detail);
}  // namespace detail

}  // namespace v0_1_0
}  // namespace ojs
