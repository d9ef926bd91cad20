// expect: nodiscard
// Who drops the ticket has left again.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void serve(ojs::drain_barrier& requests) {
    requests.enter();
}
