// Writes one line to the log where the log's thread, and every other, never gets a processor. With an argument it ends by
// returning from main().
#include <pthread.h>

#include <ojs_shutdown.hpp>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
    *thread = ::pthread_self();
    return 0;
}

int main(int argc, char**) {
    if (argc > 1) {
        ojs::write_log_line(2, "a line");
        return 64;
    }
    return ojs::report_usage({ojs::errc::invalid_argument, 0, "a line"});
}
