// What bounds a worker: jobs of a type at a time, jobs in all, time without one; and code around every handler.
#include "recorder.hpp"

using namespace recorder;

namespace {
// Runs until the worker ends by itself.
std::string run_to_end(recorder::transport& wire, worker_options options, function<void(job_context&)> handler) {
    worker one(options, wire);
    one.register_handler("work", std::move(handler));
    REQUIRE(one.start());
    REQUIRE(one.wait(steady_clock::now() + guard));
    return sums(one);
}
}  // namespace

TEST_CASE("max_concurrency: no more jobs of a type run at a time, and jobs of other types run meanwhile") {
    recorder::transport wire;
    for (int i = 0; i < 12; ++i) wire.give(make_job("slow" + std::to_string(i), "slow"));
    wire.give(make_job("quick", "work"));
    worker_options options = recorder::options();
    options.concurrency = 4;
    options.max_jobs = 13;
    std::atomic<int> running{0}, most{0}, ended{0}, before_quick{-1};
    recorder::event quick;
    worker one(options, wire);
    const auto slow = [&](job_context&) {
        most = std::max(most.load(), ++running);
        CHECK(quick.wait());
        --running;
        ++ended;
    };
    one.register_handler("slow", slow, {false, 2});
    one.register_handler("work", [&](job_context&) {
        before_quick = ended.load();
        quick.set();
    });
    REQUIRE(one.start());
    REQUIRE(one.wait(steady_clock::now() + guard));
    CHECK(most == 2);
    CHECK(before_quick == 0);
    CHECK(one.report().completed == 13);
    CHECK(one.exit_code() == 0);
}

TEST_CASE("max_concurrency: a waiting job is requeued without an attempt: after the back-off, in a drain, in a quiet") {
    for (const std::string meanwhile : {"", "drain", "quiet"}) {
        CAPTURE(meanwhile);
        recorder::transport wire;
        wire.give(make_job("a", "slow"));
        worker_options options = recorder::options();
        options.concurrency = 2;
        recorder::event begun, quiet;
        worker one(options, wire);
        const auto slow = [&](job_context& job) {
            CHECK(job.id() == "a");
            begun.set();
            if (meanwhile == "quiet" ? !quiet.wait() : job.sleep_for(guard)) FAIL_CHECK("a job waits in vain");
        };
        one.register_handler("slow", slow, {false, 1});
        REQUIRE(one.start());
        REQUIRE(begun.wait());
        wire.give(make_job("b", "slow"));
        if (!meanwhile.empty()) {
            CHECK(test::eventually([&] { return one.report().claimed == 2; }));
            CHECK((meanwhile == "drain" ? one.request_stop() : one.quiet()));
            quiet.set();
        }
        REQUIRE(wire.wait_for("fail", 1));
        const call back = wire.calls("fail").front();
        CHECK(back.id == "b");
        CHECK(holds(back.text(), " requeue"));
        if (meanwhile.empty()) CHECK(back.error.code == "rate_limited");
        one.stop_and_cancel(guard);
    }
}

TEST_CASE("max_jobs: the worker claims and runs at most max_jobs jobs, and then drains") {
    recorder::transport wire;
    for (const char* id : {"a", "b", "c", "d", "e"}) wire.give(make_job(id));
    worker_options options = recorder::options();
    options.concurrency = 2;
    options.max_jobs = 3;
    CHECK(run_to_end(wire, options, [](job_context&) {}) == "claimed 3 completed 3 exit 0");
}

TEST_CASE("exit_when_idle: the worker drains after that time without a job; an outage does not count as idle") {
    recorder::transport wire;
    wire.refuse("fetch", 3, {errc::unreachable, 0, "gone"});
    wire.give(make_job("a"));
    worker_options options = recorder::options();
    options.exit_when_idle = 50ms;
    time_point returned;
    const std::string sum = run_to_end(wire, options, [&](job_context& job) {
        static_cast<void>(job.sleep_for(200ms));
        returned = steady_clock::now();
    });
    CHECK(sum == "claimed 1 completed 1 exit 0");
    CHECK(steady_clock::now() - returned >= 50ms);
}

TEST_CASE("wrap: the first wrapper is outermost; each sees the handler's outcome or exception, and changes neither") {
    std::string order;
    const auto around = [&](const char* name) {
        return [&order, name](job_context& job, const next_handler& next) {
            order += std::string(name) + job.id() + " ";
            try {
                const outcome& got = next();
                order += got.kind == outcome_kind::done ? got.text : std::string("not done");
                order += &next() == &got ? " " : " again ";
            } catch (const std::runtime_error& error) {
                order += std::string(error.what()) + " ";
            }
        };
    };
    recorder::transport wire;
    for (const char* id : {"1", "2", "3", "4"}) wire.give(make_job(id));
    worker_options options = recorder::options();
    options.max_jobs = 4;
    worker one(options, wire);
    one.register_handler("work", [&](job_context& job) -> outcome {
        if (job.id() == "2") throw std::runtime_error("bad");
        return outcome::done("7");
    });
    CHECK(one.wrap(around("outer")));
    CHECK(one.wrap(around("inner")));
    CHECK(one.wrap([](job_context& job, const next_handler& next) {
        if (job.id() == "3") return;
        next();
        if (job.id() == "4") throw std::runtime_error("of the wrapper");
    }));
    REQUIRE(one.start());
    CHECK_FALSE(one.wrap(around("late")));
    CHECK_FALSE(one.wrap(nullptr));
    REQUIRE(one.wait(steady_clock::now() + guard));
    CHECK(order.find("outer1 inner1 7 7 outer2 inner2 bad bad ") == 0);
    CHECK(wire.calls("ack").front().result_json == "7");
    // A wrapper that throws, or does not call next(), counts as a handler that throws.
    for (const char* id : {"2", "3", "4"}) CHECK(wire.settled(id) == "fail handler_error");
}
