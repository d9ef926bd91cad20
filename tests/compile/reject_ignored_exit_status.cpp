// expect: nodiscard
// That jobs were lost, or that nothing was started, is in the status alone.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

void work(ojs::worker& worker) {
    worker.run();
}
