// hello_worker with a job that does nothing, for the measurement of memory.
#include "ojs_shutdown.hpp"

int main() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    ojs::worker worker(*options);
    worker.register_handler("bench", [](ojs::job_context&) {});
    return worker.run();
}
