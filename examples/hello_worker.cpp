// The whole of a worker that loses nothing: fetches jobs, and drains on SIGTERM.
#include "ojs_shutdown.hpp"

int main() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    ojs::worker worker(*options);
    worker.register_handler("hello.greet", [](ojs::job_context& job) {
        if (!job.sleep_for(std::chrono::seconds(1))) return;  // false: cancelled, time to go
    });
    return worker.run();  // quiet -> drain -> stop on SIGTERM; main's exit status
}
