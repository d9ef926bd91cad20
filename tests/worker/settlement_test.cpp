#include "busy_worker.hpp"

using namespace ojs;
using namespace recorder;

TEST_CASE("settlement: an ACK or FETCH is not repeated before its Retry-After is over") {
    recorder::transport wire;
    error later{errc::unavailable, 0, "later"};
    later.retry_after = 300ms;
    for (const char* what : {"fetch", "ack"}) wire.refuse(what, 1, later);
    wire.give(make_job("a"));
    run_until("fetch", 3, wire, do_nothing);
    for (const char* what : {"fetch", "ack"}) {
        const std::vector<call> tries = wire.calls(what);
        REQUIRE(tries.size() >= 2);
        CHECK(tries[1].at - tries[0].at >= 300ms);
    }
}

TEST_CASE("settlement: a drain shortens a Retry-After to one try at its start and one before its end") {
    recorder::transport wire;
    wire.give(make_job("a"));
    error later{errc::unavailable, 0, "later"};
    later.retry_after = std::chrono::milliseconds::max();
    wire.refuse("ack", 2, later);
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 1s;
    const auto worker = start_worker(wire, options, do_nothing);
    REQUIRE(wire.wait_for("ack", 1));
    const time_point asked = steady_clock::now();
    REQUIRE(worker->stop(guard));
    const std::vector<call> tries = wire.calls("ack");
    REQUIRE(tries.size() == 3);
    CHECK(tries[1].at >= asked);
    CHECK(tries[2].at < asked + 1s);  // in the drain, when half of it was left
    CHECK(sums(*worker) == "claimed 1 completed 1 exit 0");
}

TEST_CASE("settlement: five refusals and one `unavailable` -> the report is sent again, with its result") {
    recorder::transport wire;
    wire.refuse("ack", 1, {errc::unavailable, 0, "later"});
    wire.refuse("ack", 5, {errc::rejected, 0, "no"});
    wire.give(make_job("a"));
    const auto worker = run_until("fetch", 2, wire, recorder::options(), [](job_context&) { return "\"result\""; });
    CHECK(wire.settlements("a").back().result_json == "\"result\"");
    CHECK(sums(*worker) == "claimed 1 completed 1 exit 0");
}

TEST_CASE("settlement: a report refused at the end of the stop is sent once more without its payload") {
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 0ms;
    options.times.stop_timeout = 300ms;  // less than the pause after a refusal may take
    recorder::event saved;
    busy_worker busy(options, [&](job_context& job) {
        CHECK(job.save_checkpoint("1"));
        saved.set();
        return until_cancelled(job);
    });
    busy.wire.on.fail = [&](const fail_request& request, time_point) -> result<settle_result> {
        if (request.checkpoint_json.empty()) return settle_result::accepted;
        return error{errc::rejected, 0, "too large"};
    };
    REQUIRE(saved.wait());
    REQUIRE(busy.body->stop(guard));
    CHECK(busy.body->exit_code() == 0);
}

