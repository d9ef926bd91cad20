// http_transport and dev_backend put through what every transport must do.
#include "contract/doctest.hpp"
#include "contract/http_subject.hpp"
#include "contract/relay.hpp"
#include "harness.hpp"

namespace {
struct server {
    backend jobs{{"--dead-after", "1h", "--retry-delay", "0s", "--quiet"}};
    transport_contract::relay lossy{jobs.port()};
};

class dev_subject : server, public transport_contract::http_subject {
  public:
    dev_subject() : http_subject(jobs.url(), "http://127.0.0.1:" + std::to_string(lossy.port())) {
        can_.keeps_args_text = true;  // not any_type: dev_backend refuses others
        can_.lease = milliseconds(300);
    }
    bool freeze() override {
        jobs.self().freeze();
        return true;
    }
    void thaw() override { jobs.self().signal(SIGCONT); }
    bool lose_answers(int count) override {
        lossy.lose(count);
        return true;
    }
};
}  // namespace

TEST_CASE("http_transport: all contract checks pass on dev_backend, except the one for on_work_available") {
    const auto on = std::make_shared<dev_subject>();  // one for all: each starts a process
    const auto left_out = transport_contract::check_all([&] { return on; });
    CHECK(left_out == std::vector<std::string>{"on_work_available is called after a push"});
}
