#pragma once

#include "../../coordinator/detail/message_fields.ipp"
#include "admin_fields.hpp"

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
struct enum_of<instance_state> {
    static const enum_type& get() noexcept {
        static constexpr enum_type type{"ProcessStatus.State", instance_state_names, 10};
        return type;
    }
};
template <>
struct enum_of<retry_policy> {
    static const enum_type& get() noexcept {
        static constexpr enum_type type{"RollingReplaceRequest.Retry", retry_policy_names, 4};
        return type;
    }
};
template <>
struct enum_of<replacement_phase> {
    static const enum_type& get() noexcept {
        static constexpr enum_type type{"ReplacementStatus.Phase", replacement_phase_names, 9};
        return type;
    }
};

OJS_SHUTDOWN_INLINE message_view describe(shutdown_process_request& message, in_detail) {
    return {"ShutdownProcessRequest",
            {{1, "process_id", message.process_id},
             {2, "reason", message.reason},
             {3, "grace_period_seconds", message.grace_period_seconds},
             {4, "max_shutdown_seconds", message.max_shutdown_seconds},
             {5, "dry_run", message.dry_run},
             {6, "force", message.force}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_process_response& message, in_detail) {
    return {"ShutdownProcessResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "status", view_of(message.status)}}};
}

OJS_SHUTDOWN_INLINE message_view describe(process_status_request& message, in_detail) {
    return {"ProcessStatusRequest", {{1, "process_id", message.process_id}}};
}

OJS_SHUTDOWN_INLINE message_view describe(process_status& message, in_detail) {
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

OJS_SHUTDOWN_INLINE message_view describe(shutdown_group_request& message, in_detail) {
    return {"ShutdownGroupRequest",
            {{1, "group", message.group},
             {2, "reason", message.reason},
             {3, "dry_run", message.dry_run},
             {4, "force", message.force}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_group_response& message, in_detail) {
    return {"ShutdownGroupResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "processes", message.processes}}};
}

OJS_SHUTDOWN_INLINE message_view describe(group_status_request& message, in_detail) {
    return {"GroupStatusRequest", {{1, "group", message.group}}};
}

OJS_SHUTDOWN_INLINE message_view describe(replacement_status& message, in_detail) {
    return {"ReplacementStatus",
            {{1, "phase", message.phase},
             {2, "replaced", message.replaced},
             {3, "of", message.of},
             {4, "retries", message.retries},
             {5, "cancelling", message.cancelling},
             {6, "failed_id", message.failed_id},
             {7, "why", message.why}}};
}

OJS_SHUTDOWN_INLINE message_view describe(group_status& message, in_detail) {
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

OJS_SHUTDOWN_INLINE message_view describe(rolling_replace_request& message, in_detail) {
    return {"RollingReplaceRequest",
            {{1, "group", message.group},
             {2, "reason", message.reason},
             {3, "canary", message.canary},
             {4, "canary_seconds", message.canary_seconds},
             {5, "dry_run", message.dry_run},
             {6, "retry", message.retry},
             {7, "retries", message.retries}}};
}

OJS_SHUTDOWN_INLINE message_view describe(rolling_replace_response& message, in_detail) {
    return {"RollingReplaceResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "processes", message.processes}}};
}

OJS_SHUTDOWN_INLINE message_view describe(cancel_replace_request& message, in_detail) {
    return {"CancelReplaceRequest", {{1, "group", message.group}, {2, "reason", message.reason}}};
}

OJS_SHUTDOWN_INLINE message_view describe(cancel_replace_response& message, in_detail) {
    return {"CancelReplaceResponse",
            {{1, "acknowledged", message.acknowledged},
             {2, "message", message.message},
             {3, "replacement", view_of(message.replacement)}}};
}

OJS_SHUTDOWN_INLINE message_view describe(list_groups_request& /*message*/, in_detail) {
    return {"ListGroupsRequest", {}};
}

OJS_SHUTDOWN_INLINE message_view describe(list_groups_response& message, in_detail) {
    return {"ListGroupsResponse", {{1, "groups", message.groups}}};
}

}  // namespace detail

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
