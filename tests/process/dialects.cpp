// Each dialect against each kind of backend: what a whole run says on the wire.
#include "harness.hpp"

using namespace test;

namespace {

// The states of a worker's beats in order, repetitions left out: "running quiet terminate".
std::string states_of(backend& jobs, const std::string& worker) {
    std::string out;
    std::string last;
    for (const json& each : jobs.events()) {
        if (!worker_event(worker, "beat")(each) || each["state"].is(last.c_str())) continue;
        last = each["state"].text;
        out += (out.empty() ? "" : " ") + last;
    }
    return out;
}

// A worker with one short and two endless jobs, stopped: everything it said is in the ledger.
struct run {
    run(std::vector<std::string> flags, const std::string& dialect) : jobs(std::move(flags)) {
        worker =
            start_worker(jobs.url(), "w", {{"OJS_DIALECT", dialect}, {"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"}});
        const std::string quick = jobs.push_one("test.result", "[1]");
        interrupted = jobs.push_one("test.sleep", "[600000]");
        declared_long = jobs.push_one("test.long", "[600000]");
        REQUIRE(worker.prints("start " + interrupted));
        REQUIRE(worker.prints("start " + declared_long));
        REQUIRE(jobs.reaches(quick, "completed"));
        REQUIRE(eventually([&] { return jobs.count(worker_event("w", "beat")) >= 1; }));  // still running
        worker.signal(SIGTSTP);
        REQUIRE(worker.prints("phase quiet"));
        // One may have been in progress; not every dialect sends the state.
        const int beats = jobs.count(worker_event("w", "beat"));
        REQUIRE(eventually([&] { return jobs.count(worker_event("w", "beat")) >= beats + 2; }));
        worker.signal(SIGTERM);
        status = worker.wait();
        states = states_of(jobs, "w");
    }
    json fail_of(const std::string& id) { return jobs.event(job_event(id, "nack")); }
    int downgrades() { return worker.count("sending a reduced one"); }

    backend jobs;
    std::string interrupted;
    std::string declared_long;
    std::string states;
    process worker;
    int status = -1;
};

struct expectation {
    std::vector<std::string> flags;  // of the backend
    std::string dialect;
    std::string states;
    const char* error;       // of an interrupted job
    const char* long_error;  // of one that is declared long
    int downgrades = 0;
};

run check_run(const expectation& row) {
    run one(row.flags, row.dialect);
    INFO(one.worker.output());
    CHECK(one.status == 0);
    CHECK(one.states == row.states);
    const json failed = one.fail_of(one.interrupted);
    CHECK(failed["code"].is(row.error));
    CHECK(failed["requeue"].flag == (row.dialect != "website"));
    CHECK(one.fail_of(one.declared_long)["code"].is(row.long_error));
    CHECK(one.downgrades() == row.downgrades);
    return one;
}

}  // namespace

// [GS 4.1 (b)] [GS 5.3 (c)] [GS 8.1 (b)]
TEST_CASE("dialect graceful_shutdown: heartbeats say running, quiet, terminate; a FAIL says ShutdownError") {
    check_run({{}, "graceful_shutdown", "running quiet terminate", "ShutdownError", "ShutdownTimeout"});
}

// [Website Phase 3 (a)] [Website Phase 3 (b)] [Website In-flight (b)] [Website Conformance (d)]
// [Website Conformance (e)]
TEST_CASE("dialect website: heartbeats end with terminated; a FAIL says shutdown and does not requeue") {
    check_run({{}, "website", "running quiet terminated", "shutdown", "shutdown"});
}

// [WP 4.2 (b)] [WP 7.2 (3)] [WP 7.2 (5a)] [WP 11.1 - 11.5]
TEST_CASE("dialect worker_protocol: heartbeats contain a job count and say terminate from SIGTERM on") {
    run one = check_run(
        {{"--count-heartbeats"}, "worker_protocol", "running quiet terminate", "shutdown", "shutdown"});
    // The drain of 300 ms, with a beat every 100 ms, was `terminate` already.
    CHECK(one.jobs.count(beat_in_state("w", "terminate")) >= 2);
}

// [WP 4.2 (b)]
TEST_CASE("dialect graceful_shutdown: a backend that expects a job count -> one downgrade is logged") {
    check_run({{"--count-heartbeats"},
               "graceful_shutdown",
               "running quiet terminate",
               "ShutdownError",
               "ShutdownTimeout",
               1});
}

// [GS 5.3 (a)]
TEST_CASE("dialects: a strict backend -> each of two downgrades is logged once, and every job is settled") {
    for (const std::string dialect : {"graceful_shutdown", "website", "worker_protocol"}) {
        CAPTURE(dialect);
        run one({"--strict"}, dialect);
        INFO(one.worker.output());
        CHECK(one.status == 0);
        CHECK(one.downgrades() == 2);
        const json fail = one.fail_of(one.interrupted);
        CHECK(fail["code"].is("handler_error"));
        CHECK(fail["retryable"].flag);
        const std::string error_class = fail["details"]["error_class"].text;
        CHECK(error_class == (dialect == "graceful_shutdown" ? "ShutdownError" : "shutdown"));
        CHECK(fail["message"].text.rfind(error_class + ": ", 0) == 0);
        CHECK(fail["details"]["reason"].is("grace_period_expired"));
        const auto refused = [&](const char* route) {
            return one.jobs.count([=](const json& event) {
                return event["event"].is("refused_form") && event["route"].is(route);
            });
        };
        // Both full forms at first; then with each beat that says something new, and with the last, at least the first of
        // them. Two FAILs may be refused at the same time.
        CHECK(refused("/ojs/v1/workers/heartbeat") >= 4);
        CHECK(refused("/ojs/v1/workers/heartbeat") <= 12);  // a slow machine has more beats with news
        CHECK(refused("/ojs/v1/workers/nack") <= 2);
        CHECK(refused("/ojs/v1/workers/fetch") + refused("/ojs/v1/workers/ack") == 0);
        CHECK(one.jobs.summary()["active"].number == 0);
    }
}
