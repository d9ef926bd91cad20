#pragma once

#include <chrono>
#include <utility>

#include "message_fields.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr const char* shutdown_state_names[] = {"RUNNING",           "SHUTDOWN_REQUESTED",
                                                       "SHUTDOWN_DRAINING", "SHUTDOWN_BLOCKED",
                                                       "SHUTDOWN_COMPLETE", "SHUTDOWN_FORCED"};
inline constexpr const char* readiness_state_names[] = {"STARTING", "WARMING", "READY", "DRAINING",
                                                        "UNHEALTHY"};
inline constexpr const char* instance_state_names[] = {
    "SPAWNING",           "STARTING", "WARMING",  "READY",  "UNHEALTHY",
    "SHUTDOWN_REQUESTED", "DRAINING", "COMPLETE", "FORCED", "CRASHED"};
inline constexpr const char* retry_policy_names[] = {"AS_CONFIGURED", "MANUAL", "IMMEDIATE", "BACKOFF"};
inline constexpr const char* replacement_phase_names[] = {"NONE",     "STARTING",    "CANARIES",
                                                          "DRAINING", "PAUSING",     "ROLLING_BACK",
                                                          "DONE",     "ROLLED_BACK", "CANCELLED"};

template <class State, std::size_t Count>
const char* name_in(const char* const (&names)[Count], State state) noexcept {
    const auto place = static_cast<std::size_t>(state);  // a negative one is beyond them all
    return place < Count ? names[place] : "UNKNOWN";
}

inline constexpr std::chrono::milliseconds longest_shutdown{std::chrono::hours(24)};

// Rounded up, and at least 1: 0 would mean that nothing was said.
inline std::int32_t wire_seconds(std::chrono::milliseconds time) noexcept {
    const std::chrono::milliseconds bounded = time < longest_shutdown ? time : longest_shutdown;
    return bounded.count() < 1 ? 1 : static_cast<std::int32_t>((bounded.count() + 999) / 1000);
}

// What a message says, or `fallback` where it says nothing.
inline std::chrono::milliseconds said_or(std::int32_t seconds, std::chrono::milliseconds fallback) noexcept {
    const std::chrono::milliseconds said = seconds == 0 ? fallback : std::chrono::seconds(seconds);
    return said < longest_shutdown ? said : longest_shutdown;
}

