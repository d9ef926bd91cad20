#pragma once

#include "../coordinator/message_json.ipp"
#include "admin_messages.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr const char* instance_state_names[] = {
    "SPAWNING",           "STARTING", "WARMING",  "READY",  "UNHEALTHY",
    "SHUTDOWN_REQUESTED", "DRAINING", "COMPLETE", "FORCED", "CRASHED"};
inline constexpr const char* retry_policy_names[] = {"AS_CONFIGURED", "MANUAL", "IMMEDIATE", "BACKOFF"};
inline constexpr const char* replacement_phase_names[] = {"NONE",     "STARTING",    "CANARIES",
                                                          "DRAINING", "PAUSING",     "ROLLING_BACK",
                                                          "DONE",     "ROLLED_BACK", "CANCELLED"};

template <>
inline constexpr enum_type enum_of<instance_state>{"ProcessStatus.State", instance_state_names, 10};
template <>
inline constexpr enum_type enum_of<retry_policy>{"RollingReplaceRequest.Retry", retry_policy_names, 4};
template <>
inline constexpr enum_type enum_of<replacement_phase>{"ReplacementStatus.Phase", replacement_phase_names, 9};

OJS_SHUTDOWN_INLINE message_view describe(shutdown_process_request& message, in_detail) {
    return {"ShutdownProcessRequest",
            {item("process_id", message.process_id), item("reason", message.reason),
             item("grace_period_seconds", message.grace_period_seconds),
             item("max_shutdown_seconds", message.max_shutdown_seconds), item("dry_run", message.dry_run),
             item("force", message.force)}};
}
OJS_SHUTDOWN_INLINE message_view describe(shutdown_process_response& message, in_detail) {
    return {"ShutdownProcessResponse",
            {item("acknowledged", message.acknowledged), item("message", message.message),
             item("status", message.status)}};
}
OJS_SHUTDOWN_INLINE message_view describe(process_status_request& message, in_detail) {
    return {"ProcessStatusRequest", {item("process_id", message.process_id)}};
}
OJS_SHUTDOWN_INLINE message_view describe(process_status& message, in_detail) {
    return {"ProcessStatus",
            {item("process_id", message.process_id), item("group", message.group),
             item("state", message.state), item("pid", message.pid), item("message", message.message),
             item("readiness", message.readiness), item("shutdown", message.shutdown),
             item("uptime_ms", message.uptime_ms), item("exit", message.exit)}};
}
OJS_SHUTDOWN_INLINE message_view describe(shutdown_group_request& message, in_detail) {
    return {"ShutdownGroupRequest",
            {item("group", message.group), item("reason", message.reason), item("dry_run", message.dry_run),
             item("force", message.force)}};
}
OJS_SHUTDOWN_INLINE message_view describe(shutdown_group_response& message, in_detail) {
    return {"ShutdownGroupResponse",
            {item("acknowledged", message.acknowledged), item("message", message.message),
             item("processes", message.processes)}};
}
OJS_SHUTDOWN_INLINE message_view describe(group_status_request& message, in_detail) {
    return {"GroupStatusRequest", {item("group", message.group)}};
}
OJS_SHUTDOWN_INLINE message_view describe(replacement_status& message, in_detail) {
    return {"ReplacementStatus",
            {item("phase", message.phase), item("replaced", message.replaced), item("total", message.total),
             item("retries", message.retries), item("cancelling", message.cancelling),
             item("failed_id", message.failed_id), item("error", message.error)}};
}
OJS_SHUTDOWN_INLINE message_view describe(group_status& message, in_detail) {
    return {"GroupStatus",
            {item("group", message.group), item("desired", message.desired),
             item("min_healthy", message.min_healthy), item("ready", message.ready),
             item("replacing", message.replacing), item("degraded", message.degraded),
             item("message", message.message), item("processes", message.processes),
             item("replacement", message.replacement), item("quiet", message.quiet)}};
}
OJS_SHUTDOWN_INLINE message_view describe(rolling_replace_request& message, in_detail) {
    return {"RollingReplaceRequest",
            {item("group", message.group), item("reason", message.reason), item("canary", message.canary),
             item("canary_seconds", message.canary_seconds), item("dry_run", message.dry_run),
             item("retry", message.retry), item("retries", message.retries)}};
}
OJS_SHUTDOWN_INLINE message_view describe(rolling_replace_response& message, in_detail) {
    return {"RollingReplaceResponse",
            {item("acknowledged", message.acknowledged), item("message", message.message),
             item("processes", message.processes)}};
}
OJS_SHUTDOWN_INLINE message_view describe(cancel_replace_request& message, in_detail) {
    return {"CancelReplaceRequest", {item("group", message.group), item("reason", message.reason)}};
}
OJS_SHUTDOWN_INLINE message_view describe(cancel_replace_response& message, in_detail) {
    return {"CancelReplaceResponse",
            {item("acknowledged", message.acknowledged), item("message", message.message),
             item("replacement", message.replacement)}};
}
OJS_SHUTDOWN_INLINE message_view describe(list_groups_request&, in_detail) {
    return {"ListGroupsRequest", {}};
}
OJS_SHUTDOWN_INLINE message_view describe(list_groups_response& message, in_detail) {
    return {"ListGroupsResponse", {item("groups", message.groups)}};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(instance_state state) noexcept {
    return detail::enum_name(state);
}
OJS_SHUTDOWN_INLINE const char* to_string(retry_policy policy) noexcept {
    return detail::enum_name(policy);
}
OJS_SHUTDOWN_INLINE const char* to_string(replacement_phase phase) noexcept {
    return detail::enum_name(phase);
}

}  // namespace v0_1_0
}  // namespace ojs
