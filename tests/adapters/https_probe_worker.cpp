// The worker that the shutdown probe asks for, over https://: for tls_test.py.
#include <cstdlib>

#include "ojs_operating.hpp"
#include "ojs_tls.hpp"

namespace {

std::chrono::milliseconds asked_time(const ojs::job_context& job) {
    return std::chrono::milliseconds(std::atoi(job.args_json().c_str() + 1));  // [ms]
}

void sleep_a_while(ojs::job_context& job) {
    static_cast<void>(job.sleep_for(asked_time(job)));
}

void spin(ojs::job_context& job) {
    const ojs::time_point end = ojs::steady_clock::now() + asked_time(job);
    while (ojs::steady_clock::now() < end) {
    }
}

}  // namespace

int main() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    ojs::tls_options files;
    files.ca_file = std::getenv("TLS_CA_FILE");
    const auto tls = ojs::tls_openssl(files);
    if (!tls) return ojs::report_usage(tls.error());
    options->https_stream = *tls;
    options->parts.add(ojs::operating());
    ojs::worker worker(*options);
    worker.register_handler("probe.sleep", sleep_a_while);
    worker.register_handler("probe.spin", spin);
    return worker.run();
}