// [River blocking]
TEST_CASE("settlement: a report is refused six times -> its slot is free, the job is unreported, and the status 75") {
    recorder::transport wire;
    wire.refuse("ack", 99, {errc::rejected, 0, "no"});
    wire.refuse("fail", 99, {errc::rejected, 0, "no"});
    wire.give(make_job("with-result"));
    wire.give(make_job("without"));
    wire.give(make_job("unknown", "no such type"));
    worker_options options = recorder::options(3);
    const kept_log log(options);
    const auto worker =
        start_worker(wire, options, [](job_context& job) { return std::string(job.id() == "without" ? "" : "[1]"); });
    REQUIRE(wire.wait_for("ack", 13));
    REQUIRE(wire.wait_for("fail", 6));
    REQUIRE(worker->stop(guard));
    const std::vector<call> tries = wire.settlements("with-result");
    REQUIRE(tries.size() == 7);
    CHECK(tries[5].result_json == "[1]");
    CHECK(tries[6].result_json.empty());  // which may be what is refused
    CHECK(wire.settlements("without").size() == 6);
    CHECK(wire.settlements("unknown").size() == 6);
    CHECK(worker->report().unreported.size() == 3);
    CHECK(worker->exit_code() == 75);
    std::string delays;
    for (const log_record& each : log.records("warn cannot report a completed job")) {
        if (value_of(each, "job_id") == "with-result") delays += value_of(each, "retry_in_ms") == "0" ? "0" : "+";
    }
    CHECK(delays == "+++++0");  // the one without the result is sent at once
    std::vector<std::string> logged;
    for (const log_record& each : log.records("error job could not be reported"))
        logged.push_back(value_of(each, "job_id") + " " + value_of(each, "handler") + ": " + value_of(each, "error"));
    std::sort(logged.begin(), logged.end());
    CHECK(logged ==
          std::vector<std::string>{"unknown not started: no", "with-result completed: no", "without completed: no"});
    check_last_word(wire);
}

TEST_CASE("settlement: a stop ends before an ACK or FAIL in flight does, and nothing is sent after the stop") {
    for (const char* type : {"work", "nobody's"}) {  // the latter is reported outside of handlers
        recorder::transport wire;
        recorder::event let_go, judged;
        std::atomic<bool> would_be_sent{true};
        const auto hang = [&](const auto& request, time_point) {
            CHECK(let_go.wait());
            would_be_sent = request.should_send();
            judged.set();
            return recorder::transport::settling(error{errc::timed_out, 0, "no answer"});
        };
        wire.on.ack = hang;
        wire.on.fail = hang;
        wire.give(make_job("a", type));
        worker_options options = recorder::options();
        options.times.stop_timeout = 500ms;
        options.times.shutdown_grace_period = 0ms;
        const kept_log log(options, log_level::error);
        const auto worker = start_worker(wire, options, do_nothing);
        REQUIRE(wire.wait_for(std::string(type) == "work" ? "ack" : "fail", 1));
        REQUIRE(worker->stop(guard));
        CHECK(worker->report().unreported == std::vector<std::string>{"a"});
        CHECK(value_of(log.records("error job could not be reported before stop_timeout ended").at(0), "handler") ==
              (std::string(type) == "work" ? "completed" : "not started"));
        CHECK(worker->exit_code() == exit_status::unreported);
        CHECK(wire.settlements("a").size() == 1);
        let_go.set();
        REQUIRE(judged.wait());
        CHECK_FALSE(would_be_sent);
    }
}

TEST_CASE("settlement: a try in the stop takes at most half of stop_timeout, so that another try can follow") {
    std::vector<std::chrono::milliseconds> given;
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 0ms;
    busy_worker busy(options, until_cancelled);
    busy.wire.on.fail = [&](const fail_request&, time_point deadline) {
        given.push_back(std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now()));
        if (given.size() == 1) return recorder::transport::settling(error{errc::timed_out, 0, "lost"});
        return recorder::transport::settling(settle_result::gone);  // the first one did arrive
    };
    REQUIRE(busy.body->stop(guard));
    REQUIRE(given.size() == 2);
    CHECK(given[0] <= 2500ms);  // half of the 5 s, where a request may otherwise take 20 s
    CHECK(given[1] <= 2500ms);
    CHECK(busy.body->report().gone == 1);
    CHECK(busy.body->exit_code() == 0);
}

