// Stops of real processes that shutdown-probe does not judge: steps that hang, several workers, other signals.
#include "harness.hpp"

namespace {
// Returns once the first beat of `worker` is in the ledger: it runs, and the backend knows it.
void await_beat(backend& jobs, const std::string& worker) {
    REQUIRE(jobs.event(worker_event(worker, "beat")).what == json::kind::object);
}
}  // namespace

TEST_CASE("worker: a stop signal after run() ends the process, unless it comes within signal_debounce") {
    backend jobs;
    process late = start_worker(jobs.url(), "late", {{"TEST_MODE", "late_flush"}, {"OJS_SIGNAL_DEBOUNCE", "20ms"}});
    await_beat(jobs, "late");
    CHECK(late.end_by(SIGTERM) == -SIGTERM);
    CHECK(late.prints("phase terminated"));
    CHECK(late.count("flushed") == 0);
    process worker = start_worker(jobs.url(), "w", {{"TEST_MODE", "flush"}, {"OJS_SIGNAL_DEBOUNCE", "1h"}});
    await_beat(jobs, "w");
    CHECK(worker.end_by(SIGTERM) == 0);
    INFO(worker.output());
    CHECK(worker.prints("flushed"));
    CHECK(worker.prints("child: \"signal 15\""));  // a child is not the worker: it is ended as ever
    CHECK(worker.prints("taken again"));
}

TEST_CASE("signals: an installer destroyed after a stop signal keeps its handlers for signal_debounce") {
    backend jobs;
    for (const auto& [gap, result] : {std::pair("1h", "kept"), std::pair("0s", "given back")}) {
        process worker = start_worker(jobs.url(), result, {{"TEST_MODE", "host"}, {"OJS_SIGNAL_DEBOUNCE", gap}});
        REQUIRE(worker.prints("started"));
        CHECK(worker.end_by(SIGTERM) == 0);
        CHECK(worker.prints(result));
    }
}

TEST_CASE("worker: any signal of OJS_STOP_SIGNALS stops, the second escalates, and the third exits with 128+n") {
    backend jobs;
    const auto start = [&](const std::string& name, const std::string& mode) {
        process worker = start_worker(
            jobs.url(), name,
            {{"OJS_STOP_SIGNALS", "QUIT, SIGUSR2,RTMIN+3,HUP"}, {"OJS_SIGNAL_DEBOUNCE", "0s"}, {"TEST_MODE", mode}});
        await_beat(jobs, name);
        return worker;
    };
    for (const char* mode : {"", "claimed"}) {
        process worker = start(std::string("w") + mode, mode);
        worker.signal(SIGRTMIN + 3);
        CHECK(worker.wait() == 0);
        CHECK(worker.prints("signal=SIGRTMIN+3"));
    }
    process hung = start("w2", "endless_step");
    hung.signal(SIGQUIT);
    REQUIRE(hung.prints("step hang"));
    hung.signal(SIGUSR2);
    REQUIRE(hung.prints("stop escalated"));
    CHECK(hung.end_by(SIGHUP) == 128 + SIGHUP);
    process plain = start("w3", "");
    CHECK(plain.end_by(SIGTERM) == -SIGTERM);  // not among them
}

#ifdef __linux__
TEST_CASE("worker: a program that a handler starts by popen() has no signal blocked") {
    backend jobs;
    const process worker = start_worker(jobs.url(), "w");
    const std::string id = jobs.push_one("test.mask", "[]");
    REQUIRE(jobs.reaches(id, "completed"));
    CHECK(jobs.job(id)["result"].text == "0000000000000000");
}
#endif

// [WP 3.1 (c)]
TEST_CASE("worker: after fork() each child runs a worker of its own, and all stop with the parent") {
    backend jobs;
    process parent({program("test_worker")},
                   settings_from("OJS_CONCURRENCY=1 OJS_POLL_INTERVAL=10ms OJS_HEARTBEAT_INTERVAL=100ms "
                                 "TEST_MODE=prefork OJS_URL=" +
                                 jobs.url()));
    std::set<std::string> workers;
    jobs.event([&](const json& event) {
        if (event["event"].is("beat")) workers.insert(event["worker_id"].text);
        return workers.size() == 3;
    });
    CHECK(workers.size() == 3);
    const std::vector<std::string> ids = jobs.push("test.pid", "[]", 30);
    std::set<std::int64_t> pids;
    for (const std::string& id : ids) {
        CHECK(jobs.reaches(id, "completed"));
        CHECK(jobs.count(job_event(id, "ack")) == 1);
        pids.insert(jobs.job(id)["result"].number);
    }
    CHECK(pids.count(parent.pid()) == 0);
    CHECK(parent.end_by(SIGTERM) == 0);
    CHECK(parent.count("child: \"exit 0\"") == 3);
}
