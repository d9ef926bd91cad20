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

OJS_SHUTDOWN_INLINE message_view describe(shutdown_process_request& of, in_detail) {
    return {"ShutdownProcessRequest",
            {item("process_id", of.process_id), item("reason", of.reason),
             item("grace_period_seconds", of.grace_period_seconds),
             item("max_shutdown_seconds", of.max_shutdown_seconds), item("dry_run", of.dry_run),
             item("force", of.force)}};
}
OJS_SHUTDOWN_INLINE message_view describe(shutdown_process_response& of, in_detail) {
    return {"ShutdownProcessResponse",
            {item("acknowledged", of.acknowledged), item("message", of.message), item("status", of.status)}};
}
OJS_SHUTDOWN_INLINE message_view describe(process_status_request& of, in_detail) {
    return {"ProcessStatusRequest", {item("process_id", of.process_id)}};
}
OJS_SHUTDOWN_INLINE message_view describe(process_status& of, in_detail) {
    return {"ProcessStatus",
            {item("process_id", of.process_id), item("group", of.group), item("state", of.state),
             item("pid", of.pid), item("message", of.message), item("readiness", of.readiness),
             item("shutdown", of.shutdown), item("uptime_ms", of.uptime_ms), item("exit", of.exit)}};
}
OJS_SHUTDOWN_INLINE message_view describe(shutdown_group_request& of, in_detail) {
    return {"ShutdownGroupRequest",
            {item("group", of.group), item("reason", of.reason), item("dry_run", of.dry_run),
             item("force", of.force)}};
}
OJS_SHUTDOWN_INLINE message_view describe(shutdown_group_response& of, in_detail) {
    return {"ShutdownGroupResponse",
            {item("acknowledged", of.acknowledged), item("message", of.message),
             item("processes", of.processes)}};
}
OJS_SHUTDOWN_INLINE message_view describe(group_status_request& of, in_detail) {
    return {"GroupStatusRequest", {item("group", of.group)}};
}
OJS_SHUTDOWN_INLINE message_view describe(replacement_status& of, in_detail) {
    return {"ReplacementStatus",
            {item("phase", of.phase), item("replaced", of.replaced), item("total", of.total),
             item("retries", of.retries), item("cancelling", of.cancelling), item("failed_id", of.failed_id),
             item("error", of.error)}};
}
OJS_SHUTDOWN_INLINE message_view describe(group_status& of, in_detail) {
    return {"GroupStatus",
            {item("group", of.group), item("desired", of.desired), item("min_healthy", of.min_healthy),
             item("ready", of.ready), item("replacing", of.replacing), item("degraded", of.degraded),
             item("message", of.message), item("processes", of.processes),
             item("replacement", of.replacement), item("quiet", of.quiet)}};
}
OJS_SHUTDOWN_INLINE message_view describe(rolling_replace_request& of, in_detail) {
    return {"RollingReplaceRequest",
            {item("group", of.group), item("reason", of.reason), item("canary", of.canary),
             item("canary_seconds", of.canary_seconds), item("dry_run", of.dry_run), item("retry", of.retry),
             item("retries", of.retries)}};
}
OJS_SHUTDOWN_INLINE message_view describe(rolling_replace_response& of, in_detail) {
    return {"RollingReplaceResponse",
            {item("acknowledged", of.acknowledged), item("message", of.message),
             item("processes", of.processes)}};
}
OJS_SHUTDOWN_INLINE message_view describe(cancel_replace_request& of, in_detail) {
    return {"CancelReplaceRequest", {item("group", of.group), item("reason", of.reason)}};
}
OJS_SHUTDOWN_INLINE message_view describe(cancel_replace_response& of, in_detail) {
    return {"CancelReplaceResponse",
            {item("acknowledged", of.acknowledged), item("message", of.message),
             item("replacement", of.replacement)}};
}
OJS_SHUTDOWN_INLINE message_view describe(list_groups_request&, in_detail) {
    return {"ListGroupsRequest", {}};
}
OJS_SHUTDOWN_INLINE message_view describe(list_groups_response& of, in_detail) {
    return {"ListGroupsResponse", {item("groups", of.groups)}};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(instance_state state) noexcept {
    return detail::name_of(state);
}
OJS_SHUTDOWN_INLINE const char* to_string(retry_policy policy) noexcept {
    return detail::name_of(policy);
}
OJS_SHUTDOWN_INLINE const char* to_string(replacement_phase phase) noexcept {
    return detail::name_of(phase);
}

}  // namespace v0_1_0
}  // namespace ojs
