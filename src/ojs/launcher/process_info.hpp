// process_info: how one process of a launcher is run, and what is known of it. [RFC-041 "Process State Machine"]
//
// Plain structs; the states are in admin_messages. Thread-safety: as for any struct.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "../base/duration.hpp"
#include "../process/child_process.hpp"
#include "admin_messages.hpp"

namespace ojs {
inline namespace v0_1_0 {

// It has ended.
constexpr bool is_over(instance_state state) noexcept {
    return state == instance_state::complete || state == instance_state::forced ||
           state == instance_state::crashed;
}
// It was asked to shut down, or has ended.
constexpr bool is_stopping(instance_state state) noexcept {
    return state == instance_state::shutdown_requested || state == instance_state::draining || is_over(state);
}

// Times of 0 are those of the options, and longer ones are cut to them.
struct shutdown_order {
    std::string reason;  // for the log, and told to the process
    std::chrono::milliseconds grace{0};
    std::chrono::milliseconds max{0};
};

// The protocol's defaults. [WIRE 4]
struct shutdown_timeouts {
    std::chrono::milliseconds grace_period{3000};   // from the request on, until more time must be asked for
    std::chrono::milliseconds max_duration{10000};  // from the request on, all of it for the drain
    std::chrono::milliseconds report_time{0};  // from max_duration to SIGTERM, to report what was cut short
    std::chrono::milliseconds poll_interval{500};  // between two questions for its status
    std::chrono::milliseconds kill_delay{2000};    // from SIGTERM to SIGKILL
    // SIGTERM after the grace period already, where no more time was asked for, and after that time where it was.
    bool force_without_request = false;
};

struct process_options {
#ifdef __linux__
    process_options() {
        child.death_signal = SIGTERM;
    }  // it drains as well where the launcher was killed
#endif
    child_options child;  // command, environment, streams, limits, ...
    // False: it does not speak the protocol, so it is ready once it runs, and is ended by signals. [RFC-041 goal 8]
    bool participates = true;
    // For one that does not: http://HOST[:PORT][/TARGET] or unix:/PATH[:/TARGET], in which {id} is its id. It is ready once a GET
    // is answered with 200, and unhealthy after `unhealthy_after` other answers, or none, in a row. Empty: ready once it runs.
    std::string ready_url;
    std::chrono::milliseconds rpc_timeout{1000};         // of one request to it; what that began may go on
    std::chrono::milliseconds readiness_timeout{30000};  // from its start until it must have been ready
    std::chrono::milliseconds readiness_interval{500};   // between two looks until then
    std::chrono::milliseconds health_interval{5000};     // and afterwards; 0: not looked at any more
    int unhealthy_after = 3;                             // failed looks in a row, once it was ready
    shutdown_timeouts shutdown;
};

// A copy of the moment.
struct process_info {
    std::string id;
    std::string group;
    instance_state state = instance_state::spawning;
    bool routable = false;  // is ready, and said so when it was last asked
    pid_t pid = 0;
    std::string address;           // of its coordinator; empty where it has none
    std::string message;           // the last thing it said, or why it is as it is
    readiness_response readiness;  // its last answers
    shutdown_status shutdown;
    child_exit exit;                             // once it is over
    bool killed = false;                         // SIGKILL was needed
    std::chrono::milliseconds startup{0};        // from its start to ready; 0: not yet
    std::chrono::milliseconds shutdown_took{0};  // from the request to its end; 0: not yet
    time_point started{};
    time_point changed{};          // of the state
    std::uint64_t generation = 0;  // of its group's configuration
};

}  // namespace v0_1_0
}  // namespace ojs
