// Interruptions that are not the plain drain: a job's own timeout, stuck jobs, the termination mode, River's stages.
#include "busy_worker.hpp"

using namespace recorder;

namespace {
job with_timeout(std::chrono::milliseconds timeout, const std::string& id = "a") {
    job out = make_job(id);
    out.timeout = timeout;
    return out;
}
}  // namespace

// [Timeouts 7.2]
TEST_CASE("timeout: a handler that returns nothing after its timeout fails the job, which uses up an attempt") {
    worker_options options = recorder::options();
    const kept_log log(options);
    const auto why = std::make_shared<std::atomic<cancel_reason>>(cancel_reason::none);
    busy_worker busy(options, with_timeout(5ms), [why](job_context& job) {
        until_cancelled(job);
        *why = job.token().reason();
        CHECK_FALSE(job.stop_requested());
    });
    REQUIRE(busy.wire.wait_for("fail", 1));
    CHECK(*why == cancel_reason::timeout);
    CHECK(busy.settled() == "fail timeout");
    CHECK(busy.detail("reason") == "timeout");
    CHECK(busy.detail("timeout_ms") == "5");
    CHECK(log.wait_for("warn job cancelled: its timeout is over"));
    REQUIRE(busy.body->stop(guard));
    CHECK(sums(*busy.body) == "claimed 1 failed 1 exit 0");
    CHECK(log.count("warn job is stuck") == 0);  // it returned in time
}

TEST_CASE("revocation: a job that the backend cancels is cancelled in the worker and fails without a retry") {
    worker_options options = recorder::options();
    const kept_log log(options);
    const auto why = std::make_shared<std::atomic<cancel_reason>>(cancel_reason::none);
    const shared_event listens = make_event();
    const shared_event called = make_event();
    busy_worker busy(options, [why, listens, called](job_context& job) {
        const cancel_registration kept = job.on_cancel([called] { called->set(); });
        listens->set();
        until_cancelled(job);
        REQUIRE(called->wait());
        *why = job.token().reason();
    });
    REQUIRE(listens->wait());
    CHECK(busy.wire.revoke("of somebody else"));
    CHECK(busy.wire.revoke("a"));
    CHECK(busy.wire.revoke("a"));  // harmless to repeat
    REQUIRE(busy.wire.wait_for("fail", 1));
    CHECK(*why == cancel_reason::revoked);
    CHECK(busy.settled() == "fail cancelled final");
    CHECK(busy.detail("reason") == "revoked");
    CHECK(log.wait_for("info job cancelled by its backend"));
    CHECK(log.wait_for("info job failed"));  // nobody's fault
    REQUIRE(busy.body->stop(guard));
    CHECK(busy.body->report().failed == 1);
    CHECK_FALSE(busy.wire.revoke("a"));  // no callback is called
}

// [Timeouts 5.4]
TEST_CASE("timeout: after a timeout or revocation a result is an ACK, and any other outcome a FAIL with the reason") {
    for (const bool revoked : {true, false}) {
        busy_worker busy(recorder::options(), with_timeout(revoked ? 1h : 5ms), [](job_context& job) {
            until_cancelled(job);
            return outcome::done("1");
        });
        if (revoked) busy.wire.revoke("a");
        REQUIRE(busy.wire.wait_for("ack", 1));
    }
    SUBCASE("an exception after the callback ran") {
        const shared_event heard = make_event();
        busy_worker busy(recorder::options(), with_timeout(5ms), [heard](job_context& job) -> outcome {
            const cancel_registration kept = job.on_cancel([heard] { heard->set(); });
            CHECK(heard->wait());
            throw std::runtime_error("gave up");
        });
        REQUIRE(busy.wire.wait_for("fail", 1));
        CHECK(busy.settled() == "fail timeout");
        CHECK(busy.settlement().error.message.find("gave up") != std::string::npos);
    }
}

namespace {
worker_options for_stuck(std::int64_t concurrency) {
    worker_options out = recorder::options(concurrency);
    out.stuck_after = 10ms;
    out.poll_interval = 10ms;
    out.heartbeat_interval = 10ms;
    return out;
}

// A worker whose job "a" is deaf to its cancellation until `let_go`, and whose jobs of type "other" can be given later.
struct deaf_worker {
    deaf_worker(worker_options options, std::function<void(job_context&)> other)
        : log(options), body(std::move(options), wire) {
        body.register_handler("work", [this](job_context&) {
            thread_local const counts_at_end at_end(ended);
            static_cast<void>(let_go->wait());
        });
        body.register_handler("other", std::move(other));
        wire.give(with_timeout(1ms));
        REQUIRE(body.start());
    }
    const shared_event let_go = make_event();
    const std::shared_ptr<counter> ended = std::make_shared<counter>();  // the handler's thread
    recorder::transport wire;
    const kept_log log;
    worker body;
};
}  // namespace

