// Requests over ojs_tls.hpp, for tls_test.py: says what came of each on a line of its own.
//
//     https_client [--ca F] [--crl F] [--certificate F] [--key F] [--name HOST] [--timeout D] [--token T]
//                  [--requests N] [--new-connections] [--stepwise] [--fork] [--rate SECONDS THREADS] URL
//
// "ok STATUS BODY" with the body's line ends as blanks, or "error CODE TEXT". --stepwise: a request for each line of its
// input. --fork: the second request is a child's, made by fork(). --rate: instead, how many a second.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include "ojs_tls.hpp"

namespace {

struct settings {
    ojs::tls_options tls;
    std::string url;
    std::string token;
    std::chrono::milliseconds timeout{20000};
    int requests = 1;
    bool keeps = true;
    bool stepwise = false;
    bool forks = false;
    int seconds = 0;
    int threads = 1;
};

settings read_flags(int argc, char** argv) {
    settings out;
    const std::map<std::string, std::string*> texts = {{"--ca", &out.tls.ca_file},
                                                       {"--crl", &out.tls.crl_file},
                                                       {"--certificate", &out.tls.certificate_file},
                                                       {"--key", &out.tls.key_file},
                                                       {"--name", &out.tls.server_name},
                                                       {"--token", &out.token}};
    for (int i = 1; i < argc; ++i) {
        const std::string flag = argv[i];
        const auto value = [&] { return ++i < argc ? argv[i] : ""; };
        if (const auto text = texts.find(flag); text != texts.end()) {
            *text->second = value();
        } else if (flag == "--timeout") {
            out.timeout = *ojs::parse_duration(value());
        } else if (flag == "--requests") {
            out.requests = std::atoi(value());
        } else if (flag == "--new-connections") {
            out.keeps = false;
        } else if (flag == "--stepwise") {
            out.stepwise = true;
        } else if (flag == "--fork") {
            out.forks = true;
        } else if (flag == "--rate") {
            out.seconds = std::atoi(value());
            out.threads = std::atoi(value());
        } else {
            out.url = flag;
        }
    }
    return out;
}

int failed(const ojs::error& why) {
    std::printf("error %s %s\n", ojs::to_string(why.code), why.text.c_str());
    return 1;
}

ojs::result<ojs::http_response> ask(ojs::http_client& client, const settings& how) {
    ojs::http_request request;
    request.target = "/";
    return client.send(request, {ojs::deadline_after(how.timeout), ojs::resend::if_unsent, nullptr});
}

int tell(const ojs::result<ojs::http_response>& answer) {
    if (!answer) return failed(answer.error());
    std::string body = answer->body;
    for (char& each : body) each = each == '\n' || each == '\r' ? ' ' : each;
    std::printf("ok %d %s\n", answer->status, body.c_str());
    return 0;
}

int rate(ojs::http_client& client, const settings& how) {
    std::atomic<long> done{0};
    std::atomic<long> wrong{0};
    const ojs::time_point end = ojs::steady_clock::now() + std::chrono::seconds(how.seconds);
    std::vector<std::thread> threads;
    for (int i = 0; i < how.threads; ++i) {
        threads.emplace_back([&] {
            while (ojs::steady_clock::now() < end) ++(ask(client, how) ? done : wrong);
        });
    }
    for (std::thread& each : threads) each.join();
    std::printf("%ld requests/s, %ld failed\n", done / how.seconds, wrong.load());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const settings how = read_flags(argc, argv);
    const auto tls = ojs::tls_openssl(how.tls);
    if (!tls) return failed(tls.error());
    ojs::http_client_options options;
    options.https_stream = *tls;
    options.bearer_token = how.token;
    options.max_idle_connections = how.keeps ? 256 : 0;
    auto client = ojs::http_client::create(how.url, options);
    if (!client) return failed(client.error());
    if (how.seconds > 0) return rate(*client, how);
    int status = 0;
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    for (int i = 0; i < how.requests || how.stepwise; ++i) {
        if (how.stepwise && std::getchar() == EOF) break;
        const pid_t child = how.forks && i == 1 ? ::fork() : -1;
        if (child > 0) {
            ::waitpid(child, nullptr, 0);
        } else {
            status |= tell(ask(*client, how));
            if (child == 0) return status;
        }
    }
    return status;
}
