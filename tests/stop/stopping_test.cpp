#include "busy_worker.hpp"
#include "core/dispositions.hpp"
#include "file_tree.hpp"

using namespace recorder;

// [GS 5.1 (b)]
TEST_CASE("stopping: quiet(), resume(), SIGTSTP and SIGCONT send a heartbeat at once; SIGCONT ends either quiet") {
    recorder::transport wire;
    lifecycle life(0ms);
    std::vector<int> resumed_by;
    worker_options options = recorder::options();
    options.on_transition = [&](const lifecycle_state& now) {
        if (now.phase == phase::running) resumed_by.push_back(now.cause.signal);
    };
    const auto worker = start_worker(wire, options, life, do_nothing);
    REQUIRE(wire.wait_for("fetch", 1));
    REQUIRE(wire.wait_for("beat", 1, "running"));  // the first one, which could else say `quiet` as well
    CHECK(!worker->resume());
    CHECK(worker->quiet());  // it alone
    CHECK(!worker->quiet());
    CHECK(worker->phase() == phase::quiet);
    CHECK(life.phase() == phase::running);
    REQUIRE(wire.wait_for("beat", 1, "quiet"));  // the interval is an hour
    wire.give(make_job("a"));
    CHECK(wire.calls("fetch").size() == 1);
    CHECK(worker->resume());
    REQUIRE(wire.wait_for("ack", 1));
    REQUIRE(wire.wait_for("beat", 2, "running"));
    send(life, SIGTSTP);
    REQUIRE(wire.wait_for("beat", 2, "quiet"));
    send(life, SIGCONT);
    REQUIRE(wire.wait_for("beat", 3, "running"));
    CHECK(worker->quiet());
    REQUIRE(wire.wait_for("beat", 3, "quiet"));
    wire.give(make_job("b"));
    send(life, SIGCONT);
    REQUIRE(wire.wait_for("ack", 2));
    REQUIRE(wire.wait_for("beat", 4, "running"));
    CHECK(worker->phase() == phase::running);
    REQUIRE(worker->stop(guard));
    CHECK(resumed_by == std::vector<int>{0, SIGCONT, SIGCONT});
    CHECK(!worker->resume());
    CHECK(!worker->quiet());
    check_last_word(wire);
}

TEST_CASE("stopping: a library replaces the handler of SIGTERM -> one error is logged with the next heartbeat") {
    const test::with_disposition before(SIGTERM, SIG_DFL);
    lifecycle shared(0ms);
    const signals installed = test::claim(shared);
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    const kept_log log(options);
    recorder::transport wire;
    const auto worker = start_worker(wire, options, shared, do_nothing);
    ::signal(SIGTERM, SIG_DFL);
    REQUIRE(log.wait_for("error signals no longer reach"));
    REQUIRE(wire.wait_for("beat", wire.calls("beat").size() + 2));
    CHECK(log.count("error signals no longer reach") == 1);
    CHECK(value_of(log.records("error signals")[0], "signals") == "SIGTERM");
    REQUIRE(worker->stop(guard));
}

TEST_CASE("stopping: a drain that follows quiet() sends no second heartbeat with quiet") {
    const shared_event let_go = make_event();
    const shared_event drains = make_event();
    worker_options options = recorder::options();
    options.on_transition = [=](const lifecycle_state& now) {
        if (now.phase == phase::draining) drains->set();
    };
    busy_worker busy(options, [=](job_context&) { CHECK(let_go->wait()); });
    REQUIRE(busy.wire.wait_for("beat", 1, "running"));
    CHECK(busy.body->quiet());
    REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
    busy.signal();
    REQUIRE(drains->wait());
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(busy.wire.calls("beat").size() == 3);
    check_last_word(busy.wire);
}

