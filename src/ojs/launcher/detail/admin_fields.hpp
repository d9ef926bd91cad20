// admin_fields: the administrator's messages in the table of message_fields.
#pragma once

#include "../../coordinator/detail/message_fields.hpp"
#include "../admin_messages.hpp"

namespace ojs::detail {

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

inline constexpr rpc_method manager_methods[] = {
    {"ShutdownProcess", "ShutdownProcessRequest", "ShutdownProcessResponse"},
    {"GetProcessStatus", "ProcessStatusRequest", "ProcessStatus"},
    {"ShutdownGroup", "ShutdownGroupRequest", "ShutdownGroupResponse"},
    {"GetGroupStatus", "GroupStatusRequest", "GroupStatus"},
    {"RollingReplace", "RollingReplaceRequest", "RollingReplaceResponse"},
    {"CancelReplace", "CancelReplaceRequest", "CancelReplaceResponse"},
    {"ListGroups", "ListGroupsRequest", "ListGroupsResponse"},
};

}  // namespace ojs::detail
