// messages: what a launcher and its child say to each other. [RFC-041 "Protocol Messages"]
//
// Plain structs, one per message, fields in the order of their numbers; examples/proto/lifecycle.proto says the
// same for generated clients. A field left at its default is not sent, so zero, false and empty mean "not said".
// Thread-safety: as for any struct. How they look as JSON: message_json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ojs {
inline namespace v0_1_0 {

// A method is called by POST to /SERVICE/METHOD. [RFC-041, WIRE 4]
inline constexpr const char* lifecycle_service = "prism.interfaces.ProcessLifecycleInterface";

// How far a process has come with its shutdown. ShutdownStatus.State.
enum class shutdown_state : std::int32_t {
    running,    // normal operation
    requested,  // has the request, begins to drain
    draining,   // finishes the work in flight
    blocked,    // something outside holds it up
    complete,   // clean end
    forced      // killed by the launcher
};

// Whether a process may be given work. ReadinessResponse.ReadinessState.
enum class readiness_state : std::int32_t {
    starting,  // initialising
    warming,   // backend connections warm up
    ready,     // takes work
    draining,  // shuts down, takes no new work
    unhealthy  // a check failed
};

// The name as the protocol writes it ("SHUTDOWN_DRAINING", "READY"); "UNKNOWN" for what is no value of the type. Never
// null. Thread-safe, async-signal-safe.
const char* to_string(shutdown_state state) noexcept;
const char* to_string(readiness_state state) noexcept;

// ---- Shutdown: launcher to process ----

struct shutdown_request {
    std::string process_id;                 // whom it is for
    std::string reason;                     // for the log
    std::int32_t grace_period_seconds = 0;  // s, until more time must be asked for; 0: the receiver's default
    std::int32_t max_shutdown_seconds = 0;  // s, until it is killed; 0: the receiver's default
};

struct shutdown_ack {
    bool acknowledged = false;           // the shutdown has begun
    std::int32_t estimated_seconds = 0;  // s, how long it may take
    std::string message;
};

// ---- GetShutdownStatus: launcher to process ----

struct shutdown_status_request {
    std::string process_id;
};

struct shutdown_metrics {
    std::int32_t in_flight_requests = 0;
    std::int32_t open_connections = 0;
    std::int64_t buffered_bytes = 0;               // bytes still to be flushed
    std::vector<std::string> blocking_operations;  // "waiting for Kafka flush"
};

struct shutdown_status {
    shutdown_state state = shutdown_state::running;
    std::string message;
    shutdown_metrics metrics;
    bool need_more_time = false;          // than the grace period
    std::int32_t additional_seconds = 0;  // s, how much more, where need_more_time is true
};

// ---- NotifyShutdownComplete: process to launcher ----

struct shutdown_complete {
    std::string process_id;
    std::string message;
    std::int64_t shutdown_duration_ms = 0;  // ms since the request came
};

struct shutdown_complete_ack {
    bool acknowledged = false;
};

// ---- GetReadinessStatus: launcher to process ----

struct readiness_request {
    std::string process_id;
};

struct readiness_check {
    std::string name;
    bool passed = false;
};

// All must pass before a process is ready.
struct readiness_checks {
    bool grpc_server_ready = false;  // its server, of whatever protocol, listens
    bool backend_connected = false;
    bool backend_warmed = false;
    std::vector<readiness_check> custom_checks;  // no name twice: of several, the last is sent
};

struct readiness_response {
    readiness_state state = readiness_state::starting;
    std::string message;
    readiness_checks checks;
};

// ---- NotifyReady: process to launcher ----

struct ready_notification {
    std::string process_id;
    std::string message;
};

struct ready_ack {
    bool acknowledged = false;
};

}  // namespace v0_1_0
}  // namespace ojs
