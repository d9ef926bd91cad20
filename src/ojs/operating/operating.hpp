// operating: probes, metrics, control, systemd, and stacks of stuck jobs.
#pragma once

#include "../worker/worker_part.hpp"

// 0: no stacks of stuck jobs, as everywhere but on Linux (a toolchain without <unwind.h>).
#ifndef OJS_SHUTDOWN_USE_UNWIND
#define OJS_SHUTDOWN_USE_UNWIND OJS_SHUTDOWN_ON_LINUX
#endif

namespace ojs {
inline namespace v0_1_0 {

// options.parts.add(ojs::operating()). The worker then
//   - answers HTTP requests on worker_options::health_address, if that is set;
//   - in run(): notifies the service manager that $NOTIFY_SOCKET names, and serves its watchdog (see service_notifier);
//   - adds the stack of a stuck job to the log records about it, where signals are installed and the platform has an unwinder.
worker_part_factory operating();

}  // namespace v0_1_0
}  // namespace ojs
