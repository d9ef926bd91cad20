// A complete worker: fetches jobs, and drains on SIGTERM. It has the commands of examples/deploy/.
#include <cstdio>
#include <string>

#include "ojs_ops.hpp"

ojs::outcome greet(ojs::job_context& job) {
    if (!job.sleep_for(std::chrono::seconds(1))) return ojs::outcome::interrupted();  // false: cancelled
    std::printf("hello, %s\n", job.arg_or(0, "world").c_str());
    std::fflush(stdout);  // in a pipe it is buffered
    return ojs::outcome::done();
}

int main(int argc, char** argv) {
    auto options = ojs::worker_options::from_environment();
    if (options) options->extensions.add(ojs::ops());                               // probes, metrics, systemd
    if (const auto status = ojs::run_command(argc, argv, options)) return *status;  // --doctor, --signal, or an error
    ojs::worker worker(*options);  // OJS_URL=http://HOST:PORT OJS_QUEUES=default,email
    worker.register_handler("hello.greet", greet);
    return worker.run();  // SIGTERM: quiet -> drain -> stop
}
