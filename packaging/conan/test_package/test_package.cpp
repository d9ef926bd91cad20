// A worker whose only job sends it SIGTERM: the job is finished and reported, and the worker exits with 0.
#include <ojs_memory.hpp>
#include <signal.h>

#include <cstdio>

int main() {
    ojs::memory_transport queue;
    queue.push("last");
    ojs::worker worker(ojs::worker_options{}, queue);
    const auto registered = worker.register_handler("last", [](ojs::job_context&) { ::raise(SIGTERM); });
    if (!registered) return 1;
    const int status = worker.run();
    const bool completed = queue.jobs().at(0).state == "completed";
    std::printf("ojs_shutdown %s: status %d, job %s\n", OJS_SHUTDOWN_VERSION, status, completed ? "completed" : "lost");
    return completed ? status : 1;
}
