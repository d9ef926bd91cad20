// The one file of a build in the separate form that holds the definitions; -DOJS_SHUTDOWN_SEPARATE=1 comes from outside,
// as for every other file. Without it this is just one more file that includes the headers.
#define OJS_SHUTDOWN_IMPLEMENTATION 1
#include "../support/every_extension.hpp"

// The ThreadSanitizer of GCC 12 makes a thread's place for signals at its first blocking call, and loses a signal that
// comes just then: the main thread, to which the tests send theirs, makes one before.
#ifdef __SANITIZE_THREAD__
#include <poll.h>

__attribute__((constructor)) static void make_place_for_signals() { static_cast<void>(::poll(nullptr, 0, 0)); }
#endif
