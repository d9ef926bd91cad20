// flags: -fno-exceptions
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

int first(const ojs::job_context& job) {
    return job.require<int>(0);  // expect: require<T> throws: without exceptions, test arg<T>
}
