// River's three stages in its own example, a job's own timeout, stuck jobs, and the termination mode, in real processes.
#include <signal.h>
#include <unistd.h>

#include <fstream>

#include "harness.hpp"

using namespace test;

namespace {

process start_stages(const std::string& job, const std::string& stage) {
    process out({program("river_stages"), job, stage}, {});
    REQUIRE(out.prints("job: started"));
    return out;
}

constexpr const char* soft = "Received SIGINT/SIGTERM; initiating soft stop (try to wait for jobs to finish)";
constexpr const char* again = "Received SIGINT/SIGTERM again; initiating hard stop (cancel everything)";
constexpr const char* timeout = "Soft stop timeout; initiating hard stop (cancel everything)";
constexpr const char* unsafe = "Hard stop timeout; ignoring stop procedure and exiting unsafely";

// The gap itself is what is waited for: two signals closer together are one stop event. The first has been seen.
void signal_again(const process& target, int number) {
    ::usleep(300 * 1000);
    target.signal(number);
}

std::string mode_file(const std::string& content) {
    std::string path = scratch_file("termination-type");
    if (!content.empty()) std::ofstream(path) << content << "\n";
    return path;
}

}  // namespace

TEST_CASE("River: a soft stop that succeeds") {
    process stages = start_stages("short", "10s");
    stages.signal(SIGINT);
    CHECK(stages.wait() == 0);
    CHECK(stages.prints(soft));
    CHECK(stages.prints("Soft stop succeeded"));
    CHECK(stages.count(again) + stages.count(timeout) + stages.count(unsafe) == 0);
}

TEST_CASE("River: a second signal cancels the jobs, and their results are awaited") {
    for (const char* job : {"good", "slow"}) {
        CAPTURE(job);
        process stages = start_stages(job, "10s");
        stages.signal(SIGTERM);
        REQUIRE(stages.prints(soft));
        signal_again(stages, SIGINT);
        CHECK(stages.wait() == 0);
        CHECK(stages.prints(again));
        CHECK(stages.prints("returning"));
        CHECK(stages.count(timeout) + stages.count(unsafe) == 0);
    }
}

TEST_CASE("River: a soft stop whose time is over cancels the jobs") {
    process stages = start_stages("good", "200ms");
    stages.signal(SIGTERM);
    CHECK(stages.wait() == 0);
    CHECK(stages.prints(timeout));
    CHECK(stages.prints("job: cancelled, returning"));
    CHECK(stages.count(again) + stages.count(unsafe) == 0);
}

TEST_CASE("River: a job deaf to its cancellation is left behind: named, with a status of its own") {
    process stages = start_stages("deaf", "200ms");
    stages.signal(SIGTERM);
    CHECK(stages.wait() == 70);
    CHECK(stages.prints(timeout));
    CHECK(stages.prints(unsafe));
    CHECK(stages.prints("abandoned: job job-1 (deaf)"));
}

TEST_CASE("River: the guide's own main(), with calls instead of options") {
    const auto start_guide = [](const std::string& job, const std::string& stage) {
        process out({program("river_guide"), job, stage}, {});
        REQUIRE(out.prints("job: started"));
        return out;
    };
    SUBCASE("a soft stop that succeeds") {
        process guide = start_guide("short", "1m");
        guide.signal(SIGINT);
        CHECK(guide.wait() == 0);
        CHECK(guide.prints("Soft stop succeeded"));
        CHECK(guide.count(again) + guide.count(timeout) + guide.count(unsafe) == 0);
    }
    SUBCASE("a second signal") {
        process guide = start_guide("good", "1m");
        guide.signal(SIGTERM);
        REQUIRE(guide.prints(soft));
        guide.signal(SIGINT);
        CHECK(guide.wait() == 0);
        CHECK(guide.prints(again));
        CHECK(guide.prints("job: cancelled, returning"));
        CHECK(guide.count(timeout) + guide.count(unsafe) == 0);
    }
    SUBCASE("its time is over") {
        process guide = start_guide("good", "200ms");
        guide.signal(SIGTERM);
        CHECK(guide.wait() == 0);
        CHECK(guide.prints(timeout));
        CHECK(guide.count(again) == 0);
    }
    SUBCASE("a deaf job") {
        process guide = start_guide("deaf", "200ms");
        guide.signal(SIGTERM);
        CHECK(guide.wait() == 70);
        CHECK(guide.prints(timeout));
        CHECK(guide.prints(unsafe));
    }
}

