// ojs_tls.hpp: https:// with OpenSSL 3; link with -lssl -lcrypto.
//
//     auto tls = ojs::tls_openssl();
//     if (!tls) return ojs::report_startup_error(tls.error());
//     options->https_stream = *tls;  // before the worker is made; OJS_URL=https://HOST
#ifndef OJS_SHUTDOWN_TLS_HPP
#define OJS_SHUTDOWN_TLS_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_tls.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_tls.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/tls/tls_openssl.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_TLS_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_TLS_DEFINED)
#define OJS_SHUTDOWN_TLS_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/tls/tls_openssl.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
