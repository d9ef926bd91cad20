// ojs_events.hpp: the backend announces new jobs to an idle HTTP worker, by server-sent events.
//
//     options->http_events = ojs::queue_events();  // before the worker is made
#ifndef OJS_SHUTDOWN_EVENTS_HPP
#define OJS_SHUTDOWN_EVENTS_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_events.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_events.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/events/queue_events.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_EVENTS_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_EVENTS_DEFINED)
#define OJS_SHUTDOWN_EVENTS_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/events/detail/event_parser.ipp"
#include "ojs/events/detail/event_stream.ipp"
#include "ojs/events/queue_events.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