// [WP 2.3 (a)] [WP 4.4 (b)] [WP 7.5]
TEST_CASE("stopping: the worker obeys quiet and terminate, and a heartbeat without a directive resumes nothing") {
    recorder::transport wire;
    std::atomic<directive> next{directive::quiet};
    wire.on.beat = [&next](const heartbeat_request&) {
        heartbeat_response out;
        out.directive = next.exchange(directive::none);
        return out;
    };
    std::vector<std::pair<phase, cause_kind>> changes;
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    options.on_transition = [&](const lifecycle_state& now) {
        changes.emplace_back(now.phase, now.phase >= phase::stopping ? cause_kind{} : now.cause.kind);
    };
    const auto worker = start_worker(wire, options, do_nothing);
    REQUIRE(wire.wait_for("beat", 5, "quiet"));
    CHECK(worker->phase() == phase::quiet);
    CHECK(worker->resume());
    REQUIRE(wire.wait_for("beat", 3, "running"));  // the last of them after on_transition
    next = directive::terminate;
    REQUIRE(worker->wait(deadline_after(guard)));
    CHECK(worker->exit_code() == 0);
    const decltype(changes) expected = {{phase::quiet, cause_kind::directive},
                                        {phase::running, cause_kind::api},
                                        {phase::draining, cause_kind::directive},
                                        {phase::stopping, {}},
                                        {phase::terminated, {}}};
    CHECK(changes == expected);
    check_last_word(wire);
}

// [GS 5.2 (b)] [Website Phase 2]
TEST_CASE("stopping: heartbeats continue in the drain, and the last heartbeat is the last request") {
    const shared_event let_go = make_event();
    worker_options options = recorder::options();
    options.heartbeat_interval = 10ms;
    busy_worker busy(options, [=](job_context& job) {
        CHECK(let_go->wait());
        CHECK(job.stop_requested());
        CHECK(!job.cancel_requested());
        CHECK(job.deadline() > steady_clock::now() + 30min);
        CHECK(job.deadline() < steady_clock::now() + 90min);
    });
    busy.signal();
    REQUIRE(busy.wire.wait_for("beat", 5, "quiet"));
    CHECK(busy.wire.calls("beat").back().active == std::vector<std::string>{"a"});
    CHECK(busy.body->phase() == phase::draining);
    CHECK(!busy.body->stopped());
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(sums(*busy.body) == "claimed 1 completed 1 exit 0");
    check_last_word(busy.wire);
}

// [GS-005] [Website In-flight (a)] [River no jobs lost] [River StopAndCancel (a)] [River StopAndCancel (b)]
TEST_CASE("stopping: the FAIL of an interrupted job states reason, signal, grace period and elapsed time") {
    struct row {
        const char* name;
        worker_options options;
        void (*stop)(busy_worker& busy);
        const char* reason;
        const char* signal;
        const char* grace_ms;
    };
    worker_options brief = patient();
    brief.times.shutdown_grace_period = 20ms;
    const row rows[] = {{"forced by a second signal", patient(),
                         [](busy_worker& busy) { busy.signal(), busy.signal(); }, "forced", "SIGTERM", "3600000"},
                        {"the grace period expired", brief, [](busy_worker& busy) { busy.body->request_stop(); },
                         "grace_period_expired", "null", "20"},
                        {"stop_and_cancel", patient(), [](busy_worker& busy) { busy.body->request_stop_and_cancel(); },
                         "cancelled", "null", "3600000"},
                        {"stop_and_cancel in the drain", patient(),
                         [](busy_worker& busy) {
                             busy.signal();
                             REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
                             busy.body->request_stop_and_cancel();
                         },
                         "cancelled", "null", "3600000"},
                        {"reclaimed in the drain", patient(),
                         [](busy_worker& busy) {
                             busy.signal();
                             REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
                             send(busy.life, SIGUSR1);
                         },
                         "spot_reclaim", "SIGUSR1", "3600000"}};
    for (const row& each : rows) {
        CAPTURE(each.name);
        worker_options options = each.options;
        const kept_log log(options, log_level::info);
        busy_worker busy(options, until_cancelled);
        const time_point asked = steady_clock::now();
        each.stop(busy);
        REQUIRE(busy.body->wait(deadline_after(guard)));
        CHECK(busy.detail("reason") == each.reason);
        CHECK(busy.detail("signal") == each.signal);
        CHECK(busy.detail("grace_period_ms") == each.grace_ms);
        CHECK(parse(busy.settlement().error.details_json).get("elapsed_ms").is<double>());
        CHECK(busy.settled() == "fail ShutdownError requeue");
        CHECK((busy.settlement().at - asked >= 15ms || each.options.times.shutdown_grace_period == 1h));
        CHECK(sums(*busy.body) == "claimed 1 interrupted 1 requeued 1 exit 0");
        check_last_word(busy.wire);
        std::string interrupted;
        for (const log_record& record : log.records()) {
            const bool expired = value_of(record, "event") == "grace_expired";
            if (expired) CHECK(record.level == log_level::warn);
            if (record.message == "job interrupted")
                interrupted += value_of(record, "job_id") + value_of(record, "reason") + value_of(record, "signal");
        }
        const log_record end = log.records("info worker stopped").at(0);
        CHECK(value_of(end, "interrupted") + value_of(end, "requeued") == "11");
        CHECK(interrupted == "a" + std::string(each.reason) + (*each.signal == 'n' ? "" : each.signal));
        CHECK(log.count("warn phase changed") == (each.options.times.shutdown_grace_period == 20ms ? 1 : 0));
    }
}

