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
template <>
struct enum_of<shutdown_state> {
    static const enum_type& get() noexcept {
        static constexpr enum_type type{"ShutdownStatus.State", shutdown_state_names, 6};
        return type;
    }
};
template <>
struct enum_of<readiness_state> {
    static const enum_type& get() noexcept {
        static constexpr enum_type type{"ReadinessResponse.ReadinessState", readiness_state_names, 5};
        return type;
    }
};

template <class State, std::size_t Count>
const char* name_in(const char* const (&names)[Count], State state) noexcept {
    const auto place = static_cast<std::size_t>(state);  // a negative one is beyond them all
    return place < Count ? names[place] : "UNKNOWN";
}

inline constexpr std::chrono::milliseconds max_shutdown_time{std::chrono::hours(24)};

// Rounded up, and at least 1: 0 would mean that nothing was said.
inline std::int32_t wire_seconds(std::chrono::milliseconds time) noexcept {
    const std::chrono::milliseconds bounded = time < max_shutdown_time ? time : max_shutdown_time;
    return bounded.count() < 1 ? 1 : static_cast<std::int32_t>((bounded.count() + 999) / 1000);
}

// What a message says, or `fallback` where it says nothing.
inline std::chrono::milliseconds said_or(std::int32_t seconds, std::chrono::milliseconds fallback) noexcept {
    const std::chrono::milliseconds said = seconds == 0 ? fallback : std::chrono::seconds(seconds);
    return said < max_shutdown_time ? said : max_shutdown_time;
}

// ---- the messages, as RFC-041 lists them ----

OJS_SHUTDOWN_INLINE message_view describe(shutdown_request& message, in_detail) {
    return {"ShutdownRequest",
            {{1, "process_id", message.process_id},
             {2, "reason", message.reason},
             {3, "grace_period_seconds", message.grace_period_seconds},
             {4, "max_shutdown_seconds", message.max_shutdown_seconds}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_ack& message, in_detail) {
    return {"ShutdownAck",
            {{1, "acknowledged", message.acknowledged},
             {2, "estimated_seconds", message.estimated_seconds},
             {3, "message", message.message}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_status_request& message, in_detail) {
    return {"ShutdownStatusRequest", {{1, "process_id", message.process_id}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_status& message, in_detail) {
    return {"ShutdownStatus",
            {{1, "state", message.state},
             {2, "message", message.message},
             {3, "metrics", view_of(message.metrics)},
             {4, "need_more_time", message.need_more_time},
             {5, "additional_seconds", message.additional_seconds}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_metrics& message, in_detail) {
    return {"ShutdownMetrics",
            {{1, "in_flight_requests", message.in_flight_requests},
             {2, "open_connections", message.open_connections},
             {3, "buffered_bytes", message.buffered_bytes},
             {4, "blocking_operations", message.blocking_operations}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_complete& message, in_detail) {
    return {"ShutdownComplete",
            {{1, "process_id", message.process_id},
             {2, "message", message.message},
             {3, "shutdown_duration_ms", message.shutdown_duration_ms}}};
}

OJS_SHUTDOWN_INLINE message_view describe(shutdown_complete_ack& message, in_detail) {
    return {"ShutdownCompleteAck", {{1, "acknowledged", message.acknowledged}}};
}

OJS_SHUTDOWN_INLINE message_view describe(readiness_request& message, in_detail) {
    return {"ReadinessRequest", {{1, "process_id", message.process_id}}};
}

OJS_SHUTDOWN_INLINE message_view describe(readiness_response& message, in_detail) {
    return {"ReadinessResponse",
            {{1, "state", message.state},
             {2, "message", message.message},
             {3, "checks", view_of(message.checks)}}};
}

OJS_SHUTDOWN_INLINE message_view describe(readiness_checks& message, in_detail) {
    return {"ReadinessChecks",
            {{1, "grpc_server_ready", message.grpc_server_ready},
             {2, "backend_connected", message.backend_connected},
             {3, "backend_warmed", message.backend_warmed},
             {4, "custom_checks", message.custom_checks}}};
}

OJS_SHUTDOWN_INLINE message_view describe(ready_notification& message, in_detail) {
    return {"ReadyNotification", {{1, "process_id", message.process_id}, {2, "message", message.message}}};
}

OJS_SHUTDOWN_INLINE message_view describe(ready_ack& message, in_detail) {
    return {"ReadyAck", {{1, "acknowledged", message.acknowledged}}};
}

// ---- fields ----

OJS_SHUTDOWN_INLINE message_field::message_field(int given_number, const char* given_name, void* place,
                                                 field_kind given_kind)
    : number(given_number), name(given_name), kind(given_kind), value(place) {}

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

}  // namespace v0_1_0
}  // namespace ojs
