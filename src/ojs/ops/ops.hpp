// ops: probes, metrics, control, systemd, PID 1.
#pragma once

#include <string>

#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../stop/detail/worker_extension.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// The HTTP server of ops().
struct ops_options {
    /// The address of GET /healthz, /readyz, /livez and /metrics, as http_server::start() takes it; empty: none. If it is
    /// taken, the worker does not start. /healthz and /readyz return 200 while the worker is running and connected to the
    /// backend, else 503; /livez, for liveness probes, always 200. On loopback, a Host that is neither an address nor
    /// localhost gets 403. [WIRE]
    std::string address;
    /// Adds POST /quiet, /resume and /stop. /quiet takes GET too, for a preStop hook. With /quiet?wait=25s the response
    /// is 200 when nothing is in flight, or 503 at that time (at most 1h). Without a token the address must be loopback,
    /// where GET is refused then, or unix:. Requests caused by a web page are refused.
    bool control = false;
    std::string token;  ///< the bearer token that those three require; empty: none; never logged

    /// Reads OJS_HEALTH_ADDR, OJS_HEALTH_CONTROL and OJS_HEALTH_TOKEN, or returns the first error. `lookup` replaces the
    /// environment, for tests.
    static result<ops_options> from_environment(const environment_lookup& lookup = nullptr);
};

/// options.extensions.add(ojs::ops()). The worker then
/// - answers HTTP requests at ops_options::address, if that is set;
/// - in run(): notifies the service manager that $NOTIFY_SOCKET names, and serves its watchdog (see service_notifier);
/// - warns at its start of unknown variables OJS_*, of job types in OJS_JOB_TYPES that have no handler, and of a
///   termination-mode file that makes every stop a reclaim.
/// Without options, those of the environment count. Invalid ones end the start, and validate() returns the error.
detail::worker_extension_factory ops();
detail::worker_extension_factory ops(ops_options options);

/// How run_as_init() behaves.
struct init_options {
    bool always = false;  ///< fork even if this process is not PID 1
};

/// Call it first in main: before signals are installed, any thread is started, or anything is printed.
///
/// As PID 1 it forks. It returns in the child, which continues as the program and waits for its own children. The
/// parent stays PID 1, forwards every signal, reaps orphans, and exits with the program's status (128+n if signal n
/// ended it). Signals are blocked across the fork, so none is lost. In any other process it does nothing. errc::busy:
/// signals are already installed; errc::system: fork() failed.
///
/// A worker started this way sees PID 1 as the sender of forwarded signals.
result<void> run_as_init(init_options options = {});
}  // namespace v0_1_0
}  // namespace ojs