// [River after a timeout]
TEST_CASE("stopping: a stop waits for a reported handler that saw its cancellation") {
    const shared_event go_on = make_event();
    const shared_event rolled_back = make_event();
    worker_options options = recorder::options();
    options.times.stop_timeout = 60s;
    busy_worker busy(options, [=](job_context& job) {
        until_cancelled(job);
        CHECK(go_on->wait());
        ::usleep(200000);  // longer than the stop waits for handlers that saw nothing
        rolled_back->set();
    });
    busy.force();
    REQUIRE(busy.wire.wait_for("beat", 1, "terminate"));  // nothing is left to be sent
    go_on->set();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(rolled_back->is_set());
    CHECK(busy.settled() == "fail ShutdownError requeue");
    CHECK(busy.body->report().stuck.empty());
}

// [GS 7.2 (1)] [Website Phase 3 (a)] [Website Conformance (e)] [WP 7.2 (3)] [WP 7.2 (5a)]
TEST_CASE("stopping: the FAIL says ShutdownTimeout for a reports_shutdown_timeout job, and shutdown in two profiles") {
    busy_worker timeout(patient(), until_cancelled, {true});
    REQUIRE(timeout.body->stop_and_cancel(guard));
    CHECK(timeout.settled() == "fail ShutdownTimeout requeue");
    CHECK(timeout.settlement().error.message.rfind("ShutdownTimeout: ", 0) == 0);

    worker_options options = patient();
    options.profile = profile::website();
    for (const bool is_long : {false, true}) {
        busy_worker website(options, until_cancelled, {is_long});
        REQUIRE(website.body->stop_and_cancel(guard));
        CHECK(website.settled() == "fail shutdown");
        CHECK(sums(*website.body) == "claimed 1 failed 1 interrupted 1 exit 0");
        check_last_word(website.wire, "terminated");
    }

    options.profile = profile::worker_protocol();
    busy_worker protocol(options, until_cancelled);
    REQUIRE(protocol.body->stop_and_cancel(guard));
    CHECK(protocol.settled().rfind("fail shutdown", 0) == 0);
    for (const recorder::call& each : protocol.wire.calls()) CHECK(each.state != "quiet");
    CHECK(protocol.wire.calls().back().state == "terminate");
}

// [River StopAndCancel (b)] [River must return an error (a)]
TEST_CASE("stopping: an empty return or exception is an interruption only if the handler saw its cancellation") {
    const struct {
        const char* name;
        bool sees;  // its cancellation
        outcome (*end)();
        const char* expected;  // the result, or code and message of the error
    } rows[] = {{"it knew and was silent", true, [] { return outcome(); },
                 "ShutdownError: ShutdownError: the worker is shutting down; the job was interrupted"},
                {"it never knew", false, [] { return outcome(); }, "done "},
                {"it knew and had finished all the same", true, [] { return outcome::done("1"); }, "done 1"},
                {"it knew and threw", true, []() -> outcome { throw std::runtime_error("cut short"); },
                 "ShutdownError: ShutdownError: cut short"},
                {"it threw without knowing", false, []() -> outcome { throw std::runtime_error("late"); },
                 "handler_error: late"}};
    for (const auto& each : rows) {
        CAPTURE(each.name);
        const shared_event let_go = make_event();
        busy_worker busy(patient(), [=](job_context& job) {
            while (each.sees && !job.cancel_requested()) std::this_thread::yield();
            CHECK(let_go->wait());
            return each.end();
        });
        busy.body->request_stop_and_cancel();
        REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        let_go->set();
        REQUIRE(busy.body->wait(deadline_after(guard)));
        const call settled = busy.settlement();
        CHECK((settled.what == "ack" ? "done " + settled.result_json
                                     : settled.error.code + ": " + settled.error.message) == each.expected);
        CHECK(sums(*busy.body) == (settled.what == "ack" ? "claimed 1 completed 1 exit 0"
                                   : settled.requeue     ? "claimed 1 interrupted 1 requeued 1 exit 0"
                                                         : "claimed 1 failed 1 exit 0"));
    }
    SUBCASE("a handler whose callback ran counts as interrupted") {
        const shared_event notified = make_event();
        busy_worker busy(patient(), [=](job_context& job) {
            const cancel_registration kept = job.on_cancel([=] { notified->set(); });
            CHECK(notified->wait());
        });
        REQUIRE(busy.body->stop_and_cancel(guard));
        CHECK(busy.settlement().error.code == "ShutdownError");
    }
}

