// ojs_spool.hpp: a directory as the queue of any number of workers; no server is needed. [Spot]
//
//     options->transports.add(ojs::spool());  // before the worker is constructed; OJS_URL=spool:DIR
#ifndef OJS_SHUTDOWN_SPOOL_HPP
#define OJS_SHUTDOWN_SPOOL_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_spool.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_spool.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/spool/spool_transport.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_SPOOL_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_SPOOL_DEFINED)
#define OJS_SHUTDOWN_SPOOL_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/spool/detail/files.ipp"
#include "ojs/spool/detail/owner.ipp"
#include "ojs/spool/detail/settle.ipp"
#include "ojs/spool/detail/requests.ipp"
#include "ojs/spool/detail/recovery.ipp"
#include "ojs/spool/detail/claiming.ipp"
#include "ojs/spool/spool_transport.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
