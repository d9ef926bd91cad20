// messages: what a launcher and its child exchange. [RFC-041 "Protocol Messages"]
//
// Plain structs, one per message, fields in the order of their numbers; examples/proto/lifecycle.proto declares them
// for generated clients. A field with its default value is not sent, so zero, false and empty mean "not set".
// Thread-safety: as for any struct. As JSON: see message_json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ojs {
inline namespace v0_1_0 {
/// The service of the methods below; each is called by POST to /SERVICE/METHOD. [RFC-041, WIRE 4]
inline constexpr const char* lifecycle_service = "prism.interfaces.ProcessLifecycleInterface";

/// How far a process has come with its shutdown. ShutdownStatus.State.
enum class shutdown_state : std::int32_t {
    running,    ///< normal operation
    requested,  ///< request received, the drain begins
    draining,   ///< finishes the work in flight
    blocked,    ///< waits for an external operation
    complete,   ///< ended cleanly
    forced      ///< killed by the launcher
};

/// Whether a process accepts work. ReadinessResponse.ReadinessState.
enum class readiness_state : std::int32_t {
    starting,  ///< initialising
    warming,   ///< backend connections warm up
    ready,     ///< accepts work
    draining,  ///< shuts down, accepts no new work
    unhealthy  ///< a check failed
};

/// The name in the protocol ("SHUTDOWN_DRAINING", "READY"); "UNKNOWN" for any other value. Never null. Thread-safe,
/// async-signal-safe.
const char* to_string(shutdown_state state) noexcept;
const char* to_string(readiness_state state) noexcept;  ///< likewise

/// Asks the process to drain and exit. Shutdown, launcher to process.
struct shutdown_request {
    std::string process_id;                 ///< of the receiver
    std::string reason;                     ///< for the log
    std::int32_t grace_period_seconds = 0;  ///< s, until it must request more time; 0: the receiver's default
    std::int32_t max_shutdown_seconds = 0;  ///< s, until it is killed; 0: the receiver's default
};

/// The response to a shutdown_request.
struct shutdown_ack {
    bool acknowledged = false;           ///< the shutdown has begun
    std::int32_t estimated_seconds = 0;  ///< s, how long it may take
    std::string message;                 ///< for people
};

/// Asks for the progress of the shutdown. GetShutdownStatus, launcher to process.
struct shutdown_status_request {
    std::string process_id;  ///< of the receiver
};

/// The work that is left.
struct shutdown_metrics {
    std::int32_t in_flight_requests = 0;           ///< requests or jobs
    std::int32_t open_connections = 0;             ///< connections of clients
    std::int64_t buffered_bytes = 0;               ///< bytes not yet flushed
    std::vector<std::string> blocking_operations;  ///< "waiting for Kafka flush"
};

/// The response to a shutdown_status_request.
struct shutdown_status {
    shutdown_state state = shutdown_state::running;  ///< how far the shutdown is
    std::string message;                             ///< for people
    shutdown_metrics metrics;                        ///< what is left
    bool need_more_time = false;                     ///< than the grace period
    std::int32_t additional_seconds = 0;             ///< s, how much more, if need_more_time is true
};

/// Reports that the process has drained. NotifyShutdownComplete, process to launcher.
struct shutdown_complete {
    std::string process_id;                 ///< of the sender
    std::string message;                    ///< for people
    std::int64_t shutdown_duration_ms = 0;  ///< ms since the request
};

/// The response to a shutdown_complete.
struct shutdown_complete_ack {
    bool acknowledged = false;  ///< received
};

/// Asks whether the process accepts work. GetReadinessStatus, launcher to process.
struct readiness_request {
    std::string process_id;  ///< of the receiver
};

/// The result of one custom check.
struct readiness_check {
    std::string name;     ///< unique
    bool passed = false;  ///< true: does not prevent READY
};

/// The checks that must pass before a process is ready.
struct readiness_checks {
    bool grpc_server_ready = false;              ///< its server listens, with any protocol
    bool backend_connected = false;              ///< a connection is open
    bool backend_warmed = false;                 ///< the backend is warmed up
    std::vector<readiness_check> custom_checks;  ///< of duplicate names, the last is sent
};

/// The response to a readiness_request.
struct readiness_response {
    readiness_state state = readiness_state::starting;  ///< of the process
    std::string message;                                ///< for people
    readiness_checks checks;                            ///< why
};

/// Reports that the process has become ready. NotifyReady, process to launcher.
struct ready_notification {
    std::string process_id;  ///< of the sender
    std::string message;     ///< for people
};

/// The response to a ready_notification.
struct ready_ack {
    bool acknowledged = false;  ///< received
};
}  // namespace v0_1_0
}  // namespace ojs
