// What the log says about failed jobs, failed reports, and outages of the backend.
#include "busy_worker.hpp"

using namespace recorder;

namespace {
// Runs one job whose handler returns `returned`, and returns its record "job failed".
log_record record_of_failure(recorder::transport& wire, const outcome& returned, job given = make_job("a"),
                             worker_options options = recorder::options()) {
    const kept_log log(options);
    wire.give(std::move(given));
    run_until("fetch", 2, wire, options, [&](job_context&) { return returned; });
    for (const log_record& each : log.records()) {
        if (each.message == "job failed") return each;
    }
    FAIL("no record");
    return {};
}

const std::string again = "backend reachable again";
const error unreachable{errc::unreachable, 0, "connection refused"};
const error rejected{errc::rejected, 0, "no"};
}  // namespace

TEST_CASE("job log: an exception of a handler, transport or callback is logged with its text") {
    struct silent : std::exception {
        const char* what() const noexcept override { return nullptr; }
    };
    struct row {
        std::string text;
        void (*raise)();
    };
    for (const row& each : {row{"disk full", [] { throw std::runtime_error("disk full"); }},
                            {"an exception without a text", [] { throw silent(); }},
                            {"an exception that is not a std::exception", [] { throw 1; }}}) {
        CAPTURE(each.text);
        recorder::transport wire;
        wire.on.fetch = [&, thrown = 0](std::size_t) mutable { return thrown++ == 0 ? each.raise() : void(); };
        wire.give(make_job("a"));
        worker_options options = recorder::options();
        const kept_log log(options);
        options.on_transition = [&](const lifecycle_state&) { each.raise(); };
        run_until("fail", 1, wire, options, [&](job_context&) { each.raise(); });
        REQUIRE(log.count("warn job failed") + log.count("error job failed") == 1);
        for (const log_record& line : log.records()) {
            if (line.message == "job failed") CHECK(value_of(line, "error") == each.text);
        }
        // A heartbeat that was answered meanwhile: the backend is reachable.
        const bool is_outage = log.count("warn backend unreachable") > 0;
        const char* const line = is_outage ? "warn backend unreachable" : "warn FETCH failed";
        REQUIRE(log.count(line) == 1);
        CHECK(value_of(log.records(line)[0], "error") == "the transport threw: " + each.text);
        REQUIRE(log.count("error on_transition threw") > 0);
        CHECK(value_of(log.records("error on_transition threw")[0], "error") == each.text);
    }
}

TEST_CASE("job log: a failed job's record has the attempt and up to 1 KiB of the error; the backend gets all") {
    const std::string text(5000, 'x');
    recorder::transport wire;
    job given = make_job("a");
    given.attempt = 3;
    const log_record record = record_of_failure(wire, outcome::retry(text), given);
    CHECK(value_of(record, "error_type") == "handler_error");
    CHECK(value_of(record, "error") == std::string(1024, 'x') + "...");
    CHECK(value_of(record, "attempt") == "3");
    CHECK(wire.settlements("a").at(0).error.message == text);
}

TEST_CASE("job log: an outage that only FETCHes or heartbeats notice, and its end, are logged once") {
    worker_options options = recorder::options();
    options.poll_interval = 1ms;
    const kept_log log(options);
    recorder::transport wire;
    std::string began = "warn backend unreachable";
    SUBCASE("only FETCHes fail") {
        wire.refuse("beat", 100000, rejected);  // neither begins nor ends an outage
        wire.refuse("fetch", 1, unreachable);
        run_until("fetch", 3, wire, options, do_nothing);
    }
    SUBCASE("the backend responds 401") {
        began = "warn backend refuses the token";
        wire.refuse("beat", 100000, rejected);
        wire.refuse("fetch", 3, {errc::unavailable, 0, "connection refused", 401});
        run_until("fetch", 5, wire, options, do_nothing);
        CHECK(log.count("warn FETCH failed") == 0);
    }
    SUBCASE("only heartbeats fail") {
        wire.refuse("fetch", 1000, rejected);
        wire.refuse("beat", 1, unreachable);
        const auto body = start_worker(wire, options, do_nothing);
        REQUIRE(log.wait_for("warn backend unreachable"));  // else the last heartbeat may be answered before
        REQUIRE(body->stop(guard));
    }
    const std::string text = log.text();
    CHECK(text.find(again) != std::string::npos);
    CHECK(text.find(again) == text.rfind(again));
    CHECK(log.count(began) == 1);
    CHECK(value_of(log.records(began).at(0), "error") == "connection refused");
}

TEST_CASE("job log: lost claims and `gone` -> an outage goes on, as neither needs a response of the backend") {
    worker_options options = recorder::options(2);
    const kept_log log(options);
    recorder::transport wire;
    wire.on.fetched = [&, taken = std::size_t{0}](std::size_t count) mutable {
        if ((taken += count) == 2) wire.refuse("fetch", 100000, unreachable);
    };
    wire.on.beat = [beats = 0](const heartbeat_request& request) mutable -> result<heartbeat_response> {
        heartbeat_response out;
        out.jobs_extended = {"b"};
        out.claims_lost = ++beats == 3;
        if (out.claims_lost) out.directive = directive::quiet;
        if (beats == 2) return unreachable;
        if (beats > 3 && !request.is_last) return error{errc::cancelled, 0, "not sent"};
        return out;
    };
    wire.on.ack = [](const ack_request&, time_point) { return settle_result::gone; };
    test::event a_ended;
    wire.give(make_job("a"));
    wire.give(make_job("b"));
    const auto body = start_worker(wire, options, [&](job_context& job) {
        job.extend_lease();
        if (job.id() == "b") return void(CHECK(a_ended.wait()));
        CHECK(log.wait_for("warn backend unreachable"));
        job.extend_lease();
        CHECK(!job.sleep_for(guard));
        a_ended.set();
    });
    REQUIRE(wire.wait_for("ack", 1));
    CHECK(test::eventually([&] { return body->phase() == phase::quiet; }));
    REQUIRE(body->stop(guard));
    CHECK(log.text().find(again) == std::string::npos);
    CHECK(wire.settlements("b").size() == 1);  // not repeated
    CHECK(sums(*body) == "claimed 2 gone 2 exit 0");
}
