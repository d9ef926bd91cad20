// The version, and every macro of this header.
// clang-format off
//   macro                        default   meaning
//   OJS_SHUTDOWN_SEPARATE        0         1 in all translation units: declarations only (compile once, link)
//   OJS_SHUTDOWN_IMPLEMENTATION  0         1 in exactly one of them: the definitions as well
//   OJS_SHUTDOWN_USE_EVENTFD     1, Linux  0: wake-ups go through a pipe (a kernel or sandbox without eventfd)
//   OJS_SHUTDOWN_USE_PROC        1, Linux  0: /proc is not read (the sender of a signal, the program of PID 1)
// clang-format on
//
// No macro changes the layout of a type, so translation units with different settings link.
#pragma once

#if __cplusplus < 201703L
#error "ojs_shutdown.hpp needs C++17: compile with -std=c++17 or later"
#endif

#define OJS_SHUTDOWN_VERSION_MAJOR 0  // major version; all headers must be of one version
#define OJS_SHUTDOWN_VERSION_MINOR 1  // minor version
#define OJS_SHUTDOWN_VERSION_PATCH 0  // patch version
#define OJS_SHUTDOWN_VERSION "0.1.0"  // the version as a string literal

#ifndef OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_SEPARATE 0
#endif

// On by default on Linux only.
#ifdef __linux__
#define OJS_SHUTDOWN_ON_LINUX 1  // 1 on Linux, else 0
#else
#define OJS_SHUTDOWN_ON_LINUX 0
#endif
#ifndef OJS_SHUTDOWN_USE_EVENTFD
#define OJS_SHUTDOWN_USE_EVENTFD OJS_SHUTDOWN_ON_LINUX
#endif
#ifndef OJS_SHUTDOWN_USE_PROC
#define OJS_SHUTDOWN_USE_PROC OJS_SHUTDOWN_ON_LINUX
#endif
