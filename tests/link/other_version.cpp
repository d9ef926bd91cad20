// The other half of versions.cpp: the same header under another version's name, as the Makefile has made it.
#define OJS_SHUTDOWN_IMPLEMENTATION 1
#include "other_version.hpp"

namespace {
ojs::lifecycle life(std::chrono::milliseconds(0));
}  // namespace

const char* other_version() { return OJS_SHUTDOWN_VERSION; }

bool other_install() { return ojs::signals::install(life).has_value(); }

// 0: a worker has run a job and stopped. It needs threads, a log and a transport, all of this version.
int other_runs_a_job() {
    ojs::worker_options options;
    options.log.level = ojs::log_level::off;
    ojs::memory_transport jobs;
    jobs.push("work");
    ojs::worker worker(options, jobs);
    worker.register_handler("work", [&worker](ojs::job_context&) { worker.request_stop(); });
    if (!worker.start() || !worker.wait(ojs::deadline_after(std::chrono::seconds(20)))) return 1;
    return worker.report().completed == 1 ? worker.exit_code() : 2;
}
