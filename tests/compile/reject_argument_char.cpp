// expect: arg<T>: std::string, bool, or an integer
// A number or a text? std::int8_t and std::string say which.
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

char first(ojs::job_context& job) {
    return job.arg<char>(0).value_or('?');
}
