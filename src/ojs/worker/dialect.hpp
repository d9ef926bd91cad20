// dialect: where backends and documents disagree, each choice as a field, with presets.
#pragma once

#include <chrono>
#include <string>

namespace ojs {
inline namespace v1 {

struct dialect {
    std::string name = "graceful_shutdown";
    // error.type and error.code of a job that the stop interrupted. [GS-005, GS 7.2]
    std::string interrupted_error = "ShutdownError";
    std::string long_running_error = "ShutdownTimeout";  // for handlers registered as long_running
    // An interrupted job is handed back without using up one of its attempts, where the backend can.
    bool requeue_interrupted = true;
    // `state` of the heartbeats while quiet, while draining and stopping, and of the very last one. [GS 5.1, 5.3]
    std::string quiet_state = "quiet";
    std::string drain_state = "quiet";
    std::string last_state = "terminate";
    // `active_jobs` of a heartbeat: the list of ids, or their number (the list is in `active_job_ids` either way).
    bool active_jobs_as_count = false;
    // What worker_options::use() makes of shutdown_grace_period. [GS-003]
    std::chrono::milliseconds grace_period{30000};

    static dialect graceful_shutdown() { return {}; }  // the specification's text; the default
    static dialect website() {                         // the project's web page
        dialect out;
        out.name = "website";
        out.interrupted_error = out.long_running_error = "shutdown";
        out.requeue_interrupted = false;
        out.last_state = "terminated";
        return out;
    }
    static dialect worker_protocol() {  // the worker protocol's text
        dialect out;
        out.name = "worker_protocol";
        out.interrupted_error = out.long_running_error = "shutdown";
        out.drain_state = "terminate";
        out.active_jobs_as_count = true;
        out.grace_period = std::chrono::milliseconds(25000);
        return out;
    }
};

}  // namespace v1
}  // namespace ojs