TEST_CASE("River: a third signal ends the process at once, and the log names what was left") {
    process stages = start_stages("deaf", "10s");
    stages.signal(SIGTERM);
    REQUIRE(stages.prints(soft));
    signal_again(stages, SIGTERM);
    REQUIRE(stages.prints(again));
    signal_again(stages, SIGTERM);
    CHECK(stages.wait() == 128 + SIGTERM);
    CHECK(stages.prints("third stop signal: leaving at once"));
    CHECK(stages.prints("job-1"));
}

TEST_CASE("River: the example refuses what it does not know") {
    for (const std::vector<std::string>& arguments :
         {std::vector<std::string>{"bad"}, {"good", "10 s"}, {"good", "1s", "x"}}) {
        std::vector<std::string> command = {program("river_stages")};
        command.insert(command.end(), arguments.begin(), arguments.end());
        process stages(command, {});
        CHECK(stages.wait() == 64);
        CHECK(stages.prints("usage: river_stages"));
    }
}

TEST_CASE("a job's own timeout: a FAIL with the reason, which uses up an attempt, and the worker works on") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w");
    const std::string late =
        jobs.push("test.sleep", "[600000]", 1, ",\"timeout_ms\":50,\"max_attempts\":1").front();
    const json failed = jobs.event(job_event(late, "nack"));
    CHECK(failed["code"].is("timeout"));
    CHECK(failed["details"]["reason"].is("timeout"));
    CHECK(jobs.reaches(late, "discarded"));
    const std::string next = jobs.push_one("test.sleep", "[1]");
    CHECK(jobs.reaches(next, "completed"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

TEST_CASE(
    "a job cancelled at the backend is cancelled here, nothing is reported for it, and the worker works on") {
    backend jobs;
    process worker =
        start_worker(jobs.url(), "w", {{"OJS_CONCURRENCY", "1"}, {"OJS_HEARTBEAT_INTERVAL", "50ms"}});
    const std::string cancelled = jobs.push_one("test.sleep", "[600000]");
    const auto is_listed = [&](const json& event) {
        return worker_event("w", "beat")(event) && event["active"].items.size() == 1;
    };
    REQUIRE(jobs.event(is_listed)["event"].is("beat"));
    CHECK(jobs.job(cancelled)["worker_id"].is("w"));
    ojs::result<ojs::http_client> client = ojs::http_client::create(jobs.url());
    REQUIRE(client);
    ojs::http_request remove;
    remove.method = "DELETE";
    remove.target = "/ojs/v1/jobs/" + cancelled;
    const ojs::result<ojs::http_response> answer = client->send(remove, {ojs::deadline_after(guard)});
    REQUIRE(answer);
    REQUIRE(answer->status == 200);
    const std::string next = jobs.push_one("test.sleep", "[1]");  // in the only slot
    CHECK(jobs.reaches(next, "completed"));
    CHECK(worker.prints("job no longer this worker's; not reported"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(jobs.state_of(cancelled) == "cancelled");
    CHECK(jobs.count(job_event(cancelled, "ack")) + jobs.count(job_event(cancelled, "nack")) == 0);
}

TEST_CASE("SIGTTIN shows where the thread of a cancelled job is, and only that") {
    backend jobs;
    process worker =
        start_worker(jobs.url(), "w", {{"OJS_STUCK_AFTER", "1h"}, {"OJS_REPEAT_SIGNAL_GAP", "0s"}});
    const std::string deaf = jobs.push("test.deaf", "[]", 1, ",\"timeout_ms\":20").front();
    REQUIRE(worker.prints("job cancelled: its timeout is over"));
    const std::string other = jobs.push_one("test.sleep", "[600000]");
    REQUIRE(worker.prints("start " + other));
    worker.signal(SIGTTIN);
    REQUIRE(eventually([&] { return worker.count("job in flight") == 2; }));
    INFO(worker.output());
    CHECK(worker.count("cancelled=yes") == 1);
#if OJS_SHUTDOWN_USE_UNWIND
    CHECK(worker.count("stack=\"program+0x") == 1);
#endif
    CHECK(worker.count("job is stuck") == 0);
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("phase draining"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(worker.prints("job abandoned"));
    CHECK(jobs.state_of(deaf) == "retryable");  // its own timeout is its own fault, whoever reports it
}

TEST_CASE("the termination mode: SIGTERM asks the file, SIGUSR1 does not") {
    struct {
        const char* content;
        int number;
        bool reclaims;
    } const cases[] = {{"NORMAL_SHUTDOWN", SIGTERM, false},
                       {"NORMAL_SHUTDOWN", SIGUSR1, true},
                       {"SPOT_RECLAIM", SIGINT, true},
                       {"", SIGTERM, true}};
    for (const auto& each : cases) {
        CAPTURE(each.content);
        CAPTURE(each.number);
        backend jobs;
        process worker =
            start_worker(jobs.url(), "w", {{"OJS_TERMINATION_TYPE_FILE", mode_file(each.content)}});
        const gate end;
        const std::string id = jobs.push_one("test.gate", end.args());
        REQUIRE(worker.prints("start " + id));
        worker.signal(each.number);
        if (!each.reclaims) {
            REQUIRE(worker.prints("phase draining"));
            end.open();
        }
        CHECK(worker.wait() == 0);
        CHECK(jobs.state_of(id) == (each.reclaims ? "available" : "completed"));
        CHECK(worker.count("Spot instance reclamation detected") == (each.reclaims ? 1 : 0));
        if (each.reclaims) CHECK(jobs.event(job_event(id, "nack"))["details"]["reason"].is("spot_reclaim"));
    }
}

TEST_CASE(
    "the termination mode: installers of their own take SIGUSR1 too once the worker runs; without the policy "
    "it kills") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w",
                                  {{"TEST_MODE", "claimed"}, {"OJS_TERMINATION_TYPE_FILE", mode_file("")}});
    const std::string id = jobs.push_one("test.sleep", "[600000]");
    REQUIRE(worker.prints("start " + id));
    worker.signal(SIGUSR1);
    CHECK(worker.wait() == 0);
    CHECK(jobs.state_of(id) == "available");

    process other = start_worker(jobs.url(), "v");
    REQUIRE(other.prints("start " + id));
    other.signal(SIGUSR1);
    CHECK(other.wait() == -SIGUSR1);
}

TEST_CASE("the termination mode: the first signal wins under the spot controller's preset") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w",
                                  {{"OJS_DIALECT", "spot_controller"},
                                   {"OJS_REPEAT_SIGNAL_GAP", "0s"},
                                   {"OJS_SHUTDOWN_GRACE_PERIOD", "1h"},
                                   {"OJS_TERMINATION_TYPE_FILE", mode_file("NORMAL_SHUTDOWN")}});
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(worker.prints("start " + id));
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("Received SIGTERM. Grace period: 3600s (until 2"));
    for (const int number : {SIGTERM, SIGUSR1, SIGINT, SIGTERM}) worker.signal(number);
    worker.signal(SIGTTIN);  // what it shows comes after all of those: it has the highest number
    REQUIRE(worker.prints("job in flight"));
    CHECK(worker.count("cancelled=yes") == 0);
    end.open();
    CHECK(worker.wait() == 0);
    CHECK(jobs.state_of(id) == "completed");
    CHECK(worker.count("Spot instance") == 0);
}
