// ojs_client.hpp: enqueues jobs at an OJS server, from a handler or any other program.
//
//     auto client = ojs::client::create(ojs::client_options());  // then client->enqueue({"mail.send"}, {deadline})
#ifndef OJS_SHUTDOWN_CLIENT_HPP
#define OJS_SHUTDOWN_CLIENT_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_client.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_client.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/client/client.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_CLIENT_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_CLIENT_DEFINED)
#define OJS_SHUTDOWN_CLIENT_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/client/detail/enqueue_json.ipp"
#include "ojs/client/client.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
