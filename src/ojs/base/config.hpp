// Version, and every macro of the library, in one complete table.
// clang-format off
//   macro                        default   meaning
//   OJS_SHUTDOWN_SEPARATE        0         1 in all translation units: declarations only (compile once, link)
//   OJS_SHUTDOWN_IMPLEMENTATION  0         1 in exactly one of them: the definitions as well
//   OJS_SHUTDOWN_USE_EVENTFD     1, Linux  0: wake-ups go through a pipe (a kernel or sandbox without eventfd)
//   OJS_SHUTDOWN_USE_PROC        1, Linux  0: /proc is not read (who sent a signal, what PID 1 is)
//   OJS_SHUTDOWN_USE_PIDFD       1, Linux  0: a thread waits for each child (found out at run time as well)
//   OJS_SHUTDOWN_USE_CLOSE_RANGE 1, Linux  0: a child closes its descriptors one by one (found out as well)
//   OJS_SHUTDOWN_USE_UNWIND      1, Linux  0: no stacks of stuck jobs' threads (a toolchain without <unwind.h>)
//   OJS_SHUTDOWN_USE_EPOLL       1, Linux  0: a server waits for its connections with poll()
//   OJS_SHUTDOWN_USE_INOTIFY     1, Linux  0: a spool directory is looked through every poll interval
// clang-format on
//
// No macro changes the layout of a type, so translation units with different settings link.
#pragma once

#define OJS_SHUTDOWN_VERSION_MAJOR 0
#define OJS_SHUTDOWN_VERSION_MINOR 1
#define OJS_SHUTDOWN_VERSION_PATCH 0
#define OJS_SHUTDOWN_VERSION "0.1.0"

#ifndef OJS_SHUTDOWN_SEPARATE
#define OJS_SHUTDOWN_SEPARATE 0
#endif

#ifdef OJS_SHUTDOWN_LAUNCHER
#error "OJS_SHUTDOWN_LAUNCHER is gone: include ojs_launcher.hpp, or ojs_coordinator.hpp in a launcher's child"
#endif
#ifdef OJS_SHUTDOWN_SERVER
#error "OJS_SHUTDOWN_SERVER is gone: include ojs_server.hpp"
#endif

#ifndef OJS_SHUTDOWN_USE_EPOLL
#ifdef __linux__
#define OJS_SHUTDOWN_USE_EPOLL 1
#else
#define OJS_SHUTDOWN_USE_EPOLL 0
#endif
#endif

#ifndef OJS_SHUTDOWN_USE_EVENTFD
#ifdef __linux__
#define OJS_SHUTDOWN_USE_EVENTFD 1
#else
#define OJS_SHUTDOWN_USE_EVENTFD 0
#endif
#endif

#ifndef OJS_SHUTDOWN_USE_PROC
#ifdef __linux__
#define OJS_SHUTDOWN_USE_PROC 1
#else
#define OJS_SHUTDOWN_USE_PROC 0
#endif
#endif

#ifndef OJS_SHUTDOWN_USE_PIDFD
#ifdef __linux__
#define OJS_SHUTDOWN_USE_PIDFD 1
#else
#define OJS_SHUTDOWN_USE_PIDFD 0
#endif
#endif

#ifndef OJS_SHUTDOWN_USE_CLOSE_RANGE
#ifdef __linux__
#define OJS_SHUTDOWN_USE_CLOSE_RANGE 1
#else
#define OJS_SHUTDOWN_USE_CLOSE_RANGE 0
#endif
#endif

#ifndef OJS_SHUTDOWN_USE_UNWIND
#ifdef __linux__
#define OJS_SHUTDOWN_USE_UNWIND 1
#else
#define OJS_SHUTDOWN_USE_UNWIND 0
#endif
#endif

#ifndef OJS_SHUTDOWN_USE_INOTIFY
#ifdef __linux__
#define OJS_SHUTDOWN_USE_INOTIFY 1
#else
#define OJS_SHUTDOWN_USE_INOTIFY 0
#endif
#endif
