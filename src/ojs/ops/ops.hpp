// ops: probes, metrics, control, systemd, PID 1.
#pragma once

#include "../base/error.hpp"
#include "../stop/worker_extension.hpp"

namespace ojs {
inline namespace v0_1_0 {

/// options.extensions.add(ojs::ops()). The worker then
/// - answers HTTP requests on worker_options::health_address, if that is set;
/// - in run(): notifies the service manager that $NOTIFY_SOCKET names, and serves its watchdog (see service_notifier).
worker_extension_factory ops();

/// How as_init() behaves.
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
result<void> as_init(init_options options = {});

}  // namespace v0_1_0
}  // namespace ojs
