// worker_options: what can be set, by code or environment; stop_times and dialect.
#pragma once

#include <signal.h>

#include <chrono>
#include <string>
#include <vector>

#include "../base/function.hpp"
#include "../base/log.hpp"
#include "../core/lifecycle.hpp"
#include "../core/signals.hpp"
#include "../net/byte_stream.hpp"
#include "../net/http_message.hpp"
#include "worker_part.hpp"

namespace ojs {
inline namespace v0_1_0 {

// The times of a stop. At the end of the grace period, or `cancel_lead` before it, jobs in flight are
// cancelled. Handlers that have not returned `cancel_wait` after its end are reported as interrupted.
//
//   SIGTERM                          grace period ends                    the process has ended
//   |-------- shutdown_grace_period --------|--------------- stop_timeout ---------------|
//                       |--- cancel_lead ---|-- cancel_wait --|-- reports, last beat ----|
//
// In a reclaim stop_timeout begins at the signal, and reclaim_wait stands in for cancel_wait.
struct stop_times {
    // From SIGTERM; ojs::no_limit: only a second signal or stop_and_cancel() interrupts jobs. [GS 6.1, River]
    std::chrono::milliseconds shutdown_grace_period{30000};
    std::chrono::milliseconds cancel_lead{0};
    // For cancelled jobs to return; 0: none, but a second after stop_and_cancel(). Half of stop_timeout, at
    // most 3 s, is kept for reporting them.
    std::chrono::milliseconds cancel_wait{0};
    std::chrono::milliseconds reclaim_wait{0};
    std::chrono::milliseconds stop_timeout{5000};  // everything after the drain, to the last heartbeat
};

struct dialect {
    std::string name = "graceful_shutdown";
    // Type and code of an interrupted job's error. [GS-005, GS 7.2]
    std::string interrupted_error = "ShutdownError";
    std::string long_running_error = "ShutdownTimeout";  // for handlers registered as long_running
    bool requeue_interrupted = true;  // an interrupted job keeps its attempt, where the backend can
    // `state` of heartbeats while quiet, while draining and stopping, and of the very last one. [GS 5.1, 5.3]
    std::string quiet_state = "quiet";
    std::string drain_state = "quiet";
    std::string last_state = "terminate";
    // In heartbeats: the number of ids, not their list, which `active_job_ids` holds either way.
    bool active_jobs_as_count = false;
    bool first_signal_wins = false;  // signals during a stop change nothing [Spot]
    // Exit status where a handler has not returned, though its job is reported; 0: no matter. [River]
    int stuck_status = 0;
    // What worker_options::use() makes of the options of these names. [GS-003, River, Spot]
    stop_times times;
    std::string termination_mode_file;

    static dialect graceful_shutdown();  // the specification's text; the default
    // The project's web page.
    static dialect website();
    // The worker protocol's text.
    static dialect worker_protocol();
    // Three stages: a soft stop of 10 s; a hard stop, in which cancelled jobs have 10 s to return; the exit.
    // A signal in the first begins the second, and one more ends the process.
    static dialect river();
    // The spot controller's guide: a file says whether a stop is normal, with nearly an hour for jobs, or a
    // reclaim, in which they are handed back at once.
    static dialect spot_controller();
};

// What happens to a job whose type has no handler.
enum class unknown_type_action {
    requeue,  // handed back to the queue, after a back-off of 100 ms to 5 s
    fail,     // its attempt fails, and is retried
    discard   // its attempt fails, and is not retried
};

// What happens to the slot of a stuck job.
enum class stuck_action {
    keep,     // it stays taken until the handler returns
    replace,  // a new thread works in it
    stop      // the worker drains, and ends with exit_status::unreported (75)
};

// A cancelled job whose handler has not returned.
struct stuck_job {
    std::string id;
    std::string type;
    std::chrono::milliseconds age{0};        // since it was claimed
    std::chrono::milliseconds cancelled{0};  // since it was cancelled
    bool abandoned = false;                  // the stop has reported it, and leaves without it
    std::size_t count = 0;                   // stuck jobs whose handlers have not returned, this one included
    // What happens without a callback: replace while fewer than `concurrency` are stuck, then stop.
    stuck_action usual = stuck_action::keep;
};

struct worker_options {
    std::string url = "http://127.0.0.1:8080";  // http://..., unix:/..., memory:, or of `transports`
    detail::extension_list<transport_scheme> transports;  // of other schemes: transports.add(ojs::spool())
    std::vector<std::string> queues = {"default"};
    std::int64_t concurrency = 10;  // jobs at a time, 1 to 10000
    stop_times times;
    std::chrono::milliseconds heartbeat_interval{5000};   // or half of the shortest lease, if that is less
    std::chrono::milliseconds poll_interval{1000};        // between FETCHes that found nothing
    std::chrono::milliseconds visibility_timeout{30000};  // how long a claim holds without a heartbeat
    std::chrono::milliseconds request_timeout{5000};      // one request, from connect to the last byte
    // Says whether SIGTERM or SIGINT is a normal stop or a reclaim, see read_termination_mode(); SIGUSR1 is
    // always a reclaim. Empty: no reclaims. [Spot, WIRE 3]
    std::string termination_mode_file;
    // A job that has not returned this long after its cancellation is stuck. If its own timeout cancelled it,
    // it is reported then, and its later result is dropped. [WIRE 5]
    std::chrono::milliseconds stuck_after{5000};
    std::chrono::milliseconds repeat_signal_gap{250};  // two stop signals closer together are one stop event
    // Stop run(), see signal_options::stop_signals. Those ignored at process start stay so (nohup's SIGHUP).
    std::vector<int> stop_signals = detail::signal_list(SIGTERM, SIGINT, SIGHUP);
    std::chrono::milliseconds progress_interval{5000};  // between progress lines of the drain [GS 5.2]
    // The container's time from SIGTERM to SIGKILL, its preStop hook's part; 0: unset. For warnings. [GS 6.3]
    std::chrono::milliseconds container_grace_period{0};
    std::chrono::milliseconds prestop_delay{0};
    std::vector<std::string> labels;
    std::vector<std::string> job_types;  // that it serves: one warning at start names those without a handler
    std::string worker_id;               // empty: worker_ and a UUIDv7
    std::string auth_token;              // sent as a bearer token; never logged
    http_headers headers;                // sent with every request
    stream_factory https_stream;         // what an https:// URL is spoken over; none: it is refused
    std::string registration_path;       // below /ojs/v1 ("/workers"); empty: heartbeats register the worker
    ojs::dialect dialect;
    detail::extension_list<worker_part_factory> parts;  // options.parts.add(ojs::operating())
    // With ojs_operating.hpp: where GET /healthz, /readyz, /livez and /metrics are answered, as
    // http_server::start() takes it; empty: nowhere. A worker whose address is taken does not start. /healthz
    // and /readyz answer 200 while the worker is running and the backend has answered it, else 503; /livez,
    // for liveness probes, always 200. On loopback, a Host that is no address nor localhost gets 403. [WIRE]
    std::string health_address;
    // POST /quiet, /resume, /stop there as well, and POST or GET /drain?timeout=25s, for a preStop hook:
    // quiets the worker and answers 200 when nothing is in flight, or 503 at the timeout (at most 1h).
    // Without a token the address must be loopback or unix:. Requests that a web page caused are refused.
    bool health_control = false;
    std::string health_token;  // a bearer token that those four then require; never logged
    unknown_type_action unknown_type = unknown_type_action::requeue;
    log_options log;
    // Bytes, for threads that run jobs: at least 64 KiB, or 0: the platform's default. Threads that call
    // transports, hooks and callbacks have at least 256 KiB.
    std::size_t thread_stack_size = 0;
    // Called after every change of phase, from the supervising thread, in order.
    function<void(const lifecycle_state&)> on_transition;
    // Called when a job becomes stuck, and again, with `abandoned` set, when a stop abandons it; the second
    // answer is ignored. `replace` takes effect only for a job that was reported. Called on threads of its
    // own, several at once. It may block: the slot stays taken, and a stop waits for it until stop_timeout.
    // After an exception `usual` applies.
    function<stuck_action(const stuck_job&)> on_stuck_job;

    // Takes the dialect, with the values it has for other options.
    void use(ojs::dialect preset);

    // The defaults, overridden by the environment (docs/options.md has the table). The first error is
    // returned, naming variable and value. In Kubernetes, Amazon ECS and Cloud Run, if neither the grace
    // period nor the container's is set, it is the platform's default (30 s, 30 s, 10 s) minus reporting
    // (stop_timeout, at least 5 s) and the preStop hook. The scheme of a URL may be added to `transports`
    // later. For tests: `lookup` stands in for the environment, and `root` goes before the paths by which a
    // container is recognised.
    static result<worker_options> from_environment(const environment_lookup& lookup = nullptr,
                                                   const std::string& root = "");
};

// Why options cannot be used, if so.
result<void> validate(const worker_options& options);

// Prints the error on standard error as "error: ..." and returns 64, for main to return.
int report_usage(const error& failure);

}  // namespace v0_1_0
}  // namespace ojs