// [River diagnose]
TEST_CASE("stuck: a job that ignores its timeout fails after stuck_after, and occupies its slot until it returns") {
    worker_options options = for_stuck(2);
    deaf_worker deaf(options, do_nothing);
    REQUIRE(deaf.wire.wait_for("fail", 1));
    REQUIRE(deaf.log.wait_for("warn job is stuck"));
    const auto await = [&](const char* what) {  // the next that begins from now on; one may be in flight
        REQUIRE(deaf.wire.wait_for(what, deaf.wire.calls(what).size() + 2));
        return deaf.wire.calls(what).back();
    };
    CHECK(await("fetch").count == 1);
    deaf.wire.give(make_job("b", "other"));
    REQUIRE(deaf.wire.wait_for("ack", 1));
    REQUIRE(deaf.log.wait_for("debug job completed"));  // else a heartbeat lists it
    CHECK(await("beat").active.empty());                // nobody renews the lease of the failed one
    CHECK(deaf.wire.settled("a") == "fail timeout");
    CHECK(deaf.body.report().stuck == std::vector<std::string>{"a"});
    deaf.let_go->set();
    CHECK(test::eventually([&] { return deaf.wire.calls("fetch").back().count == 2; }));
    REQUIRE(deaf.body.stop(guard));
    CHECK(deaf.wire.settlements("a").size() == 1);  // the late result is dropped
    CHECK(sums(deaf.body) == "claimed 2 completed 1 failed 1 exit 0");
    CHECK(deaf.log.count("warn job is stuck") == 1);
}

TEST_CASE("timeout: a stop reports a job past its timeout as timed out, even if its handler has not returned") {
    worker_options options = recorder::options();
    options.stuck_after = 1h;
    options.times.shutdown_grace_period = 0ms;
    deaf_worker deaf(options, do_nothing);
    REQUIRE(deaf.log.wait_for("warn job cancelled: its timeout is over"));
    deaf.body.request_stop();
    REQUIRE(deaf.body.wait(deadline_after(guard)));
    CHECK(deaf.wire.settled("a") == "fail timeout");
    CHECK(deaf.log.count("warn handlers have not returned") == 1);
    deaf.let_go->set();
    CHECK(deaf.ended->wait_for(1));
}

TEST_CASE("stuck: a job cancelled by the stop alone is logged once after stuck_after, and does not fail") {
    worker_options options = patient();
    options.stuck_after = 10ms;
    const kept_log log(options);
    const shared_event let_go = make_event();
    busy_worker busy(options, [let_go](job_context&) {
        CHECK(let_go->wait());
        return outcome::done("1");
    });
    busy.body->request_stop_and_cancel();
    REQUIRE(log.wait_for("warn job is stuck"));
    for (std::size_t i = 1; i <= 2; ++i) {  // the worker looks at its jobs again
        busy.life.apply(ojs::event::report_request, {});
        REQUIRE(test::eventually([&] { return log.count("info jobs in flight") == i; }));
    }
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(busy.settled() == "ack");
    CHECK(sums(*busy.body) == "claimed 1 completed 1 exit 0");
    CHECK(log.count("warn job is stuck") == 1);
}

TEST_CASE("stuck: all handlers are stuck -> the worker drains and exits with 75") {
    deaf_worker deaf(for_stuck(1), do_nothing);
    REQUIRE(deaf.body.wait(deadline_after(guard)));
    CHECK(deaf.log.count("error handlers are stuck; the worker stops") == 1);
    CHECK(sums(deaf.body) == "claimed 1 failed 1 stuck a exit 75");
    CHECK(deaf.body.stop(guard));
    deaf.let_go->set();
    CHECK(deaf.ended->wait_for(1));  // else its last record might be in another test's output
}

TEST_CASE("on_cancel: callbacks that block do not delay the callback of another job") {
    recorder::transport wire;
    for (const char* id : {"slow 1", "quick", "slow 2"}) wire.give(make_job(id));  // any order meets a slow one
    counter registered;
    recorder::event called;
    worker_options options = patient(3);
    const auto worker = start_worker(wire, options, [&](job_context& job) {
        const bool is_slow = job.id() != "quick";
        const cancel_registration kept =
            job.on_cancel([&, is_slow] { is_slow ? static_cast<void>(CHECK(called.wait())) : called.set(); });
        registered.add();
        until_cancelled(job);
        CHECK(called.wait());
    });
    REQUIRE(registered.wait_for(3));
    worker->request_stop_and_cancel();
    CHECK(called.wait());
    CHECK(worker->wait(deadline_after(guard)));
    CHECK(worker->report().interrupted == 3);
}

TEST_CASE("cancel_before_deadline: jobs are cancelled before the grace period ends, and can still return a result") {
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 1h;
    options.times.cancel_before_deadline = 1h - 5ms;
    busy_worker busy(options, [](job_context& job) {
        until_cancelled(job);
        CHECK(job.token().reason() == cancel_reason::grace_period_expired);
        return outcome::done("\"saved\"");
    });
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(busy.settlement().result_json == "\"saved\"");
}
