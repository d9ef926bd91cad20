// ojs_tls.hpp: https:// by OpenSSL 3. Link with -lssl -lcrypto.
//
// The order in which tools/amalgamate.py puts the parts of src/ojs/tls together. It also works as it is.
#ifndef OJS_TLS_HPP
#define OJS_TLS_HPP
#include "ojs_shutdown.hpp"
#if OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_INLINE
#else
#define OJS_SHUTDOWN_INLINE inline
#endif
#include "ojs/tls/tls_openssl.hpp"
#endif  // OJS_TLS_HPP

#if !OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_DEFINE 1
#elif defined(OJS_SHUTDOWN_IMPLEMENTATION)
#define OJS_SHUTDOWN_DEFINE OJS_SHUTDOWN_IMPLEMENTATION
#else
#define OJS_SHUTDOWN_DEFINE 0
#endif
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_TLS_DEFINED)
#define OJS_TLS_DEFINED 1
#if OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_INLINE
#else
#define OJS_SHUTDOWN_INLINE inline
#endif
#include "ojs/tls/tls_openssl.ipp"
#endif
#undef OJS_SHUTDOWN_INLINE
#undef OJS_SHUTDOWN_DEFINE
