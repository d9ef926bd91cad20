// ojs_ledger.hpp: the position to commit in a queue whose items finish out of order, such as Kafka.
//
//     auto ticket = tracker.begin(offset);  // then ticket->done(), on any thread
//     commit(tracker.next_position());
#ifndef OJS_SHUTDOWN_LEDGER_HPP
#define OJS_SHUTDOWN_LEDGER_HPP

#include "ojs_shutdown.hpp"

#if OJS_SHUTDOWN_VERSION_MAJOR != 0 || OJS_SHUTDOWN_VERSION_MINOR != 1 || OJS_SHUTDOWN_VERSION_PATCH != 0
static_assert(false, "ojs_ledger.hpp is version 0.1.0, ojs_shutdown.hpp is version " OJS_SHUTDOWN_VERSION);
#error "ojs_ledger.hpp 0.1.0 and ojs_shutdown.hpp are of different versions: copy both from one release"
#endif

#include "set_inline.hpp"
// clang-format off
#include "ojs/ledger/offset_tracker.hpp"
// clang-format on
#undef OJS_SHUTDOWN_INLINE

#endif  // OJS_SHUTDOWN_LEDGER_HPP

#include "set_define.hpp"
#if OJS_SHUTDOWN_DEFINE && !defined(OJS_SHUTDOWN_LEDGER_DEFINED)
#define OJS_SHUTDOWN_LEDGER_DEFINED 1
#include "set_inline.hpp"

// clang-format off
// clang-format on

#undef OJS_SHUTDOWN_INLINE
#endif  // OJS_SHUTDOWN_DEFINE
#undef OJS_SHUTDOWN_DEFINE
