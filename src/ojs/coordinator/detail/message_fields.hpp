// message_fields: the table of all messages, which the reader and the writer of JSON walk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../../base/detail/array.hpp"
#include "../admin_messages.hpp"
#include "../messages.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// The values of an enumeration, from 0 up. Its name holds that of the message it stands in: "ShutdownStatus.State".
struct enum_type {
    const char* name;
    const char* const* values;
    std::size_t count;
};

enum class field_kind : unsigned char {
    text,
    flag,
    int32,
    int64,
    texts,      // repeated string
    checks,     // map<string, bool>
    processes,  // repeated ProcessStatus
    shutdown_state,
    readiness_state,
    instance_state,
    retry_policy,
    replacement_phase,
    message
};

struct message_view;

// A field of one message that exists: where its value is, and what it is called. The member's own type picks the kind, so
// no table can say it wrong.
struct message_field {
    message_field() = default;
    message_field(int no, const char* id, std::string& at) : message_field(no, id, &at, field_kind::text) {}
    message_field(int no, const char* id, bool& at) : message_field(no, id, &at, field_kind::flag) {}
    message_field(int no, const char* id, std::int32_t& at) : message_field(no, id, &at, field_kind::int32) {}
    message_field(int no, const char* id, std::int64_t& at) : message_field(no, id, &at, field_kind::int64) {}
    message_field(int no, const char* id, std::vector<std::string>& at)
        : message_field(no, id, &at, field_kind::texts) {}
    message_field(int no, const char* id, std::vector<readiness_check>& at)
        : message_field(no, id, &at, field_kind::checks) {}
    message_field(int no, const char* id, std::vector<process_status>& at)
        : message_field(no, id, &at, field_kind::processes) {}
    message_field(int no, const char* id, shutdown_state& at)
        : message_field(no, id, &at, field_kind::shutdown_state) {}
    message_field(int no, const char* id, readiness_state& at)
        : message_field(no, id, &at, field_kind::readiness_state) {}
    message_field(int no, const char* id, instance_state& at)
        : message_field(no, id, &at, field_kind::instance_state) {}
    message_field(int no, const char* id, retry_policy& at)
        : message_field(no, id, &at, field_kind::retry_policy) {}
    message_field(int no, const char* id, replacement_phase& at)
        : message_field(no, id, &at, field_kind::replacement_phase) {}
    message_field(int number, const char* name, message_view value);

    int number = 0;         // from 1, as in the .proto
    const char* name = "";  // as there, in snake_case
    field_kind kind = field_kind::message;
    void* value = nullptr;                  // null for a message
    const enum_type* enumerated = nullptr;  // of an enumeration
    const char* message_name = "";          // of a message, as are its fields
    array<message_field> fields;

  private:
    message_field(int number, const char* name, void* value, field_kind kind);
};

// Good for as long as the message stays where it is.
struct message_view {
    const char* name;
    array<message_field> fields;
};

message_view view_of(shutdown_request& message);
message_view view_of(shutdown_ack& message);
message_view view_of(shutdown_status_request& message);
message_view view_of(shutdown_status& message);
message_view view_of(shutdown_metrics& message);
message_view view_of(shutdown_complete& message);
message_view view_of(shutdown_complete_ack& message);
message_view view_of(readiness_request& message);
message_view view_of(readiness_response& message);
message_view view_of(readiness_checks& message);
message_view view_of(ready_notification& message);
message_view view_of(ready_ack& message);

message_view view_of(shutdown_process_request& message);
message_view view_of(shutdown_process_response& message);
message_view view_of(process_status_request& message);
message_view view_of(process_status& message);
message_view view_of(shutdown_group_request& message);
message_view view_of(shutdown_group_response& message);
message_view view_of(group_status_request& message);
message_view view_of(replacement_status& message);
message_view view_of(group_status& message);
message_view view_of(rolling_replace_request& message);
message_view view_of(rolling_replace_response& message);
message_view view_of(cancel_replace_request& message);
message_view view_of(cancel_replace_response& message);
message_view view_of(list_groups_request& message);
message_view view_of(list_groups_response& message);

// What a service's methods take and give.
struct rpc_method {
    const char* name;
    const char* request;
    const char* answer;
};

inline constexpr rpc_method lifecycle_methods[] = {
    {"Shutdown", "ShutdownRequest", "ShutdownAck"},
    {"GetShutdownStatus", "ShutdownStatusRequest", "ShutdownStatus"},
    {"NotifyShutdownComplete", "ShutdownComplete", "ShutdownCompleteAck"},
    {"GetReadinessStatus", "ReadinessRequest", "ReadinessResponse"},
    {"NotifyReady", "ReadyNotification", "ReadyAck"},
};
inline constexpr rpc_method manager_methods[] = {
    {"ShutdownProcess", "ShutdownProcessRequest", "ShutdownProcessResponse"},
    {"GetProcessStatus", "ProcessStatusRequest", "ProcessStatus"},
    {"ShutdownGroup", "ShutdownGroupRequest", "ShutdownGroupResponse"},
    {"GetGroupStatus", "GroupStatusRequest", "GroupStatus"},
    {"RollingReplace", "RollingReplaceRequest", "RollingReplaceResponse"},
    {"CancelReplace", "CancelReplaceRequest", "CancelReplaceResponse"},
    {"ListGroups", "ListGroupsRequest", "ListGroupsResponse"},
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
