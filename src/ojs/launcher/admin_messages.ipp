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
inline constexpr const char* rollout_phase_names[] = {"NONE",         "STARTING", "CANARIES",    "DRAINING", "PAUSING",
                                                      "ROLLING_BACK", "DONE",     "ROLLED_BACK", "CANCELLED"};

template <>
inline constexpr enum_type enum_of<instance_state>{"ProcessStatus.State", instance_state_names, 10};
template <>
inline constexpr enum_type enum_of<retry_policy>{"RollingReplaceRequest.Retry", retry_policy_names, 4};
template <>
inline constexpr enum_type enum_of<rollout_phase>{"ReplacementStatus.Phase", rollout_phase_names, 9};

OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_process_request& message, adl_tag) {
    return {"ShutdownProcessRequest",
            {item("process_id", message.process_id), item("reason", message.reason),
             item("grace_period_seconds", message.grace_period_seconds),
             item("max_shutdown_seconds", message.max_shutdown_seconds), item("dry_run", message.dry_run),
             item("force", message.force)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_process_response& message, adl_tag) {
    return {
        "ShutdownProcessResponse",
        {item("acknowledged", message.acknowledged), item("message", message.message), item("status", message.status)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(process_status_request& message, adl_tag) {
    return {"ProcessStatusRequest", {item("process_id", message.process_id)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(process_status& message, adl_tag) {
    return {"ProcessStatus",
            {item("process_id", message.process_id), item("group", message.group), item("state", message.state),
             item("pid", message.pid), item("message", message.message), item("readiness", message.readiness),
             item("shutdown", message.shutdown), item("uptime_ms", message.uptime_ms), item("exit", message.exit)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_group_request& message, adl_tag) {
    return {"ShutdownGroupRequest",
            {item("group", message.group), item("reason", message.reason), item("dry_run", message.dry_run),
             item("force", message.force), item("grace_period_seconds", message.grace_period_seconds),
             item("max_shutdown_seconds", message.max_shutdown_seconds)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_group_response& message, adl_tag) {
    return {"ShutdownGroupResponse",
            {item("acknowledged", message.acknowledged), item("message", message.message),
             item("processes", message.processes)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(group_status_request& message, adl_tag) {
    return {"GroupStatusRequest", {item("group", message.group)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(rollout_status& message, adl_tag) {
    return {"ReplacementStatus",
            {item("phase", message.phase), item("replaced", message.replaced), item("total", message.total),
             item("retries", message.retries), item("cancelling", message.cancelling),
             item("failed_id", message.failed_id), item("error", message.error)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(group_status& message, adl_tag) {
    return {"GroupStatus",
            {item("group", message.group), item("desired", message.desired), item("min_healthy", message.min_healthy),
             item("ready", message.ready), item("replacing", message.replacing), item("degraded", message.degraded),
             item("message", message.message), item("processes", message.processes),
             item("replacement", message.rollout), item("quiet", message.quiet)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(rollout_request& message, adl_tag) {
    return {"RollingReplaceRequest",
            {item("group", message.group), item("reason", message.reason), item("canary", message.canary),
             item("canary_seconds", message.canary_seconds), item("dry_run", message.dry_run),
             item("retry", message.retry), item("retries", message.retries)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(rollout_response& message, adl_tag) {
    return {"RollingReplaceResponse",
            {item("acknowledged", message.acknowledged), item("message", message.message),
             item("processes", message.processes)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(cancel_rollout_request& message, adl_tag) {
    return {"CancelReplaceRequest", {item("group", message.group), item("reason", message.reason)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(cancel_rollout_response& message, adl_tag) {
    return {"CancelReplaceResponse",
            {item("acknowledged", message.acknowledged), item("message", message.message),
             item("replacement", message.rollout)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(list_groups_request&, adl_tag) { return {"ListGroupsRequest", {}}; }
OJS_SHUTDOWN_INLINE message_view json_fields(list_groups_response& message, adl_tag) {
    return {"ListGroupsResponse", {item("groups", message.groups)}};
}
}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(instance_state state) noexcept { return detail::enum_name(state); }
OJS_SHUTDOWN_INLINE const char* to_string(retry_policy policy) noexcept { return detail::enum_name(policy); }
OJS_SHUTDOWN_INLINE const char* to_string(rollout_phase phase) noexcept { return detail::enum_name(phase); }
}  // namespace v0_1_0
}  // namespace ojs
