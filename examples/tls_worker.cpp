// The worker of hello_worker.cpp, over https://. Link with -lssl -lcrypto.
//
//     OJS_URL=https://backend.example build/tls_worker
//
// TLS_CA_FILE: trusted certificates instead of the system's; TLS_CRL_FILE: revoked ones. TLS_CERTIFICATE_FILE and
// TLS_KEY_FILE: the worker's own.
#include <cstdio>
#include <cstdlib>

#include "ojs_tls.hpp"

namespace {
std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}
}  // namespace

int main(int argc, char** argv) {
    if (argc == 2 && argv[1] == std::string("--help")) {
        std::puts("usage: OJS_URL=https://HOST tls_worker\nRuns jobs of type hello.greet.");
        return 0;
    }
    if (argc > 1) return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "unexpected argument; see --help"});
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    ojs::tls_options files;
    files.ca_file = variable("TLS_CA_FILE");
    files.crl_file = variable("TLS_CRL_FILE");
    files.certificate_file = variable("TLS_CERTIFICATE_FILE");
    files.key_file = variable("TLS_KEY_FILE");
    const auto tls = ojs::tls_openssl(files);
    if (!tls) return ojs::report_startup_error(tls.error());
    options->https_stream = *tls;

    ojs::worker worker(std::move(*options));
    worker.register_handler("hello.greet", [](ojs::job_context& job) {
        if (!job.sleep_for(std::chrono::seconds(1))) return;  // false: cancelled
    });
    return worker.run();
}
