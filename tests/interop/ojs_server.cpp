// ojs_server URL [LACKS...]: the transport contract on http_transport and a running OJS server, in queues of their own.
// LACKS: what the server does not do, so that it is left out: order, nul, checkpoints, holder, lost-runs. A server that
// wants a token finds it in OJS_AUTH_TOKEN. Prints a line for each case, and last "N passed, N failed, N skipped".
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "contract/http_subject.hpp"
#include "transport_contract.hpp"

namespace {
class server_subject : public transport_contract::http_subject {
  public:
    server_subject(const std::string& url, const char* token, const std::set<std::string>& lacks)
        : http_subject(url, url, token == nullptr ? "" : token) {
        can_.lease = std::chrono::seconds(2);
        can_.first_in_first_out = lacks.count("order") == 0;
        can_.holds_nul = lacks.count("nul") == 0;
        can_.passes_checkpoints = lacks.count("checkpoints") == 0;
        can_.knows_holder = lacks.count("holder") == 0;
        can_.counts_lost_runs = lacks.count("lost-runs") == 0;
    }
};
}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) return std::fputs("usage: ojs_server URL [LACKS...]\n", stderr), 64;
    int passed = 0, failed = 0, skipped = 0;
    try {
        server_subject on(argv[1], std::getenv("OJS_AUTH_TOKEN"), std::set<std::string>(argv + 2, argv + argc));
        for (const transport_contract::contract_case& each : transport_contract::cases()) {
            // Such a server accepts the report of whoever it comes from.
            const bool applies = on.can().knows_holder || each.body != transport_contract::lease_expired;
            const auto got = applies ? transport_contract::run(each, on) : transport_contract::verdict{{}, "holder", 0};
            const bool is_left_out = got.broken.empty() && !got.left_out.empty();
            ++(!got.broken.empty() ? failed : is_left_out ? skipped : passed);
            std::printf("%s  %s\n", !got.broken.empty() ? "FAILED" : is_left_out ? "skipped" : "passed ", each.name);
            for (const std::string& what : got.broken) std::printf("         %s\n", what.c_str());
            std::fflush(stdout);
        }
    } catch (const std::exception& why) {
        return std::fprintf(stderr, "error: %s\n", why.what()), 1;
    }
    std::printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed == 0 ? 0 : 1;
}
