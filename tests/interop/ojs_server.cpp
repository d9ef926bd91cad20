// ojs_server URL [LACKS...]: the transport contract on http_transport and a running OJS server, in queues of their own.
// LACKS: what the server does not do, so that it is left out: order, nul, checkpoints, holder, lost-runs. A server that
// wants a token finds it in OJS_AUTH_TOKEN. Prints a line for each case, and last "N passed, N failed, N skipped".
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "contract/lone_worker.hpp"
#include "transport_contract.hpp"

namespace {
using transport_contract::job_state;
using transport_contract::new_job;
using transport_contract::traits;

class server_subject : public transport_contract::subject {
  public:
    server_subject(std::string url, const std::set<std::string>& lacks) : url_(std::move(url)), client_(open("push")) {
        can_.requeue_spares_attempt = can_.jobs_outlive_worker = true;
        can_.largest_args = 200 * 1024;
        can_.lease = std::chrono::seconds(2);
        can_.first_in_first_out = lacks.count("order") == 0;
        can_.holds_nul = lacks.count("nul") == 0;
        can_.passes_checkpoints = lacks.count("checkpoints") == 0;
        can_.knows_holder = lacks.count("holder") == 0;
        can_.counts_lost_runs = lacks.count("lost-runs") == 0;
    }

    traits can() const override { return can_; }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& as) override {
        return transport_contract::share(ojs::result<ojs::transport_ref>(ojs::make_http_transport(open(as.worker_id))));
    }
    std::string push(const new_job& what) override {
        return ask("POST", "/ojs/v1/jobs",
                   R"({"type":")" + what.type + R"(","args":)" + what.args_json + R"(,"options":{"queue":")" +
                       what.queue + R"(","retry":{"initial_interval":"PT1S","max_attempts":)" +
                       std::to_string(what.max_attempts) + "}}}",
                   "id");
    }
    job_state state_of(const std::string& id) override {
        const std::string state = ask("GET", "/ojs/v1/jobs/" + id, "", "state");
        if (state == "active") return job_state::running;
        if (state == "completed") return job_state::completed;
        return state == "discarded" ? job_state::discarded : job_state::waiting;
    }

  private:
    ojs::http_client open(const std::string& worker_id) const {
        ojs::http_client_options options;
        options.headers.push_back({"X-OJS-Worker-ID", worker_id});
        const char* const token = std::getenv("OJS_AUTH_TOKEN");
        if (token != nullptr) options.bearer_token = token;
        auto client = ojs::make_backend_client(url_, std::move(options));
        if (!client) throw std::runtime_error(client.error().text);
        return std::move(*client);
    }
    // That member of the job in the response.
    std::string ask(const char* method, const std::string& target, const std::string& body, const char* member) {
        ojs::http_request request;
        request.method = method;
        request.target = target;
        request.body = body;
        const auto got = client_.send(request, {transport_contract::soon()});
        if (!got) throw std::runtime_error(got.error().text);
        const ojs::json_view all(got->body);
        const ojs::json_view job = all.member("job").type() == ojs::json_type::object ? all.member("job") : all;
        const auto found = job.member(member).string();
        if (!found) throw std::runtime_error(target + " is answered " + std::to_string(got->status) + ": " + got->body);
        return *found;
    }

    const std::string url_;
    ojs::http_client client_;
    traits can_;
};
}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) return std::fputs("usage: ojs_server URL [LACKS...]\n", stderr), 64;
    int passed = 0, failed = 0, skipped = 0;
    try {
        server_subject on(argv[1], std::set<std::string>(argv + 2, argv + argc));
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
