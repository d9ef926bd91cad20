// The conformance requirements of the graceful-shutdown specification, each with a real signal against the example
// backend. [GS 10]
#include <signal.h>

#include "harness.hpp"

using namespace test;

namespace {

// Every request the ledger knows to be of this worker; ACK and FAIL carry the job's owner.
bool is_request_of(const json& event, const std::string& worker) {
    for (const char* what : {"fetch", "refused_fetch", "beat", "ack", "nack"}) {
        if (worker_event(worker, what)(event)) return true;
    }
    return false;
}

// One `terminate` beat, and nothing of the worker after it.
void check_last_beat(backend& jobs, const std::string& worker) {
    const json* last = nullptr;
    for (const json& event : jobs.events()) {
        if (is_request_of(event, worker)) last = &event;
    }
    REQUIRE(last != nullptr);
    CHECK(beat_in_state(worker, "terminate")(*last));
    CHECK(jobs.count(beat_in_state(worker, "terminate")) == 1);
}

// Two jobs in progress in two slots and three more in the queue, so that no FETCH is on the wire at the signal; then
// `stop_signal`, and the whole way to the exit.
void drain_on(int stop_signal, const char* name) {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"OJS_CONCURRENCY", "2"}});
    const gate end_of_first;
    const std::vector<std::string> first = jobs.push("test.gate", end_of_first.args(), 2);
    for (const std::string& id : first) REQUIRE(worker.prints("start " + id));
    const std::vector<std::string> waiting = jobs.push("test.sleep", "[1]", 3);

    worker.signal(stop_signal);
    REQUIRE(jobs.event(beat_in_state("w", "quiet")).what ==
            json::kind::object);  // before any of them is through
    end_of_first.open();
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    CHECK(worker.prints(std::string("signal=") + name));
    CHECK(worker.prints("sender_pid=" + std::to_string(::getpid())));
    for (const std::string& id : first) CHECK(jobs.state_of(id) == "completed");
    for (const std::string& id : waiting) CHECK(jobs.state_of(id) == "available");
    CHECK(jobs.summary()["active"].number == 0);

    const std::int64_t handled = phase_moment(worker, "draining");
    REQUIRE(handled > 0);
    CHECK(jobs.count([&](const json& event) {
        return (event["event"].is("fetch") || event["event"].is("refused_fetch")) &&
               event["recv_mono_ns"].number > handled;
    }) == 0);
    // The order of phases is the specified one.
    constexpr std::int64_t resolution_ns = 1000000;  // of lifecycle_state::changed_ms
    CHECK(phase_moment(worker, "stopping") >= handled - resolution_ns);
    CHECK(phase_moment(worker, "terminated") >= phase_moment(worker, "stopping") - resolution_ns);
    check_last_beat(jobs, "w");
}

json shutdown_details(backend& jobs, const std::string& id) {
    const json failed = jobs.event(job_event(id, "nack"));
    CHECK(failed["status"].number == 200);
    CHECK(failed["code"].is("ShutdownError"));
    CHECK(failed["type"].is("ShutdownError"));
    CHECK(failed["retryable"].flag);
    CHECK(jobs.count(job_event(id, "nack")) == 1);
    CHECK(jobs.count(job_event(id, "ack")) == 0);
    return failed["details"];
}

}  // namespace

TEST_CASE("GS-001 SIGTERM: quiet, drain, stop") {
    drain_on(SIGTERM, "SIGTERM");
}

TEST_CASE("GS-002 SIGINT does the same as SIGTERM") {
    drain_on(SIGINT, "SIGINT");
}

TEST_CASE("GS-003 the grace period is 30 seconds, or as configured") {
    backend jobs;
    const auto says = [&](const environment& extra, const char* wanted) {
        process worker = start_worker(jobs.url(), "w", extra);
        CHECK_MESSAGE(worker.prints(std::string("grace_period=") + wanted), worker.output());
        worker.signal(SIGTERM);
        CHECK(worker.wait() == 0);
    };
    says({}, "30s");
    says({{"OJS_SHUTDOWN_GRACE_PERIOD", "1m30s"}}, "1m30s");
    says({{"OJS_GRACE_PERIOD", "500ms"}}, "500ms");
    says({{"OJS_SHUTDOWN_TIMEOUT", "45"}}, "45s");
    says({{"OJS_SHUTDOWN_GRACE_PERIOD", "7s"}, {"OJS_GRACE_PERIOD", "8s"}, {"OJS_SHUTDOWN_TIMEOUT", "9"}},
         "7s");
}