// ---- the messages, as RFC-041 lists them ----

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_request& message) {
    return {"ShutdownRequest",
            {{1, "process_id", message.process_id},
             {2, "reason", message.reason},
             {3, "grace_period_seconds", message.grace_period_seconds},
             {4, "max_shutdown_seconds", message.max_shutdown_seconds}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_ack& message) {
    return {"ShutdownAck",
            {{1, "acknowledged", message.acknowledged},
             {2, "estimated_seconds", message.estimated_seconds},
             {3, "message", message.message}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_status_request& message) {
    return {"ShutdownStatusRequest", {{1, "process_id", message.process_id}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_status& message) {
    return {"ShutdownStatus",
            {{1, "state", message.state},
             {2, "message", message.message},
             {3, "metrics", view_of(message.metrics)},
             {4, "need_more_time", message.need_more_time},
             {5, "additional_seconds", message.additional_seconds}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_metrics& message) {
    return {"ShutdownMetrics",
            {{1, "in_flight_requests", message.in_flight_requests},
             {2, "open_connections", message.open_connections},
             {3, "buffered_bytes", message.buffered_bytes},
             {4, "blocking_operations", message.blocking_operations}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_complete& message) {
    return {"ShutdownComplete",
            {{1, "process_id", message.process_id},
             {2, "message", message.message},
             {3, "shutdown_duration_ms", message.shutdown_duration_ms}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_complete_ack& message) {
    return {"ShutdownCompleteAck", {{1, "acknowledged", message.acknowledged}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(readiness_request& message) {
    return {"ReadinessRequest", {{1, "process_id", message.process_id}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(readiness_response& message) {
    return {"ReadinessResponse",
            {{1, "state", message.state},
             {2, "message", message.message},
             {3, "checks", view_of(message.checks)}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(readiness_checks& message) {
    return {"ReadinessChecks",
            {{1, "grpc_server_ready", message.grpc_server_ready},
             {2, "backend_connected", message.backend_connected},
             {3, "backend_warmed", message.backend_warmed},
             {4, "custom_checks", message.custom_checks}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(ready_notification& message) {
    return {"ReadyNotification", {{1, "process_id", message.process_id}, {2, "message", message.message}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(ready_ack& message) {
    return {"ReadyAck", {{1, "acknowledged", message.acknowledged}}};
}

// ---- the administrator's ----

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_process_request& message) {
    return {"ShutdownProcessRequest",
            {{1, "process_id", message.process_id},
             {2, "reason", message.reason},
             {3, "grace_period_seconds", message.grace_period_seconds},
             {4, "max_shutdown_seconds", message.max_shutdown_seconds},
             {5, "dry_run", message.dry_run},
             {6, "force", message.force}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_process_response& message) {
    return {"ShutdownProcessResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "status", view_of(message.status)}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(process_status_request& message) {
    return {"ProcessStatusRequest", {{1, "process_id", message.process_id}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(process_status& message) {
    return {"ProcessStatus",
            {{1, "process_id", message.process_id},
             {2, "group", message.group},
             {3, "state", message.state},
             {4, "pid", message.pid},
             {5, "message", message.message},
             {6, "readiness", view_of(message.readiness)},
             {7, "shutdown", view_of(message.shutdown)},
             {8, "uptime_ms", message.uptime_ms},
             {9, "exit", message.exit}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_group_request& message) {
    return {"ShutdownGroupRequest",
            {{1, "group", message.group},
             {2, "reason", message.reason},
             {3, "dry_run", message.dry_run},
             {4, "force", message.force}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(shutdown_group_response& message) {
    return {"ShutdownGroupResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "processes", message.processes}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(group_status_request& message) {
    return {"GroupStatusRequest", {{1, "group", message.group}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(replacement_status& message) {
    return {"ReplacementStatus",
            {{1, "phase", message.phase},
             {2, "replaced", message.replaced},
             {3, "of", message.of},
             {4, "retries", message.retries},
             {5, "cancelling", message.cancelling},
             {6, "failed_id", message.failed_id},
             {7, "why", message.why}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(group_status& message) {
    return {"GroupStatus",
            {{1, "group", message.group},
             {2, "desired", message.desired},
             {3, "min_healthy", message.min_healthy},
             {4, "ready", message.ready},
             {5, "replacing", message.replacing},
             {6, "degraded", message.degraded},
             {7, "message", message.message},
             {8, "processes", message.processes},
             {9, "replacement", view_of(message.replacement)},
             {10, "quiet", message.quiet}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(rolling_replace_request& message) {
    return {"RollingReplaceRequest",
            {{1, "group", message.group},
             {2, "reason", message.reason},
             {3, "canary", message.canary},
             {4, "canary_seconds", message.canary_seconds},
             {5, "dry_run", message.dry_run},
             {6, "retry", message.retry},
             {7, "retries", message.retries}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(rolling_replace_response& message) {
    return {"RollingReplaceResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "processes", message.processes}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(cancel_replace_request& message) {
    return {"CancelReplaceRequest", {{1, "group", message.group}, {2, "reason", message.reason}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(cancel_replace_response& message) {
    return {"CancelReplaceResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "replacement", view_of(message.replacement)}}};
}

OJS_SHUTDOWN_INLINE message_view view_of(list_groups_request& /*message*/) {
    return {"ListGroupsRequest", {}};
}

OJS_SHUTDOWN_INLINE message_view view_of(list_groups_response& message) {
    return {"ListGroupsResponse", {{1, "groups", message.groups}}};
}

// ---- fields ----

// In the order of field_kind, from shutdown_state on.
inline constexpr enum_type enum_types[] = {{"ShutdownStatus.State", shutdown_state_names, 6},
                                           {"ReadinessResponse.ReadinessState", readiness_state_names, 5},
                                           {"ProcessStatus.State", instance_state_names, 10},
                                           {"RollingReplaceRequest.Retry", retry_policy_names, 4},
                                           {"ReplacementStatus.Phase", replacement_phase_names, 9}};

OJS_SHUTDOWN_INLINE message_field::message_field(int given_number, const char* given_name, void* place,
                                                 field_kind given_kind)
    : number(given_number), name(given_name), kind(given_kind), value(place) {
    if (kind >= field_kind::shutdown_state && kind < field_kind::message)
        enumerated = &enum_types[static_cast<int>(kind) - static_cast<int>(field_kind::shutdown_state)];
}

OJS_SHUTDOWN_INLINE message_field::message_field(int given_number, const char* given_name,
                                                 message_view message)
    : number(given_number), name(given_name), message_name(message.name), fields(std::move(message.fields)) {}

}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(shutdown_state state) noexcept {
    return detail::name_in(detail::shutdown_state_names, state);
}
OJS_SHUTDOWN_INLINE const char* to_string(readiness_state state) noexcept {
    return detail::name_in(detail::readiness_state_names, state);
}
OJS_SHUTDOWN_INLINE const char* to_string(instance_state state) noexcept {
    return detail::name_in(detail::instance_state_names, state);
}
OJS_SHUTDOWN_INLINE const char* to_string(retry_policy policy) noexcept {
    return detail::name_in(detail::retry_policy_names, policy);
}
OJS_SHUTDOWN_INLINE const char* to_string(replacement_phase phase) noexcept {
    return detail::name_in(detail::replacement_phase_names, phase);
}

}  // namespace v0_1_0
}  // namespace ojs
