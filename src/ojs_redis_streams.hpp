// ojs_redis_streams.hpp: Redis Streams as the queue, by hiredis; link with -lhiredis.
//
//     options->transports.add(ojs::redis_streams());  // before the worker is made; OJS_URL=redis://HOST:6379
#ifndef OJS_SHUTDOWN_REDIS_STREAMS_HPP
#define OJS_SHUTDOWN_REDIS_STREAMS_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_redis_streams.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_redis_streams.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/redis_streams/redis_streams.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_REDIS_STREAMS_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_REDIS_STREAMS_DEFINED)
#define OJS_SHUTDOWN_REDIS_STREAMS_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/redis_streams/detail/connection.ipp"
#include "ojs/redis_streams/detail/claims.ipp"
#include "ojs/redis_streams/redis_streams.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
