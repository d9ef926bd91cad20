// Programs that lack something:
//
//   deprived threads           a worker for which no thread can be created once its stop has begun; prints what became of its
//                              shutdown step
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ojs_memory.hpp>

namespace {

std::atomic<bool> no_threads{false};

}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
    using create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static const auto real = reinterpret_cast<create>(::dlsym(RTLD_NEXT, "pthread_create"));
    return no_threads ? EAGAIN : real(thread, attributes, body, argument);
}
namespace {

int run_step() {
    ojs::worker_options options;
    options.url = "memory:";
    options.transports.add(ojs::memory());
    options.on_transition = [](const ojs::lifecycle_state& now) {
        if (now.phase == ojs::phase::stopping) no_threads = true;
    };
    options.log.hook = [](const ojs::log_record& record) {
        if (record.message == "worker started") ::kill(::getpid(), SIGTERM);
    };
    ojs::worker worker(options);
    worker.register_handler("work", [](ojs::job_context&) {});
    bool ran = false;
    worker.on_shutdown("flush", [&] { ran = true; });
    const int status = worker.run();
    for (const ojs::step_result& each : worker.report().steps)
        std::printf("%s: %s, ran: %d\n", each.name.c_str(), ojs::to_string(each.status), ran);
    return status;
}

}  // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    return run_step();
}
