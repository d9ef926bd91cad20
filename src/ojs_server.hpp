// ojs_server.hpp: an HTTP/1.1 server for many connections that finishes every accepted request before it stops.
//
//     auto server = ojs::draining_server::start(":8080", handler);  // http_response(const http_request&)
//     if (server) server->drain({ojs::deadline_after(std::chrono::seconds(20))});
#ifndef OJS_SHUTDOWN_SERVER_HPP
#define OJS_SHUTDOWN_SERVER_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_server.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_server.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/server/draining_server.hpp"
#include "ojs/server/http_server.hpp"
#include "ojs/server/service_notifier.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_SERVER_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_SERVER_DEFINED)
#define OJS_SHUTDOWN_SERVER_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/server/detail/thread_end.ipp"
#include "ojs/server/detail/http_messages.ipp"
#include "ojs/server/detail/listener.ipp"
#include "ojs/server/detail/event_queue.ipp"
#include "ojs/server/detail/server_connection.ipp"
#include "ojs/server/draining_server.ipp"
#include "ojs/server/detail/http_routes.ipp"
#include "ojs/server/detail/prometheus.ipp"
#include "ojs/server/service_notifier.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