// [GS 5, diagram (b)] [GS 5.1 (b)]
TEST_CASE("stopping: the jobs of a FETCH in flight run after quiet and are requeued after a stop") {
    recorder::transport wire;
    recorder::event in_fetch;
    recorder::event answer;
    wire.on.fetch = [&](std::size_t count) {
        if (count == 1) return;  // the first
        in_fetch.set();
        CHECK(answer.wait());
    };
    wire.give(make_job("first"));
    const auto worker = start_worker(wire, recorder::options(2), do_nothing);
    REQUIRE(in_fetch.wait());
    REQUIRE(wire.wait_for("ack", 1));
    const std::size_t fetches = wire.calls("fetch").size();
    const char* expected = "claimed 3 completed 1 requeued 2 exit 0";
    SUBCASE("a FETCH in flight at quiet: its jobs are run") {
        expected = "claimed 3 completed 3 exit 0";
        worker->quiet();
    }
    SUBCASE("a FETCH in flight at the drain: its jobs are requeued") { worker->request_stop(); }
    REQUIRE(wire.wait_for("beat", 1, "quiet"));
    for (const char* id : {"a", "b"}) wire.give(make_job(id));
    answer.set();
    if (worker->phase() == phase::quiet) {
        REQUIRE(wire.wait_for("ack", 3));
        CHECK(worker->phase() == phase::quiet);
        worker->request_stop();
    }
    REQUIRE(worker->wait(deadline_after(guard)));
    CHECK(wire.calls("beat").size() <= 4);  // one is repeated if a later one ended first
    CHECK(wire.calls("fetch").size() == fetches);
    for (const call& each : wire.calls("fail")) {
        CHECK(each.text() == "fail ShutdownError requeue");
        CHECK(parse(each.error.details_json).get("reason").to_str() == "not_started");
    }
    CHECK(sums(*worker) == expected);
    check_last_word(wire);
}

// [River blocking] [River after a timeout]
TEST_CASE("stopping: stop() returns false before start() and at its deadline, and true after the end") {
    recorder::transport wire;
    wire.give(make_job("a"));
    {
        worker worker(recorder::options(), wire);
        worker.register_handler("work", [](job_context&) {});
        CHECK_FALSE(worker.stop());
        CHECK(worker.phase() == phase::draining);
        REQUIRE(worker.start());
        REQUIRE(worker.wait(deadline_after(guard)));
        CHECK(wire.calls("fetch").empty());
        CHECK(worker.stop(std::chrono::milliseconds::max()));
        check_last_word(wire);
    }
    const shared_event let_go = make_event();
    busy_worker busy(recorder::options(), [=](job_context&) { CHECK(let_go->wait()); });
    CHECK_FALSE(busy.body->stop(1ms));
    CHECK_FALSE(busy.body->stop(std::chrono::milliseconds(-5)));
    const cancel_token stopped = busy.body->stopped_token();
    CHECK(!stopped.cancelled());
    let_go->set();
    CHECK(busy.body->stop(guard));
    CHECK(!stopped.sleep_for(guard));
    CHECK(busy.settlement().what == "ack");
}

