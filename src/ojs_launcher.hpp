// ojs_launcher.hpp: starts groups of processes, keeps them running, and replaces them without an outage. [RFC-041]
//
//     auto options = ojs::read_launcher_config(json);
//     if (!options) return ojs::report_startup_error(options.error());
//     return ojs::launcher(*options).run();  // SIGTERM shuts the processes down, then it returns
#ifndef OJS_SHUTDOWN_LAUNCHER_HPP
#define OJS_SHUTDOWN_LAUNCHER_HPP

#include "ojs_coordinator.hpp"
#include "ojs_process.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_launcher.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_launcher.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/launcher/admin_messages.hpp"
#include "ojs/launcher/launcher_options.hpp"
#include "ojs/launcher/detail/instance.hpp"
#include "ojs/launcher/launcher.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_LAUNCHER_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_LAUNCHER_DEFINED)
#define OJS_SHUTDOWN_LAUNCHER_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/launcher/admin_messages.ipp"
#include "ojs/launcher/detail/state_file.ipp"
#include "ojs/launcher/launcher_options.ipp"
#include "ojs/launcher/detail/managed_instance.hpp"
#include "ojs/launcher/detail/managed_instance.ipp"
#include "ojs/launcher/detail/launcher_context.ipp"
#include "ojs/launcher/detail/launcher_metrics.ipp"
#include "ojs/launcher/detail/rollout.ipp"
#include "ojs/launcher/detail/process_group.hpp"
#include "ojs/launcher/detail/process_group.ipp"
#include "ojs/launcher/detail/launcher_admin.ipp"
#include "ojs/launcher/launcher.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
