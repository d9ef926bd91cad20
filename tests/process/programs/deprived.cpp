// Programs that lack something:
//
//   deprived file              a worker whose termination-mode file is on a disk that does not respond; stops itself by SIGTERM
//   deprived threads           a worker for which no thread can be created once its stop has begun; prints what became of its
//                              shutdown step
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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
extern "C" int open(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    while (std::strcmp(path, "/hung/mode") == 0) ::pause();
    static const auto real = reinterpret_cast<int (*)(const char*, int, mode_t)>(::dlsym(RTLD_NEXT, "open"));
    return real(path, flags, mode);
}

namespace {

int read_hung_file() {
    ojs::worker_options options;
    options.url = "memory:";
    options.transports.add(ojs::memory());
    options.termination_mode_file = "/hung/mode";
    options.log.hook = [](const ojs::log_record& record) {
        ojs::write_log_line(STDERR_FILENO, record.message + "\n");
        if (record.message == "worker started") ::kill(::getpid(), SIGTERM);
    };
    ojs::worker worker(options);
    worker.register_handler("work", [](ojs::job_context&) {});
    return worker.run();
}

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

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    const std::string lacks = argc > 1 ? argv[1] : "";
    return lacks == "file" ? read_hung_file() : run_step();
}
