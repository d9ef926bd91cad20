// expect: a handler returns nothing, a result
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void set_up(ojs::worker& worker) {
    worker.register_handler("work", [](ojs::job_context&) { return nullptr; });
}
