// ojs_shutdown.hpp: stop a worker process without losing work. C++17, POSIX, one header.
//
// tools/amalgamate.py writes the lists of parts, and joins them. This file works without that as well.
#ifndef OJS_SHUTDOWN_HPP
#define OJS_SHUTDOWN_HPP

#include "ojs/base/config.hpp"

// clang-format off
#include "ojs/base/detail/light.hpp"
#include "ojs/base/error.hpp"
#include "ojs/base/duration.hpp"
#include "ojs/base/function.hpp"
#include "ojs/base/detail/sync.hpp"
#include "ojs/base/detail/text.hpp"
#include "ojs/base/log.hpp"

#include "ojs/core/lifecycle.hpp"
#include "ojs/core/drain_barrier.hpp"
#include "ojs/core/cancel_token.hpp"
#include "ojs/core/shutdown_sequence.hpp"
#include "ojs/core/signals.hpp"

#include "ojs/host/termination_mode.hpp"
#include "ojs/host/container.hpp"

#include "ojs/stop/job.hpp"
#include "ojs/stop/detail/worker_extension.hpp"
#include "ojs/stop/loop_options.hpp"
#include "ojs/stop/stoppable.hpp"

#include "ojs/loop/loop.hpp"

#include "ojs/net/http_message.hpp"
#include "ojs/net/byte_stream.hpp"
#include "ojs/net/http_client.hpp"
#include "ojs/net/json_view.hpp"

#include "ojs/worker/job_context.hpp"
#include "ojs/worker/transport.hpp"
#include "ojs/worker/http_transport.hpp"
#include "ojs/worker/worker_options.hpp"
#include "ojs/worker/worker.hpp"
// clang-format on

#endif  // OJS_SHUTDOWN_HPP

// The definitions; not with OJS_SHUTDOWN_SEPARATE unless OJS_SHUTDOWN_IMPLEMENTATION is defined.
#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_DEFINED)
#define OJS_SHUTDOWN_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/base/error.ipp"
#include "ojs/base/detail/clock.ipp"
#include "ojs/base/duration.ipp"
#include "ojs/base/detail/sync.ipp"
#include "ojs/base/detail/files.ipp"
#include "ojs/base/log.ipp"
#include "ojs/base/detail/proc.ipp"
#include "ojs/base/detail/signal_names.ipp"

#include "ojs/core/detail/wake.hpp"
#include "ojs/core/lifecycle.ipp"
#include "ojs/core/cancel_token.ipp"
#include "ojs/core/shutdown_sequence.ipp"
#include "ojs/core/signals.ipp"

#include "ojs/host/termination_mode.ipp"
#include "ojs/host/container.ipp"

#include "ojs/stop/detail/environment.ipp"
#include "ojs/stop/loop_options.ipp"
#include "ojs/stop/detail/machine_threads.ipp"
#include "ojs/stop/detail/stop_phase.ipp"
#include "ojs/stop/detail/process.ipp"
#include "ojs/stop/detail/machine_state.ipp"
#include "ojs/stop/detail/machine_log.ipp"
#include "ojs/stop/detail/machine.ipp"
#include "ojs/stop/stoppable.ipp"

#include "ojs/loop/detail/loop_core.ipp"
#include "ojs/loop/loop.ipp"

#include "ojs/net/http_message.ipp"
#include "ojs/net/detail/http_parser.ipp"
#include "ojs/net/detail/url.ipp"
#include "ojs/net/detail/socket.ipp"
#include "ojs/net/http_client.ipp"
#include "ojs/net/json_view.ipp"

#include "ojs/worker/detail/job_json.ipp"
#include "ojs/worker/detail/http_bodies.ipp"
#include "ojs/worker/http_transport.ipp"
#include "ojs/worker/transport_scheme.ipp"
#include "ojs/worker/worker_options.ipp"
#include "ojs/worker/detail/active_job.ipp"
#include "ojs/worker/detail/worker_state.ipp"
#include "ojs/worker/detail/fetch_plan.ipp"
#include "ojs/worker/detail/job_report.ipp"
#include "ojs/worker/detail/reports.ipp"
#include "ojs/worker/detail/heartbeats.ipp"
#include "ojs/worker/detail/slots.ipp"
#include "ojs/worker/detail/worker_core.ipp"
#include "ojs/worker/job_context.ipp"
#include "ojs/worker/worker.ipp"
// clang-format on

#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_INLINE
#undef OJS_SHUTDOWN_DEFINE
