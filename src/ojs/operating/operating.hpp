// operating: probes, metrics, control, systemd, and stacks of stuck jobs.
#pragma once

#include "../worker/worker_part.hpp"

namespace ojs {
inline namespace v0_1_0 {

// options.parts.add(ojs::operating()). The worker then
//   - answers HTTP requests on worker_options::health_address, if that is set;
//   - in run(): notifies the service manager that $NOTIFY_SOCKET names, and serves its watchdog (see service_notifier);
//   - adds the stack of a stuck job to the log records about it, where signals are installed and the platform has an unwinder.
worker_part_factory operating();

}  // namespace v0_1_0
}  // namespace ojs
