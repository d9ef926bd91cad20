// The version, and every macro of this header.
//
//     macro                        default   meaning
//     OJS_SHUTDOWN_IMPLEMENTATION  0         defined in one file only: this file has the definitions
//     OJS_SHUTDOWN_SEPARATE        0         defined in all other files: declarations only, which compile faster
//     OJS_SHUTDOWN_USE_PROC        1, Linux  0: /proc is not read (the sender of a signal, the program of PID 1)
//
// No macro changes the layout of a type, so translation units with different settings link.
#pragma once

#if __cplusplus < 201703L
#error "ojs_shutdown.hpp needs C++17: compile with -std=c++17 or later"
#include <C++17>  // ends here: g++ would continue with thousands of errors
#endif

#define OJS_SHUTDOWN_VERSION_MAJOR 0  ///< major version; all headers must be of one version
#define OJS_SHUTDOWN_VERSION_MINOR 1  ///< minor version
#define OJS_SHUTDOWN_VERSION_PATCH 0  ///< patch version
#define OJS_SHUTDOWN_VERSION "0.1.0"  ///< the version as a string literal

#if defined(OJS_SHUTDOWN_IMPLEMENTATION) && !defined(OJS_SHUTDOWN_SEPARATE)
#if 1 - OJS_SHUTDOWN_IMPLEMENTATION - 1 == 0  // it is 0; without a value this is 2
#define OJS_SHUTDOWN_SEPARATE 0
#else
#define OJS_SHUTDOWN_SEPARATE 1
#endif
#elif !defined(OJS_SHUTDOWN_SEPARATE)
#define OJS_SHUTDOWN_SEPARATE 0           ///< 1: declarations only, which compile faster
#elif 1 - OJS_SHUTDOWN_SEPARATE - 1 == 2  // 1 - -1: it has no value
#undef OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_SEPARATE 1
#endif

// On by default on Linux only.
#ifdef __linux__
#define OJS_SHUTDOWN_ON_LINUX 1  ///< 1 on Linux, else 0
#else
#define OJS_SHUTDOWN_ON_LINUX 0
#endif
#ifndef OJS_SHUTDOWN_USE_PROC
#define OJS_SHUTDOWN_USE_PROC OJS_SHUTDOWN_ON_LINUX  ///< 0: /proc is not read
#endif
