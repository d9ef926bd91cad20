// ojs_amqp.hpp: RabbitMQ's queues, by librabbitmq; link with -lrabbitmq.
//
//     options->transports.add(ojs::amqp());  // OJS_URL=amqp://USER:PASSWORD@HOST:PORT/VHOST
//     ojs::worker worker(*options);
#ifndef OJS_SHUTDOWN_AMQP_HPP
#define OJS_SHUTDOWN_AMQP_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_amqp.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_amqp.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/amqp/amqp_transport.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_AMQP_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_AMQP_DEFINED)
#define OJS_SHUTDOWN_AMQP_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/amqp/detail/link.ipp"
#include "ojs/amqp/detail/message.ipp"
#include "ojs/amqp/detail/publisher.ipp"
#include "ojs/amqp/amqp_transport.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
