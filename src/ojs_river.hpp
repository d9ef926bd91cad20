// ojs_river.hpp: River's queue in PostgreSQL, by libpq; link with -lpq.
//
//     auto river = ojs::river_transport::create("postgres://localhost/app");
//     if (!river) return ojs::report_startup_error(river.error());
//     ojs::worker worker(*options, **river);
#ifndef OJS_SHUTDOWN_RIVER_HPP
#define OJS_SHUTDOWN_RIVER_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_river.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_river.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/river/river_transport.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_RIVER_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_RIVER_DEFINED)
#define OJS_SHUTDOWN_RIVER_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/river/detail/postgres_connection.ipp"
#include "ojs/river/detail/database.ipp"
#include "ojs/river/detail/session.ipp"
#include "ojs/river/detail/batches.ipp"
#include "ojs/river/river_transport.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