TEST_CASE("GS-004 heartbeats go on during the drain") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"OJS_HEARTBEAT_INTERVAL", "50ms"}});
    const gate end;
    const std::vector<std::string> ids = jobs.push("test.gate", end.args(), 2);
    for (const std::string& id : ids) REQUIRE(worker.prints("start " + id));
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("phase draining"));
    // With as many as this, the drain goes on for as long as it takes to beat, whatever the machine does.
    const auto drain_beat = [&](const json& event) {
        return beat_in_state("w", "quiet")(event) && event["active"].holds(ids[0]) &&
               event["active"].holds(ids[1]);
    };
    CHECK(eventually([&] { return jobs.count(drain_beat) >= 5; }));
    end.open();
    CHECK(worker.wait() == 0);
    const std::int64_t took = monotonic_ns() - phase_moment(worker, "draining");
    CHECK(jobs.count(drain_beat) <= took / 50000000 + 3);  // and no more often than asked for
    bool is_quiet = false;
    for (const json& event : jobs.events()) {
        is_quiet = is_quiet || beat_in_state("w", "quiet")(event);
        CHECK_FALSE((is_quiet && beat_in_state("w", "running")(event)));
    }
    check_last_beat(jobs, "w");
}

TEST_CASE("GS-005 the grace period expires: FAIL with ShutdownError, and the job is back in the queue") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"}});
    const std::string id = jobs.push_one("test.sleep", "[600000]");
    const std::string stubborn = jobs.push_one("test.stubborn", "[600000]");
    const std::string declared_long = jobs.push_one("test.long", "[600000]");
    for (const std::string& each : {id, stubborn, declared_long}) REQUIRE(worker.prints("start " + each));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    for (const std::string& each : {id, stubborn}) {
        const json details = shutdown_details(jobs, each);
        CHECK(details["reason"].is("grace_period_expired"));
        CHECK(details["grace_period_ms"].number == 300);
        CHECK(details["elapsed_ms"].number >= 300);
        CHECK(details["signal"].is("SIGTERM"));
    }
    CHECK(jobs.event(job_event(declared_long, "nack"))["code"].is("ShutdownTimeout"));
    const json summary = jobs.summary();
    CHECK(summary["active"].number == 0);
    CHECK(summary["available"].number == 3);
    check_last_beat(jobs, "w");

    // Not before the grace period was over, and another worker can have it.
    const std::int64_t failed = jobs.event(job_event(id, "nack"))["recv_mono_ns"].number;
    CHECK(failed - phase_moment(worker, "draining") >= 295000000);
    process heir = start_worker(jobs.url(), "heir", {{"OJS_CONCURRENCY", "1"}});
    CHECK(heir.prints("start " + id));
}

