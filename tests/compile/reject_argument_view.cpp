// expect: use std::string
#define OJS_SHUTDOWN_SEPARATE 1
#include <ojs_shutdown.hpp>

std::string_view first(ojs::job_context& job) {
    return job.arg<std::string_view>(0).value_or("");
}
