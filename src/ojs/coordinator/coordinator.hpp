// shutdown_coordinator: tells a launcher when a child is ready or ends.
//
// With a worker it is one line, and does nothing where no launcher started the program:
//
//     ojs::lifecycle life;
//     ojs::worker worker(*options, life);
//     auto coordinator = ojs::shutdown_coordinator::start_for(worker, life);
//
// Any other program gives run() what it does to drain. SIGTERM goes on working beside it: whichever comes first counts,
// as both are events of one lifecycle. [RFC-041 "Client SDK"]
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

struct coordinator_options {
    // unix:/PATH (mode 0600; its folder is ours or root's, and nobody else may take files out of it) or 127.0.0.1:PORT.
    // Empty: no launcher; nothing is served or sent.
    std::string address;
    std::string process_id;        // whom a request must be for; empty: any
    std::string launcher_address;  // gets NotifyReady and NotifyShutdownComplete; empty: no notifications
    std::chrono::milliseconds grace_period{
        3000};  // until more time must be asked for; where a request says 0
    std::chrono::milliseconds max_shutdown{10000};  // until work is cancelled, likewise; a day at most
    // Asked at every status, from several threads; must be short, and not throw. Empty: what set_metrics() said.
    function<shutdown_metrics()> metrics;
    log_options log;

    // OJS_LIFECYCLE_ADDR, OJS_PROCESS_ID and OJS_LAUNCHER_ADDR, as a launcher sets them, and OJS_LOG_LEVEL
    // and OJS_LOG_FORMAT. errc::invalid_argument: one is set to what is no address, or no level or format;
    // the text names it.
    static result<coordinator_options> from_environment(const environment_lookup& lookup = nullptr);
};

namespace detail {
class coordinator_body;
}

// Members are thread-safe, and do not wait for the launcher unless they say so; none is async-signal-safe.
class shutdown_coordinator {
  public:
    // Listens when this returns. A Shutdown is event::stop_request with cause_kind::rpc for `life`, which
    // outlives this. Errors: invalid_argument, busy (a live socket or somebody's file is at the path),
    // system.
    static result<shutdown_coordinator> start(coordinator_options options, lifecycle& life);
    // For a worker, with options from the environment, and the worker's log: ready() is said once the backend has
    // answered, in_flight_requests are its active jobs, the end is the worker's. `life` is the lifecycle the worker was
    // given. In a Shutdown, jobs are cancelled at the launcher's maximum, if the worker's own grace period is longer.
    // Declare it after the worker. Errors: as start(), and from_environment().
    static result<shutdown_coordinator> start_for(worker& worker, lifecycle& life);

    shutdown_coordinator(shutdown_coordinator&& other) noexcept;
    shutdown_coordinator& operator=(shutdown_coordinator&& other) noexcept;
    // finished(), where a shutdown is under way that did not fail; tells the launcher, for which it waits two
    // seconds at most, and stops serving.
    ~shutdown_coordinator();

    bool active() const noexcept;  // a launcher is there to be served
    // Where it listens, with the real port; empty where inactive.
    const std::string& address() const noexcept;

    // Readiness. READY is answered where ready() was said last, every check passes, and nothing stops or quiets the
    // program. A check that fails is WARMING until the first READY, and UNHEALTHY after it.
    void starting(std::string message = {});
    void warming(std::string message = {});
    void ready(std::string message = {});
    void unhealthy(std::string message);
    // The checks of the protocol count as passed once ready() is said, unless one of these was called.
    void set_server_ready(bool yes);
    void set_backend(bool connected, bool warmed);
    void set_check(std::string name, bool passed);
    // Called for each request of the launcher for readiness, on a thread of its own. All checks together have a
    // second; a late one counts as failed, and is not called again before it has returned. It must not refer to
    // what may end before it returns; the coordinator's destructor waits a second for it.
    void add_check(std::string name, function<bool()> check);

    // Progress.
    void set_metrics(shutdown_metrics now);
    // Something outside holds up the drain ("Kafka flush"), until unblocked() says the same.
    void blocked(std::string operation);
    void unblocked(const std::string& operation);
    // What the launcher grants up to its maximum; 0: no longer. Asked for by itself from four fifths of the
    // grace period on, where this was never called.
    void need_more_time(std::chrono::seconds additional);
    // Called by run() before the drain, as by shutdown_sequence. False after that, or without a function.
    bool on_shutdown(std::string name, function<void()> step, std::chrono::milliseconds limit);

    // For programs without a worker, once: waits until `life` drains (RPC, signal or call), drains, tells the
    // launcher, and returns. The token is cancelled at the maximum, by a second stop signal, and with
    // `until`. What `drain` returns as an error is BLOCKED, and returned; the launcher will end the process.
    // Works without a launcher too. errc::cancelled: `until` was cancelled before anybody asked for the end.
    result<void> run(const function<result<void>(const cancel_token&)>& drain,
                     const cancel_token& until = {});
    // For programs with a loop of their own: the drain has ended. Repeatable.
    void finished(std::string message = {});

  private:
    explicit shutdown_coordinator(detail::ref<detail::coordinator_body> body) noexcept;
    detail::ref<detail::coordinator_body> body_;
};

}  // namespace v0_1_0
}  // namespace ojs