// [GS 7.1 (b)] [WP 4.6 (c)] [WP 5.6] [WP 10.4 (a)]
TEST_CASE("settlement: after its lease a job is ACKed only if a heartbeat renews it, and never FAILed") {
    constexpr auto lease = 2s;
    recorder::transport wire;
    std::atomic<int> over{0};
    std::atomic<int> refused{0};
    wire.on.beat = [&](const heartbeat_request&) -> result<heartbeat_response> {
        if (over < 3 || ++refused <= 2) return error{errc::unavailable, 0, "no", 503};
        heartbeat_response out;
        out.jobs_extended = {"renewed"};
        return out;
    };
    for (const char* id : {"renewed", "omitted", "failed"}) {
        job given = make_job(id);
        given.visibility_timeout = lease;
        wire.give(given);
    }
    const auto worker = start_worker(wire, recorder::options(3), [&](job_context& job) {
        std::this_thread::sleep_for(lease);  // it is the passing of time that is meant
        ++over;
        return job.id() == "failed" ? outcome::retry("again") : outcome::done();
    });
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(worker->stop(guard));
    CHECK(sums(*worker) == "claimed 3 completed 1 gone 2 exit 0");
    CHECK(wire.settled("renewed") == "ack");
    CHECK(wire.settlements("omitted").empty());
    CHECK(wire.settlements("failed").empty());
}

TEST_CASE("settlement: a job whose lease ends before its handler starts is neither run nor reported") {
    recorder::transport wire;
    job given = make_job("a");
    given.visibility_timeout = 20ms;
    wire.give(given);
    wire.on.fetched = [](std::size_t jobs) {
        if (jobs > 0) std::this_thread::sleep_for(30ms);  // the response comes after the lease
    };
    wire.on.beat = [](const heartbeat_request&) { return heartbeat_response(); };  // renews nothing
    bool runs = false;
    const auto worker = run_until("fetch", 2, wire, [&](job_context&) { runs = true; });
    CHECK_FALSE(runs);
    CHECK(sums(*worker) == "claimed 1 gone 1 exit 0");
    CHECK(wire.settlements("a").empty());
}

TEST_CASE("settlement: a job claimed again during its FAIL -> the FAIL is not repeated, and the new claim runs") {
    recorder::transport wire;
    worker_options options = recorder::options(2);
    options.poll_interval = 1ms;
    counter runs;
    wire.on.fail = [&](const fail_request& request, time_point) -> result<settle_result> {
        job again = make_job("a");
        again.attempt = 2;
        wire.give(again);
        CHECK(runs.wait_for(2));
        CHECK(!request.should_send());
        return error{errc::disconnected, 0, "it was carried out; the response is lost"};
    };
    wire.give(make_job("a"));
    const auto worker = run_until("ack", 1, wire, options, [&](job_context& job) {
        runs.add();
        return job.attempt() == 1 ? outcome::retry("once more") : outcome::done("1");
    });
    CHECK(wire.calls("fail").size() == 1);
    CHECK(sums(*worker) == "claimed 2 completed 1 gone 1 exit 0");
}

TEST_CASE("settlement: exceptions of the transport end no thread, and every job is settled") {
    recorder::transport wire;
    std::atomic<int> left[4] = {{1}, {2}, {2}, {1}};
    const auto maybe = [&left](int which) {
        if (left[which].fetch_sub(1) > 0) throw std::runtime_error("from the transport");
    };
    wire.on.fetch = [&](std::size_t) { maybe(0); };
    wire.on.ack = [&](const ack_request&, time_point) {
        return maybe(1), result<settle_result>(settle_result::accepted);
    };
    wire.on.fail = [&](const fail_request&, time_point) {
        return maybe(2), result<settle_result>(settle_result::accepted);
    };
    wire.on.beat = [&](const heartbeat_request&) { return maybe(3), heartbeat_response(); };
    wire.give(make_job("a"));
    wire.give(make_job("b", "unknown"));
    const auto worker = start_worker(wire, recorder::options(2), do_nothing);
    REQUIRE(wire.wait_for("ack", 3));
    REQUIRE(wire.wait_for("fail", 3));
    REQUIRE(worker->stop(guard));
    CHECK(sums(*worker) == "claimed 2 completed 1 requeued 1 exit 0");
    for (const std::atomic<int>& each : left) CHECK(each.load() <= 0);
    check_last_word(wire);
}
