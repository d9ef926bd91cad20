// A worker for which no thread can be created once its stop has begun; and with an argument, the allocations for its
// shutdown step fail for as long as they are tried. Prints what became of the step.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <ojs_shutdown.hpp>

namespace {

std::atomic<bool> no_threads{false};
thread_local int failures = 0;  // of the allocations to come

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
    using create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const auto real = reinterpret_cast<create>(::dlsym(RTLD_NEXT, "pthread_create"));
    return no_threads ? EAGAIN : real(thread, attributes, body, argument);
}

void* operator new(std::size_t size) {
    void* const out = failures > 0 && failures-- > 0 ? nullptr : std::malloc(size);
    if (out == nullptr) throw std::bad_alloc();
    return out;
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

int main(int argc, char**) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    ojs::worker_options options;
    options.url = "memory:";
    options.on_transition = [](const ojs::lifecycle_state& now) {
        if (now.phase == ojs::phase::stopping) no_threads = true;
    };
    // The record of the step's begin is the last before its thread.
    options.log.level = ojs::log_level::debug;
    options.log.hook = [argc](const ojs::log_record& record) {
        if (argc > 1 && record.message == "shutdown step started") failures = 110;
        if (record.message == "worker started") ::kill(::getpid(), SIGTERM);
    };
    ojs::worker worker(options);
    worker.register_handler("work", [](ojs::job_context&) {});
    bool ran = false;
    worker.on_shutdown("flush", [&] { ran = true; });
    const int status = worker.run();
    failures = 0;
    const std::vector<ojs::step_result> steps = worker.report().steps;
    for (const ojs::step_result& each : steps)
        std::printf("%s: %s, ran: %d\n", each.name.c_str(), ojs::to_string(each.status), ran);
    return status;
}
