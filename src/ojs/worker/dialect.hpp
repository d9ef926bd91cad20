// dialect: where backends and documents disagree, each choice a field; presets.
#pragma once

#include <chrono>
#include <string>

namespace ojs {
inline namespace v0_1_0 {

// How a stop passes. At the end of the grace period, or `cancel_lead` before it, jobs in flight are cancelled. Handlers that
// have not returned `cancel_wait` after its end are reported as interrupted.
//
//   SIGTERM                          grace period ends                    the process has ended
//   |-------- shutdown_grace_period --------|--------------- stop_timeout ---------------|
//                       |--- cancel_lead ---|-- cancel_wait --|-- reports, last beat ----|
//
// In a reclaim stop_timeout begins at the signal, and reclaim_wait stands in for cancel_wait.
struct stop_times {
    // From SIGTERM; ojs::no_limit: jobs are not interrupted, unless a second signal or stop_and_cancel() asks for it.
    // [GS 6.1, River]
    std::chrono::milliseconds shutdown_grace_period{30000};
    std::chrono::milliseconds cancel_lead{0};
    // For cancelled jobs to return, after stop_and_cancel() a second where it is 0. Of stop_timeout, the smaller of half
    // and 3 s is kept for reporting them.
    std::chrono::milliseconds cancel_wait{0};
    std::chrono::milliseconds reclaim_wait{0};
    std::chrono::milliseconds stop_timeout{5000};  // everything after the drain, to the last heartbeat
};

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
    // Signals that come during a stop change nothing. [Spot]
    bool first_signal_wins = false;
    // Exit status where a handler has not returned, though its job is reported; 0: no matter. [River]
    int stuck_status = 0;
    // What worker_options::use() makes of the options of these names. [GS-003, River, Spot]
    stop_times times;
    std::string termination_mode_file;

    static dialect graceful_shutdown() { return {}; }  // the specification's text; the default
    // The project's web page.
    static dialect website() {
        dialect out;
        out.name = "website";
        out.interrupted_error = out.long_running_error = "shutdown";
        out.requeue_interrupted = false;
        out.last_state = "terminated";
        return out;
    }
    // The worker protocol's text.
    static dialect worker_protocol() {
        dialect out;
        out.name = "worker_protocol";
        out.interrupted_error = out.long_running_error = "shutdown";
        out.drain_state = "terminate";
        out.active_jobs_as_count = true;
        out.times.shutdown_grace_period = std::chrono::milliseconds(25000);
        return out;
    }
    // Three stages: a soft stop of 10 s, a hard one in which cancelled jobs have 10 s to return, and then an exit that
    // waits for nobody. A signal in the first goes on to the second, and one more ends the process.
    static dialect river() {
        dialect out;
        out.name = "river";
        out.stuck_status = 70;
        out.times.shutdown_grace_period = out.times.cancel_wait = std::chrono::milliseconds(10000);
        out.times.stop_timeout = std::chrono::milliseconds(15000);
        return out;
    }
    // The spot controller's guide: a file says whether a stop is a normal one, with nearly an hour for jobs, or a
    // reclaim, in which they are handed back at once.
    static dialect spot_controller() {
        dialect out;
        out.name = "spot_controller";
        out.first_signal_wins = true;
        out.times.shutdown_grace_period = std::chrono::seconds(3550);
        out.times.cancel_lead = std::chrono::seconds(10);
        out.times.reclaim_wait = std::chrono::milliseconds(500);
        out.termination_mode_file = "/tmp/termination-type";
        return out;
    }
};

}  // namespace v0_1_0
}  // namespace ojs