TEST_CASE("GS-R001 SIGTSTP quiets without stopping, SIGCONT resumes") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"OJS_CONCURRENCY", "2"}});
    const gate end;
    const std::vector<std::string> busy = jobs.push("test.gate", end.args(), 2);
    for (const std::string& id : busy) REQUIRE(worker.prints("start " + id));
    const std::int64_t all_busy_at = monotonic_ns();
    worker.signal(SIGTSTP);
    REQUIRE(jobs.event(beat_in_state("w", "quiet")).what == json::kind::object);
    const std::string queued = jobs.push_one("test.sleep", "[1]");
    end.open();
    for (const std::string& id : busy) CHECK(jobs.reaches(id, "completed"));
    // Both slots are free, a job waits; several beats later there is still no FETCH.
    const int beats = jobs.count(beat_in_state("w", "quiet"));
    CHECK(eventually([&] { return jobs.count(beat_in_state("w", "quiet")) >= beats + 3; }));
    CHECK(jobs.count([&](const json& event) {
        return (event["event"].is("fetch") || event["event"].is("refused_fetch")) &&
               event["recv_mono_ns"].number > all_busy_at;
    }) == 0);
    CHECK(jobs.state_of(queued) == "available");
    CHECK_FALSE(worker.ended());

    worker.signal(SIGCONT);
    CHECK(jobs.reaches(queued, "completed"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    check_last_beat(jobs, "w");
}

TEST_CASE("GS-R002 a second SIGTERM forces the stop, unless it follows at once") {
    backend jobs;
    SUBCASE("more than the gap apart: forced") {
        process worker = start_worker(jobs.url(), "w", {{"OJS_REPEAT_SIGNAL_GAP", "1ms"}});
        const std::string id = jobs.push_one("test.sleep", "[600000]");
        REQUIRE(worker.prints("start " + id));
        worker.signal(SIGTERM);
        REQUIRE(worker.prints("phase draining"));
        // The lifecycle's clock has ticks of a millisecond.
        const std::int64_t first = monotonic_ns();
        REQUIRE(eventually([&] { return monotonic_ns() - first > 5000000; }));
        worker.signal(SIGTERM);
        CHECK(worker.wait() == 0);
        const json details = shutdown_details(jobs, id);
        CHECK(details["reason"].is("forced"));
        CHECK(jobs.state_of(id) == "available");
        check_last_beat(jobs, "w");
    }
    SUBCASE("within the gap: one stop event") {
        process worker = start_worker(jobs.url(), "w", {{"OJS_REPEAT_SIGNAL_GAP", "1h"}});
        const gate end;
        const std::string id = jobs.push_one("test.gate", end.args());
        REQUIRE(worker.prints("start " + id));
        worker.signal(SIGTERM);
        REQUIRE(worker.prints("phase draining"));
        worker.signal(SIGTERM);
        worker.signal(SIGINT);
        const int beats = jobs.count(beat_in_state("w", "quiet"));
        CHECK(eventually([&] { return jobs.count(beat_in_state("w", "quiet")) >= beats + 3; }));
        end.open();
        CHECK(worker.wait() == 0);
        CHECK(jobs.state_of(id) == "completed");
    }
    SUBCASE("a third one: exit at once with 128 + its number") {
        // The FAIL of the forced stop stays unanswered, so that the third signal finds the worker in it.
        jobs.post("/dev/delay", "{\"ms\":0}");
        process worker = start_worker(
            jobs.url(), "w",
            {{"OJS_REPEAT_SIGNAL_GAP", "1ms"}, {"OJS_STOP_TIMEOUT", "10m"}, {"OJS_CANCEL_WAIT", "10m"}});
        const std::string id = jobs.push_one("test.stubborn", "[600000]");
        REQUIRE(worker.prints("start " + id));
        for (const char* phase : {"phase draining", "phase stopping"}) {
            const std::int64_t last = monotonic_ns();
            REQUIRE(eventually([&] { return monotonic_ns() - last > 5000000; }));
            worker.signal(SIGTERM);
            REQUIRE(worker.prints(phase));
        }
        const std::int64_t last = monotonic_ns();
        REQUIRE(eventually([&] { return monotonic_ns() - last > 5000000; }));
        worker.signal(SIGTERM);
        CHECK(worker.wait() == 128 + SIGTERM);
        CHECK(worker.prints("third stop signal"));
        CHECK(worker.prints("job_ids=" + id));
    }
}

TEST_CASE("GS-R003 the drain says how many jobs are left, which, and for how long") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w", {{"OJS_PROGRESS_INTERVAL", "50ms"}});
    const gate end;
    const std::vector<std::string> ids = jobs.push("test.gate", end.args(), 2);
    for (const std::string& id : ids) REQUIRE(worker.prints("start " + id));
    worker.signal(SIGTERM);
    CHECK(eventually([&] { return worker.count("draining  active_jobs=") >= 2; }));
    end.open();
    CHECK(worker.wait() == 0);
    INFO(worker.output());
    const std::string& log = worker.output();
    const std::size_t at = log.find("draining  active_jobs=2  jobs=");
    REQUIRE(at != std::string::npos);
    const std::string line = log.substr(at, log.find('\n', at) - at);
    for (const std::string& id : ids) CHECK_MESSAGE(line.find(id + ":") != std::string::npos, line);
}
