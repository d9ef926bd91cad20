// flags: -fno-exceptions
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

int first(const ojs::job_context& job) {
    return job.require_arg<int>(0);  // expect: require_arg<T> and arg_or throw: without exceptions, test arg<T>
}
bool second(const ojs::job_context& job) {
    return job.arg_or(1, true);  // expect: require_arg<T> and arg_or throw: without exceptions, test arg<T>
}