// [GS 5, diagram (c)] [GS 5.3 (d)] [River stuck programs (a)]
TEST_CASE("stopping: a handler that ignores its cancellation does not delay the stop, and may outlive the worker") {
    const shared_event let_go = make_event();
    const auto ended = std::make_shared<counter>();
    recorder::transport wire;
    wire.give(make_job("deaf"));
    worker_options options = recorder::options();
    const kept_log log(options);
    {
        lifecycle life(0ms);
        const shared_event began = make_event();
        const auto worker = start_worker(wire, options, life, [=](job_context& job) -> std::string {
            thread_local const counts_at_end at_end(ended);
            began->set();
            CHECK(let_go->wait());
            job.extend_lease();
            CHECK(job.cancel_requested());
            CHECK(job.stop_requested());
            CHECK(job.id() == "deaf");
            CHECK(!job.sleep_for(1h));
            return "not JSON, which is logged";
        });
        REQUIRE(began->wait());
        recorder::force(life);
        REQUIRE(worker->wait(deadline_after(guard)));
        CHECK(sums(*worker) == "claimed 1 interrupted 1 requeued 1 stuck deaf exit 0");
        check_last_word(wire);
    }
    const std::size_t calls = wire.calls().size();
    const std::size_t records = log.count("");
    let_go->set();
    REQUIRE(ended->wait_for(1));
    CHECK(wire.calls().size() == calls);
    CHECK(log.count("") == records);  // an abandoned handler reaches neither transport nor log
    CHECK(wire.settlements("deaf").size() == 1);
}

TEST_CASE("stopping: a report request -> the log lists the jobs in flight and whether they are cancelled") {
    recorder::transport wire;
    job timed = make_job("a");
    timed.timeout = 1ms;
    wire.give(timed);
    wire.give(make_job("b"));
    lifecycle life(0ms);
    counter began;
    recorder::event cancelled, let_go;
    worker_options options = recorder::options(2);
    const kept_log log(options, log_level::warn);
    const auto worker = start_worker(wire, options, life, [&](job_context& job) {
        began.add();
        if (job.id() == "a" && !job.sleep_for(1h)) cancelled.set();
        CHECK(let_go.wait());
    });
    REQUIRE(began.wait_for(2));
    REQUIRE(cancelled.wait());
    life.apply(ojs::event::report_request, {});
    const auto listed = [&] { return log.records("info job in flight"); };
    CHECK(test::eventually([&] { return listed().size() == 2; }));  // whatever the level
    let_go.set();
    REQUIRE(worker->stop(guard));
    std::string all;
    for (const log_record& each : listed())
        all += value_of(each, "job_id") + " " + value_of(each, "job_type") + " " + value_of(each, "cancelled") + " " +
               value_of(each, "handler") + ";";
    CHECK(all == "a work yes running;b work no running;");
}

TEST_CASE("stopping: the third signal ends the retries and logs all remaining jobs") {
    constexpr int jobs = 30;
    recorder::transport wire;
    wire.refuse("fail", 100000, {errc::unavailable, 0, "down"});
    for (int i = 0; i < jobs; ++i) wire.give(make_job("j" + std::to_string(i)));
    counter began;
    lifecycle life{0ms};
    worker_options options = recorder::options(jobs);
    options.times.stop_timeout = 200s;
    const kept_log log(options, log_level::error);
    const auto worker = start_worker(wire, options, life, [&](job_context& job) {
        began.add();
        until_cancelled(job);
    });
    REQUIRE(began.wait_for(jobs));
    recorder::force(life);
    REQUIRE(wire.wait_for("fail", 2));
    send(life, SIGTERM);
    REQUIRE(worker->wait(deadline_after(guard)));
    CHECK(worker->exit_code() == exit_status::unreported);
    CHECK(worker->report().unreported.size() == jobs);
    const std::vector<log_record> leaving = log.records("error third stop signal: exiting immediately");
    REQUIRE(leaving.size() == 1);
    const std::string named = "," + value_of(leaving[0], "job_ids") + ",";
    for (int i = 0; i < jobs; ++i) CHECK(named.find(",j" + std::to_string(i) + ",") != std::string::npos);
}

// [River Stop]
TEST_CASE("stopping: a drain with no_limit has no deadline and ends when its jobs are cancelled") {
    worker_options options = patient();
    options.times.shutdown_grace_period = no_limit;
    CHECK(validate(options));
    busy_worker busy(options, [](job_context& job) {
        while (!job.stop_requested()) std::this_thread::yield();
        CHECK(job.deadline() == time_point::max());
        CHECK_FALSE(job.sleep_for(no_limit));
    });
    CHECK_FALSE(busy.body->stop(20ms));
    CHECK(busy.body->phase() == phase::draining);
    CHECK(busy.body->stop_and_cancel(std::chrono::hours::max()));
    CHECK(busy.settlement().error.details_json.find("\"grace_period_ms\":null") != std::string::npos);
}

