// expect: nodiscard
// The callback is taken back with the registration, so at once.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void handle(ojs::job_context& job) {
    job.on_cancel([] {});
}
