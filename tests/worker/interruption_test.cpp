// Interruptions that are not the plain drain: a job's own timeout, stuck jobs, the termination mode, River's stages.
#include "busy_worker.hpp"
#include "files.hpp"

using namespace ojs;
using namespace recorder;

namespace {

job with_timeout(std::chrono::milliseconds timeout, const std::string& id = "a") {
    job out = make_job(id);
    out.timeout = timeout;
    return out;
}

// Also listens for stuck jobs. `jobs` is for reading once the worker has ended.
struct stuck_log : kept_log {
    explicit stuck_log(worker_options& options) : kept_log(options) {
        options.on_stuck_job = [jobs = jobs, calls = calls](const stuck_job& job) {
            jobs->push_back(job);
            calls->add();
            return job.default_action;
        };
    }
    const std::shared_ptr<std::vector<stuck_job>> jobs = std::make_shared<std::vector<stuck_job>>();
    const std::shared_ptr<counter> calls = std::make_shared<counter>();
};

struct mode_file {
    explicit mode_file(const char* text) { std::ofstream(path) << text << "\n"; }
    const test::temporary_folder own;
    const std::string path = own.file("termination-type");
};

}  // namespace

// [Timeouts 7.2]
TEST_CASE(
    "timeout: a handler that returns nothing after its timeout fails the job, which uses up an attempt") {
    worker_options options = recorder::options();
    const stuck_log log(options);
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
    CHECK(log.jobs->empty());  // it returned in time
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
TEST_CASE(
    "timeout: after a timeout or revocation, a result is an ACK, and anything else fails with that reason") {
    for (const bool revoked : {true, false}) {
        busy_worker busy(recorder::options(), with_timeout(revoked ? 1h : 5ms), [](job_context& job) {
            until_cancelled(job);
            return outcome::done("1");
        });
        if (revoked) busy.wire.revoke("a");
        REQUIRE(busy.wire.wait_for("ack", 1));
    }
    SUBCASE("a stop does not hand back a revoked job whose handler is deaf") {
        const shared_event over = make_event();
        busy_worker busy(recorder::options(), [over](job_context&) { over->wait(); });
        busy.wire.revoke("a");
        busy.force();
        REQUIRE(busy.wire.wait_for("fail", 1));
        CHECK(busy.settled() == "fail cancelled final");
        over->set();
    }
    SUBCASE("thrown, after a callback heard of it") {
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

// [River diagnose]
TEST_CASE("stuck: a job that ignores its cancellation is logged as stuck once and as abandoned once") {
    worker_options options = recorder::options();
    options.stuck_after = 10ms;
    const stuck_log log(options);
    const shared_event let_go = make_event();
    busy_worker busy(options, with_timeout(5ms), [=](job_context&) { static_cast<void>(let_go->wait()); });
    REQUIRE(log.calls->wait_for(1));
    REQUIRE(log.count("warn job is stuck") == 1);
    CHECK(!value_of(log.records("warn job is stuck")[0], "elapsed_ms").empty());
    busy.force();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    REQUIRE(log.jobs->size() == 2);
    const stuck_job& first = (*log.jobs)[0];
    CHECK(first.id == "a");
    CHECK(first.type == "work");
    CHECK(first.cancelled >= 10ms);
    CHECK(first.age >= first.cancelled);
    CHECK_FALSE(first.abandoned);
    CHECK(first.count == 1);
    CHECK((*log.jobs)[1].abandoned);
    CHECK((*log.jobs)[1].count == 1);
    CHECK(log.count("warn job abandoned") == 1);
    CHECK(log.count("warn handlers have not returned; exiting without waiting for them") == 1);
    CHECK(busy.body->report().stuck == std::vector<std::string>{"a"});
    CHECK(busy.settled() == "fail timeout");  // its own fault, whichever thread reports it
    let_go->set();
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
    using listener = std::function<stuck_action(const stuck_job&)>;
    deaf_worker(
        worker_options options, std::function<void(job_context&)> other,
        listener on_stuck_job = [](const stuck_job& job) { return job.default_action; })
        : log(options), body(with(std::move(options), std::move(on_stuck_job)), wire) {
        body.register_handler("work", [this](job_context&) {
            thread_local const counts_at_end at_end(ended);
            static_cast<void>(let_go->wait());
            returned->set();
        });
        body.register_handler("other", std::move(other));
        wire.give(with_timeout(1ms));
        REQUIRE(body.start());
    }
    static worker_options with(worker_options options, listener on_stuck_job) {
        options.on_stuck_job = std::move(on_stuck_job);
        return options;
    }
    const shared_event let_go = make_event();
    const shared_event returned = make_event();
    const std::shared_ptr<counter> ended = std::make_shared<counter>();  // the handler's thread
    recorder::transport wire;
    const kept_log log;
    worker body;
};

}  // namespace

// [River diagnose]
TEST_CASE(
    "stuck: a job that ignores its timeout is reported, its slot is refilled, and a late result is dropped") {
    counter together;
    deaf_worker deaf(for_stuck(2), [&](job_context&) {
        together.add();
        CHECK(together.wait_for(2));  // both slots are there, beside the deaf handler
    });
    REQUIRE(deaf.wire.wait_for("fail", 1));
    deaf.wire.give(make_job("b", "other"));
    deaf.wire.give(make_job("c", "other"));
    REQUIRE(deaf.wire.wait_for("ack", 2));
    while (deaf.log.count("debug job completed") < 2)
        std::this_thread::yield();  // else a heartbeat lists them
    CHECK(deaf.wire.settled("a") == "fail timeout");
    CHECK(deaf.body.report().stuck == std::vector<std::string>{"a"});
    REQUIRE(deaf.wire.wait_for("beat", deaf.wire.calls("beat").size() + 2));
    CHECK(deaf.wire.calls("beat").back().active.empty());  // nobody renews its lease
    CHECK_FALSE(deaf.returned->is_set());
    deaf.let_go->set();
    REQUIRE(deaf.log.wait_for("warn a stuck handler has returned; its result is dropped"));
    REQUIRE(deaf.body.stop(guard));
    CHECK(deaf.wire.settlements("a").size() == 1);
    CHECK(sums(deaf.body) == "claimed 3 completed 2 failed 1 exit 0");
}

TEST_CASE("stuck: stuck_action::keep -> the slot takes no job until the handler returns") {
    const shared_event answered = make_event();
    deaf_worker deaf(for_stuck(1), do_nothing, [answered](const stuck_job& job) {
        CHECK(job.default_action == stuck_action::stop);  // all are stuck
        answered->set();
        return stuck_action::keep;
    });
    REQUIRE(deaf.wire.wait_for("fail", 1));
    REQUIRE(answered->wait());
    deaf.wire.give(make_job("b", "other"));
    const std::size_t fetches = deaf.wire.calls("fetch").size();
    REQUIRE(deaf.wire.wait_for("beat", deaf.wire.calls("beat").size() + 5));
    CHECK(deaf.wire.calls("fetch").size() == fetches);
    deaf.let_go->set();
    REQUIRE(deaf.wire.wait_for("ack", 1));
    CHECK(deaf.returned->is_set());
    CHECK(deaf.body.stop(guard));
}

TEST_CASE("stuck: all handlers are stuck -> the worker drains and exits with 75") {
    const auto take_default = [](const stuck_job& job) { return job.default_action; };
    for (const bool listens : {true, false}) {
        deaf_worker deaf(for_stuck(1), do_nothing, listens ? deaf_worker::listener(take_default) : nullptr);
        REQUIRE(deaf.body.wait(deadline_after(guard)));
        CHECK(deaf.log.count("error handlers are stuck; the worker stops") == 1);
        CHECK(sums(deaf.body) == "claimed 1 failed 1 stuck a exit 75");
        CHECK(deaf.body.stop(guard).status == stop_status::ended);
        deaf.let_go->set();
        CHECK(deaf.ended->wait_for(1));  // else its last record might be in another test's output
    }
}

// [Spot first signal wins]
TEST_CASE("termination mode: first_signal_wins -> the file at the first signal decides, not later signals") {
    struct row {
        const char* mode;  // in the file
        bool signalled;    // the drain
        bool reclaims;
    };
    for (const row& each : {row{"SPOT_RECLAIM", false, true}, row{"NORMAL_SHUTDOWN", false, false},
                            row{"NORMAL_SHUTDOWN", true, false}}) {
        CAPTURE(each.mode);
        CAPTURE(each.signalled);
        const mode_file file(each.mode);
        worker_options options = recorder::options();
        options.dialect.first_signal_wins = true;
        options.termination_mode_file = file.path;
        options.times.shutdown_grace_period = 3550s;
        const kept_log log(options);
        const shared_event let_go = make_event();
        busy_worker busy(options, [=](job_context& job) {
            while (!let_go->is_set() && job.sleep_for(1ms)) {
            }
        });
        each.signalled ? busy.signal() : static_cast<void>(busy.body->request_stop());
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        if (each.signalled) {
            REQUIRE(log.wait_for("info Received SIGTERM"));
            send(busy.life, SIGUSR1);
        }
        for (int i = 0; i < 3; ++i) busy.signal();
        if (!each.reclaims) {
            REQUIRE(log.wait_for("info Received SIGTERM"));
            CHECK(busy.body->phase() == phase::draining);
            const std::string read = " contains NORMAL_SHUTDOWN, using graceful shutdown";
            CHECK(log.count("info File " + file.path + read) == 1);
            CHECK(log.count("info Received SIGTERM. Grace period: 3550s (until 2") == 1);
            CHECK(log.count("warn Spot instance") == 0);
            let_go->set();
        }
        REQUIRE(busy.body->wait(deadline_after(guard)));
        CHECK(busy.settlement().what == (each.reclaims ? "fail" : "ack"));
        if (each.reclaims) CHECK(busy.detail("reason") == "spot_reclaim");
    }
}

TEST_CASE("on_cancel: callbacks that block do not delay the callback of another job") {
    recorder::transport wire;
    for (const char* id : {"slow 1", "quick", "slow 2"})
        wire.give(make_job(id));  // any order meets a slow one
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

TEST_CASE(
    "reclaim_wait: a handler returns in time -> the FAIL has the handler's message, and the job is "
    "requeued") {
    worker_options options = patient();
    options.times.reclaim_wait = 50s;
    busy_worker busy(options, [](job_context& job) {
        until_cancelled(job);
        return outcome::interrupted("the child is gone");
    });
    send(busy.life, SIGUSR1);
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(busy.settlement().error.message.find("the child is gone") != std::string::npos);
    CHECK(busy.settlement().requeue);
}

TEST_CASE("cancel_lead: jobs are cancelled before the grace period ends, and may still return a result") {
    worker_options options = recorder::options();
    options.times.shutdown_grace_period = 1h;
    options.times.cancel_lead = 1h - 5ms;
    busy_worker busy(options, [](job_context& job) {
        until_cancelled(job);
        CHECK(job.token().reason() == cancel_reason::grace_period_expired);
        return outcome::done("\"saved\"");
    });
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(busy.settlement().result_json == "\"saved\"");
}

// [River shutdown code (b)] [River shutdown code (d)]
TEST_CASE("dialect: use() sets the stop times of the river, spot_controller and graceful_shutdown presets") {
    worker_options options;
    options.use(dialect::river());
    CHECK(options.times.shutdown_grace_period == 10s);
    CHECK(options.times.cancel_wait == 10s);
    CHECK(options.times.stop_timeout > options.times.cancel_wait);
    CHECK(validate(options));
    options.use(dialect::spot_controller());
    CHECK(options.times.shutdown_grace_period == 3550s);
    CHECK(options.times.cancel_lead == 10s);
    CHECK(options.times.cancel_wait == 0s);
    CHECK(options.termination_mode_file == "/tmp/termination-type");
    CHECK(validate(options));
    options.use(dialect::graceful_shutdown());
    CHECK(options.times.shutdown_grace_period == 30s);
    CHECK(options.times.cancel_lead == 0s);
    CHECK(options.termination_mode_file.empty());
}
