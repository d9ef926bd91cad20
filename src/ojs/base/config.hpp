// The version, and every macro of this header. None changes the layout of a type.
//
//     macro                        meaning
//     OJS_SHUTDOWN_IMPLEMENTATION  defined in one file only: this file has the definitions
//     OJS_SHUTDOWN_SEPARATE        defined in all other files: declarations only, which compile faster
//     OJS_SHUTDOWN_USE_PROC        0: /proc is not read (the sender of a signal, the program of PID 1); else 1
#pragma once

#if __cplusplus < 201703L
#error "ojs_shutdown.hpp needs C++17: compile with -std=c++17 or later"
#include <C++17>  // ends here: g++ would continue with thousands of errors
#endif

#define OJS_SHUTDOWN_VERSION_MAJOR 0  ///< major version; all headers must be of one version
#define OJS_SHUTDOWN_VERSION_MINOR 1  ///< minor version
#define OJS_SHUTDOWN_VERSION_PATCH 0  ///< patch version
#define OJS_SHUTDOWN_VERSION "0.1.0"  ///< the version as a string literal

#if defined(OJS_SHUTDOWN_SEPARATE) || defined(OJS_SHUTDOWN_IMPLEMENTATION)
#undef OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_SEPARATE 1
#else
#define OJS_SHUTDOWN_SEPARATE 0  ///< 1: declarations only
#endif

#ifndef OJS_SHUTDOWN_USE_PROC
#define OJS_SHUTDOWN_USE_PROC 1  ///< 0: /proc is not read
#endif
