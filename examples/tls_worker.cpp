// The worker of hello_worker.cpp, over https://. Link with -lssl -lcrypto.
//
//     OJS_URL=https://backend.example build/tls_worker
//
// TLS_CA_FILE: whom to trust instead of the system's roots; TLS_CRL_FILE: what is revoked. TLS_CERTIFICATE_FILE and
// TLS_KEY_FILE: who the worker is.
#include <cstdlib>

#include "adapters/tls_openssl.hpp"

namespace {

std::string variable(const char* name) {
    const char* const value = std::getenv(name);
    return value == nullptr ? std::string() : value;
}

}  // namespace

int main() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    const auto tls = ojs_adapters::tls_openssl({variable("TLS_CA_FILE"),
                                                variable("TLS_CRL_FILE"),
                                                variable("TLS_CERTIFICATE_FILE"),
                                                variable("TLS_KEY_FILE"),
                                                {}});
    if (!tls) return ojs::report_usage(tls.error());
    options->https_stream = *tls;

    ojs::worker worker(std::move(*options));
    worker.register_handler("hello.greet", [](ojs::job_context& job) {
        if (!job.sleep_for(std::chrono::seconds(1))) return;  // false: cancelled, time to go
    });
    return worker.run();
}
