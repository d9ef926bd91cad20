// Jobs of types that no handler is registered for.
#include <atomic>
#include <string>
#include <vector>

#include "recorder.hpp"
#include "text.hpp"

using namespace ojs;
using namespace std::chrono_literals;
using recorder::make_job;

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
    recorder::counter claim_count;
};

void count_warnings(worker_options& options, recorder::counter& warnings) {
    options.log.level = log_level::warn;
    options.log.hook = [&](const log_record& record) {
        if (test::holds(std::string(record.message), "no handler for this job type")) warnings.add();
    };
}

recorder::call settled_with(unknown_type_action action) {
    recorder::transport wire;
    wire.give(make_job("u", "no.such"));
    worker_options options = recorder::options();
    options.unknown_type = action;
    worker worker(options, wire);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fail", 1));
    REQUIRE(worker.stop(recorder::guard));
    CHECK(worker.report().requeued == (action == unknown_type_action::requeue ? 1 : 0));
    CHECK(worker.report().failed == (action == unknown_type_action::requeue ? 0 : 1));
    return wire.settlements("u").at(0);
}

}  // namespace

TEST_CASE("unknown type: requeued, failed or discarded, as the options say") {
    const recorder::call requeued = settled_with(unknown_type_action::requeue);
    CHECK(requeued.error.code == "unsupported");
    CHECK(requeued.error.retryable);
    CHECK(requeued.requeue);
    const recorder::call failed = settled_with(unknown_type_action::fail);
    CHECK(failed.error.code == "unsupported");
    CHECK(failed.error.retryable);
    CHECK_FALSE(failed.requeue);
    const recorder::call discarded = settled_with(unknown_type_action::discard);
    CHECK_FALSE(discarded.error.retryable);
    CHECK_FALSE(discarded.requeue);
}

TEST_CASE("unknown type: a lone worker does not spin, runs known types, and hands back at once in a drain") {
    insistent wire;
    wire.give(make_job("good"));
    worker_options options = recorder::options();  // one slot
    recorder::counter warnings;
    count_warnings(options, warnings);
    worker worker(options, wire);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("ack", 1));  // though "u" always comes first
    REQUIRE(wire.claim_count.wait_for(5));
    REQUIRE(worker.stop(recorder::guard));
    const std::vector<recorder::call> reports = wire.settlements("u");
    REQUIRE(reports.size() == 5);
    for (std::size_t i = 0; i < 4; ++i) {
        CHECK(reports[i].error.code == "unsupported");
        CHECK(reports[i].at - wire.claim(i) >= 100ms * (1 << i));
    }
    CHECK(reports[4].requeue);
    CHECK(reports[4].error.code == "ShutdownError");  // as any job that never started
    CHECK(reports[4].at - wire.claim(4) < 1600ms);
    CHECK(warnings.count() == 1);
    CHECK(worker.report().requeued == 5);
    CHECK(worker.exit_code() == 0);
}

TEST_CASE("unknown type: at most 100 are claimed in addition to the slots") {
    constexpr std::size_t jobs = 150;
    recorder::transport wire;
    std::atomic<int> claimed{0};
    std::atomic<int> max_claimed{0};
    wire.on.fetched = [&](std::size_t taken) {
        const int now = claimed += static_cast<int>(taken);
        if (now > max_claimed) max_claimed = now;
    };
    wire.on.fail = [&](const fail_request&, time_point) -> recorder::transport::settling {
        --claimed;
        return settled::accepted;
    };
    for (std::size_t i = 0; i < jobs; ++i) wire.give(make_job("u" + std::to_string(i), "no.such"));
    worker worker(recorder::options(2), wire);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fail", jobs));
    REQUIRE(worker.stop(recorder::guard));
    CHECK(max_claimed <= 102);
    CHECK(worker.report().requeued == jobs);
}

TEST_CASE("unknown type: only the first 64 are remembered and logged") {
    recorder::transport wire;
    for (int i = 0; i < 100; ++i) wire.give(make_job("u" + std::to_string(i), "type " + std::to_string(i)));
    worker_options options = recorder::options(100);
    recorder::counter warnings;
    count_warnings(options, warnings);
    worker worker(options, wire);
    worker.register_handler("work", [](job_context&) {});
    REQUIRE(worker.start());
    REQUIRE(wire.wait_for("fail", 100));
    REQUIRE(worker.stop(recorder::guard));
    CHECK(warnings.count() == 64);
}
