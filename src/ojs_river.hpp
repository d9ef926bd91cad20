// ojs_river.hpp: River's queue in PostgreSQL, by libpq. Link with -lpq.
//
// The order in which tools/amalgamate.py puts the parts of src/ojs/river together. It also works as it is.
#ifndef OJS_RIVER_HPP
#define OJS_RIVER_HPP
#include "ojs_shutdown.hpp"
#if OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_INLINE
#else
#define OJS_SHUTDOWN_INLINE inline
#endif
#include "ojs/river/river_transport.hpp"
#endif  // OJS_RIVER_HPP

#if !OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_DEFINE 1
#elif defined(OJS_SHUTDOWN_IMPLEMENTATION)
#define OJS_SHUTDOWN_DEFINE OJS_SHUTDOWN_IMPLEMENTATION
#else
#define OJS_SHUTDOWN_DEFINE 0
#endif
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_RIVER_DEFINED)
#define OJS_RIVER_DEFINED 1
#if OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_INLINE
#else
#define OJS_SHUTDOWN_INLINE inline
#endif
// clang-format off: the order matters
#include "ojs/river/detail/sql.hpp"
#include "ojs/river/detail/postgres_connection.ipp"
#include "ojs/river/detail/database.ipp"
#include "ojs/river/detail/held_jobs.ipp"
#include "ojs/river/detail/session.ipp"
#include "ojs/river/detail/claims.ipp"
#include "ojs/river/detail/reports.ipp"
#include "ojs/river/river_transport.ipp"
// clang-format on
#endif
#undef OJS_SHUTDOWN_INLINE
#undef OJS_SHUTDOWN_DEFINE
