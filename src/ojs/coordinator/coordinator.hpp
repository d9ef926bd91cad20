// shutdown_coordinator: reports readiness and shutdown to a launcher.
//
// With a worker it is one line. It does nothing if no launcher started the program:
//
//     ojs::lifecycle life;
//     ojs::worker worker(*options, life);
//     auto coordinator = ojs::shutdown_coordinator::start_for(worker, life);
//
// Any other program passes its drain function to run(). SIGTERM keeps working: both are events of one lifecycle, and
// the first one counts. [RFC-041 "Client SDK"]
#pragma once

#include <chrono>
#include <string>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../base/log.hpp"
#include "../core/cancel_token.hpp"
#include "../core/lifecycle.hpp"
#include "../worker/worker.hpp"
#include "messages.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// How a shutdown_coordinator reaches its launcher, and is reached.
struct coordinator_options {
    /// unix:/PATH (mode 0600; its folder belongs to us or root, and no other user may remove files there) or
    /// 127.0.0.1:PORT. Empty: no launcher; nothing is served or sent.
    std::string address;
    std::string process_id;        ///< requests for another id are refused; empty: any
    std::string launcher_address;  ///< gets NotifyReady and NotifyShutdownComplete; empty: no notifications
    std::chrono::milliseconds grace_period{3000};   ///< until more time must be requested; if a request says 0
    std::chrono::milliseconds max_shutdown{10000};  ///< until work is cancelled; if a request says 0; max 1 d
    /// Called for every status request, from several threads; must be short and not throw. Empty: see set_metrics().
    function<shutdown_metrics()> metrics;
    log_options log;  ///< for its log records

    /// Reads OJS_LIFECYCLE_ADDR, OJS_PROCESS_ID and OJS_LAUNCHER_ADDR, as a launcher sets them, and OJS_LOG_LEVEL and
    /// OJS_LOG_FORMAT. errc::invalid_argument: an invalid address, level or format; the text names the variable.
    static result<coordinator_options> from_environment(const environment_lookup& lookup = nullptr);
};

namespace detail {
class coordinator_body;
}

/// Serves a launcher's requests in its child. Members are thread-safe, and wait for the launcher only where noted; none
/// is async-signal-safe.
class shutdown_coordinator {
  public:
    /// Listens when this returns. A Shutdown request is event::stop_request with cause_kind::rpc for `life`, which must
    /// outlive this. Errors: invalid_argument, busy (a live socket or another file is at the path), system.
    static result<shutdown_coordinator> start(coordinator_options options, lifecycle& life);
    /// Starts one for a worker, with options from the environment and the worker's log. Calls report_ready() once the
    /// backend has responded, report_finished() when the worker has stopped (BLOCKED unless its status is 0);
    /// in_flight_requests are its active jobs. `life` is the worker's lifecycle. In a Shutdown, jobs are cancelled at
    /// the launcher's maximum if the worker's grace period is longer. Declare it after the worker. Errors: as start(),
    /// and from_environment().
    static result<shutdown_coordinator> start_for(worker& worker, lifecycle& life);

    shutdown_coordinator(shutdown_coordinator&& other) noexcept;             ///< `other` is unusable then
    shutdown_coordinator& operator=(shutdown_coordinator&& other) noexcept;  ///< `other` is unusable then
    /// Calls report_finished() during a shutdown that did not fail, notifies the launcher (for at most two seconds) and
    /// stops serving.
    ~shutdown_coordinator();

    bool active() const noexcept;  ///< there is a launcher
    /// The address it listens on, with the chosen port; empty if inactive.
    const std::string& address() const noexcept;

    /// Reports that the program initialises. Of these four calls the last one counts. READY also needs every check to
    /// pass, and no quiet or stop; a failed check means WARMING before the first READY, and UNHEALTHY after it.
    void report_starting(std::string message = {});
    void report_warming(std::string message = {});  ///< backend connections warm up
    void report_ready(std::string message = {});    ///< accepts work
    void report_unhealthy(std::string message);     ///< cannot accept work
    /// Sets grpc_server_ready. Unless one of these three was called, the protocol's checks pass after report_ready().
    void set_server_ready(bool is_ready);
    void set_backend(bool connected, bool warmed);  ///< backend_connected, backend_warmed
    void set_check(std::string name, bool passed);  ///< a custom check
    /// Called for each readiness request of the launcher, on a thread of its own. All checks together have 500 ms; a
    /// late check counts as failed, and is not called again before it returns. Objects it uses must outlive it; the
    /// coordinator's destructor waits 500 ms for it.
    void add_check(std::string name, function<bool()> check);

    /// Sets the metrics of every status, if coordinator_options::metrics is empty.
    void set_metrics(shutdown_metrics metrics);
    /// Sets the message of every status, for people, until the drain ends; no effect after that.
    void set_message(std::string message);
    /// An external operation ("Kafka flush") delays the drain, until report_unblocked() with the same name.
    void report_blocked(std::string operation);
    void report_unblocked(const std::string& operation);  ///< ends report_blocked()
    /// Requests more time, which the launcher grants up to its maximum; 0: no longer. If this was never called, a
    /// worker with jobs in flight requests the rest of the maximum from four fifths of the grace period on; no other
    /// program does.
    void need_more_time(detail::any_duration<std::chrono::seconds> additional);
    /// How long a drain would take, for the response to a Shutdown. Default, or 0: 1 s if all metrics are 0, else the
    /// time requested by need_more_time(), or the grace period.
    void set_estimate(detail::any_duration<std::chrono::seconds> drain);
    /// Adds a step that run() executes before the drain, as shutdown_sequence does. False once run() has begun to
    /// drain, or without a function.
    bool on_shutdown(std::string name, function<void()> step, detail::any_ms timeout);

    /// Runs a program without a worker, once: waits until `life` drains (RPC, signal or call), calls `drain`, notifies
    /// the launcher, and returns. The token is cancelled at the maximum, by a second stop signal, and with `abort`. An
    /// error of `drain` is reported as BLOCKED and returned; the launcher will end the process. Also works without a
    /// launcher. errc::cancelled: `abort` was cancelled before a shutdown was requested.
    result<void> run(const function<result<void>(const cancel_token&)>& drain, const cancel_token& abort = {});
    /// Says that the drain has ended, for programs with their own loop. May be repeated.
    void report_finished(std::string message = {});

  private:
    friend class result<shutdown_coordinator>;
    shutdown_coordinator() = default;
    explicit shutdown_coordinator(detail::ref<detail::coordinator_body> body) noexcept;
    detail::ref<detail::coordinator_body> body_;
};
}  // namespace v0_1_0
}  // namespace ojs