// [River results persisted]
TEST_CASE("stopping: on_shutdown steps run after the last heartbeat, and report() lists their results") {
    recorder::transport wire;
    worker_options options = recorder::options();
    const kept_log log(options);
    worker worker(options, wire);
    worker.register_handler("work", do_nothing);
    bool last_word = false;
    CHECK(worker.on_shutdown("flush", [&] {
        check_last_word(wire);
        last_word = true;
    }));
    CHECK(worker.on_shutdown("throws", [] { throw std::runtime_error("disk full"); }));
    REQUIRE(worker.start());
    CHECK_FALSE(worker.on_shutdown("late", [] {}));
    CHECK(worker.stop(guard));
    CHECK(last_word);
    const std::vector<step_result> steps = worker.report().steps;
    REQUIRE(steps.size() == 2);
    CHECK(steps[0].status == step_status::done);
    CHECK(steps[1].name == "throws");
    CHECK(steps[1].status == step_status::threw);
    const std::vector<log_record> logged = log.records("info shutdown step finished");
    REQUIRE(logged.size() == 1);  // the other one is an error
    CHECK(std::string(logged[0].component) == "sequence");
}

TEST_CASE("stopping: the log shows options at start-up, progress in the drain, and totals at the end") {
    worker_options options = recorder::options();
    options.queues = {"default", "other"};
    options.progress_interval = 10ms;
    options.platform_grace = {"kubernetes", options.times.shutdown_grace_period};
    const kept_log log(options);
    busy_worker busy(options, [&log](job_context&) { CHECK(log.wait_for("info draining")); });
    busy.signal();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    const log_record started = log.records("info worker started").at(0);
    const std::pair<const char*, const char*> shown[] = {
        {"queues", "default,other"}, {"concurrency", "1"}, {"job_types", "work"}, {"grace_from", "kubernetes"}};
    for (const auto& [name, value] : shown) CHECK(value_of(started, name) == value);
    CHECK(value_of(log.records("info phase changed").at(0), "event") == "stop_signal");  // of a shared lifecycle
    const log_record draining = log.records("info draining").at(0);
    CHECK(!value_of(draining, "grace_left_ms").empty());
    CHECK(value_of(draining, "job_types") == "work");
    std::string fields;
    const log_record end = log.records("info worker stopped").at(0);
    for (const log_field& each : end.fields) fields += each.value.empty() ? "" : each.name + " ";
    CHECK(fields ==
          "status claimed completed failed interrupted requeued gone unreported uptime_ms stop_ms mode cause ");
    CHECK(log.text().find("threads have not ended") == std::string::npos);
}

TEST_CASE("stopping: stop() and wait() inside a handler or callback return false at once, and the worker stops") {
    enum { handler, transition, fetch, cancelled, place_count };
    for (int place = 0; place < place_count; ++place) {
        CAPTURE(place);
        const shared_event ready = make_event();
        worker* tested = nullptr;
        const shared_event called = make_event();
        const auto call = [&] {
            REQUIRE(ready->wait());
            CHECK_FALSE(tested->stop());
            CHECK_FALSE(tested->wait());
            CHECK_FALSE(tested->stop_and_cancel());
            called->set();
        };
        worker_options options = patient();
        const kept_log log(options);
        if (place == transition) options.on_transition = [&](const lifecycle_state&) { call(); };
        recorder::transport wire;
        if (place == fetch) wire.on.fetch = [&](std::size_t) { call(); };
        wire.give(make_job("a"));
        worker body(options, wire);
        tested = &body;
        const shared_event began = make_event();
        body.register_handler("work", [&, began](job_context& job) {
            if (place == handler) call();
            if (place != cancelled) return;
            const cancel_registration keep = job.on_cancel(call);
            began->set();
            until_cancelled(job);
            CHECK(called->wait());  // else the registration may end before
        });
        REQUIRE(body.start());
        ready->set();
        if (place == transition) body.quiet();
        if (place == cancelled) {
            REQUIRE(began->wait());
            body.request_stop_and_cancel();
        }
        REQUIRE(called->wait());
        REQUIRE(body.wait(deadline_after(guard)));
        CHECK(log.count("warn a handler or a callback of the worker cannot wait") >= 3);
        CHECK(body.stop());
    }
}

// ---- what a stop signal means where there is a termination-mode file, or where the first signal wins ----

