// Jobs of types that no handler is registered for.

#include "recorder.hpp"
#include "text.hpp"

using namespace ojs;
using namespace recorder;

namespace {

// A backend that returns job "u" of an unknown type first, whenever it is not claimed.
struct insistent : recorder::transport {
    insistent() {
        on.fail = [this](const fail_request& request, time_point) -> settling {
            if (request.job_id == "u") claimed = false;
            return settled::accepted;
        };
    }
    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        if (claimed.exchange(true)) return recorder::transport::fetch(request, deadline);
        {
            const std::lock_guard<std::mutex> held(mutex);
            claims.push_back(steady_clock::now());
        }
        claim_count.add();
        return std::vector<job>{make_job("u", "no.such")};
    }
    time_point claim(std::size_t number) {
        const std::lock_guard<std::mutex> held(mutex);
        return claims.at(number);
    }
    std::atomic<bool> claimed{false};
    std::mutex mutex;
    std::vector<time_point> claims;
    counter claim_count;
};

const char* const no_handler = "warn no handler for this job type";

}  // namespace

TEST_CASE("unknown type: requeued, failed or discarded, as the options say") {
    struct row {
        unknown_type_action action;
        const char* report;
        const char* expected;
    };
    const row rows[] = {
        {unknown_type_action::requeue, "fail unsupported requeue", "claimed 1 requeued 1 exit 0"},
        {unknown_type_action::fail, "fail unsupported", "claimed 1 failed 1 exit 0"},
        {unknown_type_action::discard, "fail unsupported final", "claimed 1 failed 1 exit 0"}};
    for (const row& each : rows) {
        recorder::transport wire;
        wire.give(make_job("u", "no.such"));
        worker_options options = recorder::options();
        options.unknown_type = each.action;
        const auto worker = run_until("fail", 1, wire, options, do_nothing);
        CHECK(wire.settled("u") == each.report);
        CHECK(sums(*worker) == each.expected);
    }
}

TEST_CASE("unknown type: a lone worker does not spin, runs known types, and hands back at once in a drain") {
    insistent wire;
    wire.give(make_job("good"));
    worker_options options = recorder::options();  // one slot
    const kept_log log(options, log_level::warn);
    const auto worker = start_worker(wire, options, do_nothing);
    REQUIRE(wire.wait_for("ack", 1));  // though "u" always comes first
    REQUIRE(wire.claim_count.wait_for(4));
    REQUIRE(worker->stop(guard));
    const std::vector<call> reports = wire.settlements("u");
    REQUIRE(reports.size() == 4);
    for (std::size_t i = 0; i < 3; ++i) {
        CHECK(reports[i].error.code == "unsupported");
        CHECK(reports[i].at - wire.claim(i) >= 100ms * (1 << i));
    }
    CHECK(reports[3].requeue);
    CHECK(reports[3].error.code == "ShutdownError");  // as any job that never started
    CHECK(reports[3].at - wire.claim(3) < 800ms);
    CHECK(log.count(no_handler) == 1);
    CHECK(worker->report().requeued == 4);
    CHECK(worker->exit_code() == 0);
}

TEST_CASE("unknown type: at most 100 are claimed in addition to the slots") {
    constexpr std::size_t jobs = 150;
    recorder::transport wire;
    counter claimed;
    wire.on.fetched = [&](std::size_t taken) { claimed.add(static_cast<int>(taken)); };
    wire.on.fail = [&](const fail_request&, time_point) -> recorder::transport::settling {
        claimed.add(-1);
        return settled::accepted;
    };
    for (std::size_t i = 0; i < jobs; ++i) wire.give(make_job("u" + std::to_string(i), "no.such"));
    const auto worker = run_until("fail", jobs, wire, recorder::options(2), do_nothing);
    CHECK(claimed.highest() <= 102);
    CHECK(worker->report().requeued == jobs);
}

TEST_CASE("unknown type: only the first 64 are remembered and logged") {
    recorder::transport wire;
    for (int i = 0; i < 100; ++i) wire.give(make_job("u" + std::to_string(i), "type " + std::to_string(i)));
    worker_options options = recorder::options(100);
    const kept_log log(options, log_level::warn);
    run_until("fail", 100, wire, options, do_nothing);
    CHECK(log.count(no_handler) == 64);
}
