// ojs_ops.hpp: probes, metrics, control, systemd, and a doctor.
//
//     options->extensions.add(ojs::ops());  // before the worker is made; OJS_HEALTH_ADDR=:8081
#ifndef OJS_SHUTDOWN_OPS_HPP
#define OJS_SHUTDOWN_OPS_HPP

#include "ojs_server.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_ops.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_ops.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/ops/finding.hpp"
#include "ojs/ops/ops.hpp"
#include "ojs/ops/doctor.hpp"
#include "ojs/ops/signal_worker.hpp"
#include "ojs/ops/run_command.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_OPS_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_OPS_DEFINED)
#define OJS_SHUTDOWN_OPS_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/ops/detail/pid1.ipp"
#include "ojs/ops/detail/startup_findings.ipp"
#include "ojs/ops/detail/advice.ipp"
#include "ojs/ops/detail/metrics.ipp"
#include "ojs/ops/detail/health.ipp"
#include "ojs/ops/signal_worker.ipp"
#include "ojs/ops/doctor.ipp"
#include "ojs/ops/detail/exit_notice.ipp"
#include "ojs/ops/ops.ipp"
#include "ojs/ops/run_command.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