namespace {
const char* const read_file = "info File ";  // the line about a file that says NORMAL_SHUTDOWN
const char* const reclaim_lines[] = {"warn Spot instance reclamation detected",
                                     "warn Initiating immediate shutdown to requeue job before VM termination"};

// Options with such a file.
struct mode_file {
    mode_file() {
        tree.file("/mode", "NORMAL_SHUTDOWN");
        options.termination_mode_file = tree.root() + "/mode";
    }
    test::file_tree tree;
    worker_options options = patient();
};
}  // namespace

TEST_CASE("termination mode: a stop signal reads the file before on_transition is called for the drain") {
    mode_file given;
    const kept_log log(given.options);
    std::atomic<std::size_t> known{99};
    given.options.on_transition = [&](const lifecycle_state& now) {
        if (now.phase == phase::draining) known = log.count(read_file);
    };
    const shared_event let_go = make_event();
    busy_worker busy(given.options, [=](job_context&) { CHECK(let_go->wait()); });
    busy.signal();
    CHECK(test::eventually([&] { return known != 99; }));
    let_go->set();
    REQUIRE(busy.body->wait(deadline_after(guard)));
    CHECK(known == 1);
    CHECK(sums(*busy.body) == "claimed 1 completed 1 exit 0");
}

TEST_CASE("termination mode: a drain by a call reads no file; a signal later in that drain reads it once") {
    for (const bool to_itself : {false, true}) {
        CAPTURE(to_itself);
        mode_file given;
        given.options.profile.stop.first_signal_wins = to_itself;  // else it would force the stop
        const kept_log log(given.options);
        recorder::event drains;  // comes after the file, if that is read
        given.options.on_transition = [&](const lifecycle_state& now) {
            if (now.phase == phase::draining) drains.set();
        };
        recorder::transport wire;
        wire.give(make_job("a"));
        lifecycle life(0ms);
        recorder::event began, let_go;
        const auto handler = [&](job_context&) {
            began.set();
            CHECK(let_go.wait());
        };
        const auto worker = to_itself ? std::make_unique<ojs::worker>(given.options, wire)
                                      : std::make_unique<ojs::worker>(given.options, wire, life);
        worker->register_handler("work", handler);
        std::thread running([&] { CHECK((to_itself ? worker->run() : 0) == 0); });
        if (!to_itself) REQUIRE(worker->start());
        REQUIRE(began.wait());
        worker->request_stop();
        REQUIRE(drains.wait());
        CHECK(log.count(read_file) == 0);
        if (to_itself)
            ::kill(::getpid(), SIGTERM);
        else
            send(life, SIGTERM);
        CHECK(log.wait_for(read_file));
        let_go.set();
        running.join();
        REQUIRE(worker->wait(deadline_after(guard)));
        CHECK(log.count(read_file) == 1);
        CHECK(sums(*worker) == "claimed 1 completed 1 exit 0");
    }
}

TEST_CASE("reclaim: SIGUSR1 reads no file, and cancel callbacks run after the lines about the reclaim") {
    for (const bool drains : {false, true}) {
        CAPTURE(drains);
        mode_file given;
        const kept_log log(given.options);
        const shared_event listens = make_event();
        const shared_event called = make_event();
        given.options.log.hook = [keep = given.options.log.hook, called](const log_record& record) {
            if (record.message.find("Initiating") == 0) CHECK_FALSE(called->wait_until(steady_clock::now() + 50ms));
            keep(record);
        };
        busy_worker busy(given.options, [listens, called](job_context& job) {
            const cancel_registration kept = job.on_cancel([called] { called->set(); });
            listens->set();
            CHECK(called->wait());
            return outcome::interrupted("the child is gone");  // within reclaim_grace
        });
        REQUIRE(listens->wait());
        if (drains) {
            busy.body->request_stop();
            REQUIRE(busy.wire.wait_for("beat", 1, "quiet"));
        }
        send(busy.life, SIGUSR1);
        REQUIRE(busy.body->wait(deadline_after(guard)));
        CHECK(busy.detail("reason") == "spot_reclaim");
        CHECK(busy.settlement().error.message.find("the child is gone") != std::string::npos);
        CHECK(sums(*busy.body) == "claimed 1 interrupted 1 requeued 1 exit 0");
        for (const char* line : reclaim_lines) CHECK(log.count(line) == 1);
        CHECK(log.count(read_file) == 0);
    }
}
