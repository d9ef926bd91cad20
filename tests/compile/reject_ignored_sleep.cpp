// expect: nodiscard
// Who sleeps must look whether the job was cancelled meanwhile.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void handle(ojs::job_context& job) {
    job.sleep_for(std::chrono::seconds(1));
}
