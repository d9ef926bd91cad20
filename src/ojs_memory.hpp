// ojs_memory.hpp: a queue in this process, for tests and for a process that queues work for itself.
//
//     ojs::memory_transport queue;  // push() jobs, and pass it to the worker
#ifndef OJS_SHUTDOWN_MEMORY_HPP
#define OJS_SHUTDOWN_MEMORY_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_memory.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_memory.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/memory/memory_transport.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_MEMORY_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_MEMORY_DEFINED)
#define OJS_SHUTDOWN_MEMORY_DEFINED 1
#include "set_inline.hpp"

// clang-format off
#include "ojs/memory/memory_transport.ipp"
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
