// expect: arg<T>: std::string, bool, or an integer
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

enum class colour { red };
colour first(ojs::job_context& job) {
    return job.arg<colour>(0).value_or(colour::red);
}
