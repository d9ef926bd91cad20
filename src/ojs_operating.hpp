// ojs_operating.hpp: probes, metrics, control, systemd, a doctor, and stacks of stuck jobs.
//
//     options->parts.add(ojs::operating());  // before the worker is made; OJS_HEALTH_ADDR=:8081
#ifndef OJS_SHUTDOWN_OPERATING_HPP
#define OJS_SHUTDOWN_OPERATING_HPP

#include "ojs_server.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_operating.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_operating.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/operating/doctor.hpp"
#include "ojs/operating/operating.hpp"
#include "ojs/operating/signal_worker.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_OPERATING_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_OPERATING_DEFINED)
#define OJS_SHUTDOWN_OPERATING_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/operating/detail/thread_stack.ipp"
#include "ojs/operating/detail/pid1.ipp"
#include "ojs/operating/detail/advice.ipp"
#include "ojs/operating/detail/metrics.ipp"
#include "ojs/operating/detail/health.ipp"
#include "ojs/operating/signal_worker.ipp"
#include "ojs/operating/doctor.ipp"
#include "ojs/operating/operating.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
