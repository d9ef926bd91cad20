// Writes one line to the log where the log's thread, and every other, never gets a processor.
#include <pthread.h>

#include <ojs_shutdown.hpp>

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
    *thread = ::pthread_self();
    return 0;
}

int main() {
    return ojs::report_usage({ojs::errc::invalid_argument, 0, "a line"});
}
