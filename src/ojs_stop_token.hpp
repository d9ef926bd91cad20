// ojs_stop_token.hpp: std::stop_token from and to cancel_token, with C++20.
//
//     ojs::stop_source_of linked(job.token());
//     parse(file, linked.get_token());  // takes a std::stop_token
#ifndef OJS_SHUTDOWN_STOP_TOKEN_HPP
#define OJS_SHUTDOWN_STOP_TOKEN_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false,
              "ojs_stop_token.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_stop_token.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/stop_token/stop_token.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_STOP_TOKEN_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_STOP_TOKEN_DEFINED)
#define OJS_SHUTDOWN_STOP_TOKEN_DEFINED 1
#include "set_inline.hpp"

// clang-format off
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
