// A complete worker: fetches jobs, and drains on SIGTERM without losing one.
#include <cstdio>
#include <string>

#include "ojs_shutdown.hpp"

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::puts("usage: OJS_URL=http://HOST:PORT hello_worker\nRuns jobs of type hello.greet.");
        return 0;
    }
    if (argc > 1) return ojs::report_usage({ojs::errc::invalid_argument, 0, "no arguments; see --help"});
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    ojs::worker worker(*options);
    worker.register_handler("hello.greet", [](ojs::job_context& job) -> ojs::outcome {
        if (!job.sleep_for(std::chrono::seconds(1))) return ojs::outcome::interrupted();  // false: cancelled
        std::printf("hello, %s\n", job.arg_or(0, "world").c_str());
        std::fflush(stdout);
        return ojs::outcome::done();
    });
    return worker.run();  // quiet -> drain -> stop on SIGTERM; main's exit status
}
