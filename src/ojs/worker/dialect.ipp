#pragma once

#include "dialect.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE dialect dialect::graceful_shutdown() {
    return {};
}

OJS_SHUTDOWN_INLINE dialect dialect::website() {
    dialect out;
    out.name = "website";
    out.interrupted_error = out.long_running_error = "shutdown";
    out.requeue_interrupted = false;
    out.last_state = "terminated";
    return out;
}

OJS_SHUTDOWN_INLINE dialect dialect::worker_protocol() {
    dialect out;
    out.name = "worker_protocol";
    out.interrupted_error = out.long_running_error = "shutdown";
    out.drain_state = "terminate";
    out.active_jobs_as_count = true;
    out.grace_period = std::chrono::milliseconds(25000);
    return out;
}

OJS_SHUTDOWN_INLINE dialect dialect::river() {
    dialect out;
    out.name = "river";
    out.stuck_status = 70;
    out.grace_period = out.cancel_wait = std::chrono::milliseconds(10000);
    out.stop_timeout = std::chrono::milliseconds(15000);
    return out;
}

OJS_SHUTDOWN_INLINE dialect dialect::spot_controller() {
    dialect out;
    out.name = "spot_controller";
    out.first_signal_wins = true;
    out.grace_period = std::chrono::seconds(3550);
    out.cancel_lead = std::chrono::seconds(10);
    out.reclaim_wait = std::chrono::milliseconds(500);
    out.termination_mode_file = "/tmp/termination-type";
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
