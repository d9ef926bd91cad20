// Requests over ojs_tls.hpp, for tls_test.py: prints what came of each on a line of its own.
//     https_client [--ca F] [--crl F] [--certificate F] [--key F] [--name HOST] [--timeout D] [--token T] [--requests N]
//                  [--stepwise yes] [--fork yes] URL
//
// "ok STATUS BODY" with the body's line ends as blanks, or "error CODE TEXT". --stepwise: a request for each line of its
// input. --fork: the second request is a child's, made by fork().
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "ojs_tls.hpp"

namespace {
int failed(const ojs::error& why) {
    std::printf("error %s %s\n", ojs::to_string(why.code), why.text.c_str());
    return 1;
}

int print(const ojs::result<ojs::http_response>& answer) {
    if (!answer) return failed(answer.error());
    std::string body = answer->body;
    for (char& each : body) each = each == '\n' || each == '\r' ? ' ' : each;
    std::printf("ok %d %s\n", answer->status, body.c_str());
    return 0;
}
}  // namespace

int main(int argc, char** argv) {
    std::map<std::string, std::string> flags = {{"--timeout", "20s"}, {"--requests", "1"}};
    for (int i = 1; i + 1 < argc; i += 2) flags[argv[i]] = argv[i + 1];
    ojs::tls_options of_tls;
    of_tls.ca_file = flags["--ca"];
    of_tls.crl_file = flags["--crl"];
    of_tls.certificate_file = flags["--certificate"];
    of_tls.key_file = flags["--key"];
    of_tls.server_name = flags["--name"];
    const auto tls = ojs::tls_openssl(of_tls);
    if (!tls) return failed(tls.error());
    ojs::http_client_options options;
    options.https_stream = *tls;
    options.bearer_token = flags["--token"];
    auto client = ojs::http_client::create(argv[argc - 1], options);
    if (!client) return failed(client.error());
    const auto timeout = *ojs::parse_duration(flags["--timeout"]);
    const auto ask = [&] {
        ojs::http_request request;
        request.target = "/";
        return client->send(request, {ojs::deadline_after(timeout)});
    };
    const bool is_stepwise = flags.count("--stepwise") != 0;
    int status = 0;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    for (int i = 0; i < std::atoi(flags["--requests"].c_str()) || is_stepwise; ++i) {
        if (is_stepwise && std::getchar() == EOF) break;
        const pid_t child = flags.count("--fork") && i == 1 ? ::fork() : -1;
        if (child > 0) {
            ::waitpid(child, nullptr, 0);
        } else {
            status |= print(ask());
            if (child == 0) return status;
        }
    }
    return status;
}
