// A complete worker: fetches jobs, and drains on SIGTERM without losing one. It has the commands of examples/deploy/.
#include <cstdio>
#include <string>

#include "ojs_ops.hpp"

int main(int argc, char** argv) {
    auto options = ojs::worker_options::from_environment();
    if (options) options->extensions.add(ojs::ops());                               // probes, metrics, systemd
    if (const auto status = ojs::run_command(argc, argv, options)) return *status;  // --doctor, --signal, or an error
    ojs::worker worker(*options);
    worker.register_handler("hello.greet", [](ojs::job_context& job) -> ojs::outcome {
        if (!job.sleep_for(std::chrono::seconds(1))) return ojs::outcome::interrupted();  // false: cancelled
        std::printf("hello, %s\n", job.arg_or(0, "world").c_str());
        std::fflush(stdout);
        return ojs::outcome::done();
    });
    return worker.run();  // quiet -> drain -> stop on SIGTERM; main's exit status
}
