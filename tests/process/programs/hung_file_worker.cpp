// A worker whose termination-mode file is on a disk that does not answer. Stops itself by SIGTERM.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdarg>
#include <cstring>
#include <ojs_shutdown.hpp>

extern "C" int open(const char* path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
    va_end(more);
    while (std::strcmp(path, "/hung/mode") == 0) ::pause();
    static const auto real = reinterpret_cast<int (*)(const char*, int, mode_t)>(::dlsym(RTLD_NEXT, "open"));
    return real(path, flags, mode);
}

int main() {
    ojs::worker_options options;
    options.url = "memory:";
    options.termination_mode_file = "/hung/mode";
    options.log.hook = [](const ojs::log_record& record) {
        ojs::write_log_line(STDERR_FILENO, record.message + "\n");
        if (record.message == "worker started") ::kill(::getpid(), SIGTERM);
    };
    ojs::worker worker(options);
    worker.register_handler("work", [](ojs::job_context&) {});
    return worker.run();
}
