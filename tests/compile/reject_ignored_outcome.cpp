// expect: nodiscard
// An outcome that is not returned says nothing.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void handle(ojs::job_context& job) {
    if (job.cancel_requested()) ojs::outcome::interrupted();
}
