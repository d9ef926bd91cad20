// ojs_process.hpp: starts a program in a process group of its own, and ends it with all that it started.
//
//     ojs::child_options options;
//     options.command = {"ffmpeg", "-i", in, out};
//     auto child = ojs::child_process::start(options);
//     if (!child) return child.error();  // why exec() failed
//     auto end = child->wait_until(ojs::time_point::max(), token);
#ifndef OJS_SHUTDOWN_PROCESS_HPP
#define OJS_SHUTDOWN_PROCESS_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_process.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_process.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/process/child_process.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_PROCESS_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_PROCESS_DEFINED)
#define OJS_SHUTDOWN_PROCESS_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/process/detail/child_launch.ipp"
#include "ojs/process/detail/out_of_memory.hpp"
#include "ojs/process/detail/child_lines.ipp"
#include "ojs/process/child_process.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
