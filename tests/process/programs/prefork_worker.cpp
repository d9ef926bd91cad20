// Made before it forks: `prefork_worker N` starts N children that each run the worker, and stops them when it is stopped.
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <ojs_shutdown.hpp>
#include <string>
#include <vector>

namespace {

int supervise(ojs::signals& signals, ojs::worker& worker, int count) {
    std::vector<pid_t> children;
    for (int i = 0; i < count; ++i) {
        const pid_t child = ::fork();
        if (child == 0) ::_exit(worker.run());
        children.push_back(child);
    }
    std::printf("forked\n");
    while (signals.wait().number != SIGTERM) {
    }
    int worst = 0;
    for (const pid_t child : children) ::kill(child, SIGTERM);
    for (const pid_t child : children) {
        int status = 0;
        ::waitpid(child, &status, 0);
        std::printf("child %ld: %s %d\n", static_cast<long>(child), WIFEXITED(status) ? "exit" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        if (status != 0) worst = 1;
    }
    return worst;
}

}  // namespace

int main(int argc, char** argv) {
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    ojs::lifecycle lifecycle;
    ojs::result<ojs::signals> signals = ojs::signals::install(lifecycle);
    ojs::result<ojs::worker_options> options = ojs::worker_options::from_environment();
    if (!signals || !options || argc < 2) return ojs::exit_status::usage;
    ojs::worker worker(*options, lifecycle);
    worker.register_handler("test.pid", [](ojs::job_context&) { return std::to_string(::getpid()); });
    return supervise(*signals, worker, std::atoi(argv[1]));
}
