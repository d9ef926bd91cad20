// ojs_coordinator.hpp: reports readiness to a launcher and answers its requests to drain and stop. [RFC-041]
//
//     ojs::lifecycle life;
//     ojs::worker worker(*options, life);
//     auto coordinator = ojs::shutdown_coordinator::start_for(worker, life);
#ifndef OJS_SHUTDOWN_COORDINATOR_HPP
#define OJS_SHUTDOWN_COORDINATOR_HPP

#include "ojs_server.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false,
              "ojs_coordinator.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_coordinator.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/coordinator/messages.hpp"
#include "ojs/coordinator/message_json.hpp"
#include "ojs/coordinator/coordinator.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_COORDINATOR_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_COORDINATOR_DEFINED)
#define OJS_SHUTDOWN_COORDINATOR_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/coordinator/message_json.ipp"
#include "ojs/coordinator/detail/rpc.ipp"
#include "ojs/coordinator/detail/readiness.ipp"
#include "ojs/coordinator/detail/coordinator_body.hpp"
#include "ojs/coordinator/coordinator.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
