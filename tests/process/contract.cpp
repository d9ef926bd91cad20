// http_transport and dev_backend put through what every transport must do.
#include "contract/doctest.hpp"
#include "contract/lone_worker.hpp"
#include "contract/relay.hpp"
#include "harness.hpp"

namespace {
using transport_contract::job_state;
using transport_contract::new_job;
using transport_contract::traits;

class http_subject : public transport_contract::subject {
  public:
    traits can() const override {
        traits out;
        out.first_in_first_out = out.requeue_spares_attempt = out.knows_holder = true;
        out.jobs_outlive_worker = out.counts_lost_runs = out.passes_checkpoints = true;
        out.largest_args = 200 * 1024;
        out.keeps_args_text = out.holds_nul = true;  // not any_type: dev_backend refuses others
        out.lease = milliseconds(300);
        return out;
    }
    std::shared_ptr<ojs::transport> connect(const ojs::worker_identity& as) override {
        ojs::http_client_options options;
        options.headers.push_back({"X-OJS-Worker-ID", as.worker_id});
        const std::string url = "http://127.0.0.1:" + std::to_string(relay_.port());
        auto client = ojs::make_backend_client(url, std::move(options));
        if (!client) throw std::runtime_error(client.error().text);
        return transport_contract::share(ojs::result<ojs::transport_ref>(ojs::make_http_transport(std::move(*client))));
    }
    std::string push(const new_job& what) override {
        const std::string more =
            ",\"queue\":\"" + what.queue + "\",\"retry\":{\"max_attempts\":" + std::to_string(what.max_attempts) + "}";
        return backend_.push(what.type, what.args_json, 1, more).front();
    }
    job_state state_of(const std::string& id) override {
        const std::string state = backend_.state_of(id);
        if (state == "active") return job_state::running;
        if (state == "completed") return job_state::completed;
        return state == "discarded" ? job_state::discarded : job_state::waiting;
    }
    bool freeze() override {
        backend_.self().freeze();
        return true;
    }
    void thaw() override { backend_.self().signal(SIGCONT); }
    bool lose_answers(int count) override {
        relay_.lose(count);
        return true;
    }

  private:
    backend backend_{{"--dead-after", "1h", "--retry-delay", "0s", "--quiet"}};
    transport_contract::relay relay_{backend_.port()};
};
}  // namespace

TEST_CASE("http_transport: all contract checks pass on dev_backend, except the one for on_work_available") {
    const auto on = std::make_shared<http_subject>();  // one for all: each starts a process
    const auto left_out = transport_contract::check_all([&] { return on; });
    CHECK(left_out == std::vector<std::string>{"on_work_available is called after a push"});
}
