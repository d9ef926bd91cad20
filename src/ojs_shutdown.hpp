// ojs_shutdown.hpp: stop a worker process without losing work. C++17, POSIX, one header beside picojson.
//
// The order in which tools/amalgamate.py puts the parts of src/ojs together. It also works as it is.
#ifndef OJS_SHUTDOWN_HPP
#define OJS_SHUTDOWN_HPP

// clang-format off: the order matters
#include "ojs/base/config.hpp"

#include "ojs/base/error.hpp"
#include "ojs/base/text.hpp"
#include "ojs/base/duration.hpp"
#include "ojs/base/memory.hpp"
#include "ojs/base/environment.hpp"
#include "ojs/base/sync.hpp"
#include "ojs/base/fd.hpp"
#include "ojs/base/finding.hpp"
#include "ojs/base/log.hpp"

#include "ojs/core/wake.hpp"
#include "ojs/core/lifecycle.hpp"
#include "ojs/core/drain_barrier.hpp"
#include "ojs/core/cancel_token.hpp"
#include "ojs/core/shutdown_sequence.hpp"
#include "ojs/core/signals.hpp"
#include "ojs/core/service_manager.hpp"
#include "ojs/core/termination_mode.hpp"
#include "ojs/core/container.hpp"
#include "ojs/core/init.hpp"
#include "ojs/core/peer.hpp"

#include "ojs/net/http_message.hpp"
#include "ojs/net/http_client.hpp"
#include "ojs/net/http_server.hpp"
#include "ojs/net/json.hpp"

#include "ojs/worker/dialect.hpp"
#include "ojs/worker/job.hpp"
#include "ojs/worker/transport.hpp"
#include "ojs/worker/transports/memory.hpp"
#include "ojs/worker/transports/http.hpp"
#include "ojs/worker/transports/spool.hpp"
#include "ojs/worker/worker_options.hpp"
#include "ojs/worker/budget.hpp"
#include "ojs/worker/doctor.hpp"
#include "ojs/worker/worker.hpp"

#include "ojs/launcher/child_process.hpp"
// clang-format on

#endif  // OJS_SHUTDOWN_HPP

// The definitions: everywhere, or with OJS_SHUTDOWN_SEPARATE only where OJS_SHUTDOWN_IMPLEMENTATION is 1.
#if !OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_DEFINE 1
#elif defined(OJS_SHUTDOWN_IMPLEMENTATION)
#define OJS_SHUTDOWN_DEFINE OJS_SHUTDOWN_IMPLEMENTATION
#else
#define OJS_SHUTDOWN_DEFINE 0
#endif
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_DEFINED)
#define OJS_SHUTDOWN_DEFINED 1
#if OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_INLINE
#else
#define OJS_SHUTDOWN_INLINE inline
#endif

// clang-format off: the order matters
#include "ojs/base/small_file.hpp"
#include "ojs/base/error.ipp"
#include "ojs/base/text.ipp"
#include "ojs/base/duration.ipp"
#include "ojs/base/sync.ipp"
#include "ojs/base/log.ipp"
#include "ojs/base/finding.ipp"
#include "ojs/base/small_file.ipp"

#include "ojs/core/thread_stack.hpp"
#include "ojs/core/proc.hpp"
#include "ojs/core/wake.ipp"
#include "ojs/core/lifecycle.ipp"
#include "ojs/core/drain_barrier.ipp"
#include "ojs/core/cancel_token.ipp"
#include "ojs/core/shutdown_sequence.ipp"
#include "ojs/core/signals.ipp"
#include "ojs/core/thread_stack.ipp"
#include "ojs/core/service_manager.ipp"
#include "ojs/core/termination_mode.ipp"
#include "ojs/core/proc.ipp"
#include "ojs/core/container.ipp"
#include "ojs/core/init.ipp"
#include "ojs/core/peer.ipp"

#include "ojs/net/http_parser.hpp"
#include "ojs/net/url.hpp"
#include "ojs/net/socket.hpp"
#include "ojs/net/http_message.ipp"
#include "ojs/net/http_parser.ipp"
#include "ojs/net/url.ipp"
#include "ojs/net/socket.ipp"
#include "ojs/net/http_client.ipp"
#include "ojs/net/http_server.ipp"
#include "ojs/net/json.ipp"

#include "ojs/worker/active_job.ipp"
#include "ojs/worker/watch.ipp"
#include "ojs/worker/beat_schedule.ipp"
#include "ojs/worker/metrics.ipp"
#include "ojs/worker/queue_gate.ipp"
#include "ojs/worker/worker_context.ipp"
#include "ojs/worker/job.ipp"
#include "ojs/worker/transport.ipp"
#include "ojs/worker/transports/memory.ipp"
#include "ojs/worker/transports/http.ipp"
#include "ojs/worker/transports/spool_files.ipp"
#include "ojs/worker/transports/spool_owner.ipp"
#include "ojs/worker/transports/spool_settle.ipp"
#include "ojs/worker/transports/spool_intake.ipp"
#include "ojs/worker/transports/spool_recovery.ipp"
#include "ojs/worker/transports/spool_watch.ipp"
#include "ojs/worker/transports/spool.ipp"
#include "ojs/worker/worker_options.ipp"
#include "ojs/worker/budget.ipp"
#include "ojs/worker/doctor.ipp"
#include "ojs/worker/settlement.ipp"
#include "ojs/worker/heartbeat.ipp"
#include "ojs/worker/job_pool.ipp"
#include "ojs/worker/stuck_watch.ipp"
#include "ojs/worker/service_report.ipp"
#include "ojs/worker/health.ipp"
#include "ojs/worker/supervisor.ipp"
#include "ojs/worker/worker.ipp"

#include "ojs/launcher/child_launch.ipp"
#include "ojs/launcher/child_lines.ipp"
#include "ojs/launcher/child_process.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
