// The conformance requirements of the graceful-shutdown specification: shutdown-probe judges tools/worker. [GS 10]
#include <map>

#include "harness.hpp"

using namespace test;

namespace {

const std::map<std::string, const char*> cases = {
    {"GS-001", "drain"},        {"GS-002", "sigint"},    {"GS-003", "grace"},    {"GS-R001", "tstp"},
    {"GS-R002", "second-term"}, {"GS-R003", "progress"}, {"TWICE", "sent-twice"}};

// All scenarios begin with the first case that asks for one: they mostly wait.
process& run_of(const std::string& row) {
    static std::map<std::string, process> runs;
    if (runs.empty()) {
        for (const auto& [id, scenario] : cases)
            runs[id] =
                process({program("shutdown-probe"), "--scenario", scenario, "--", program("worker")}, {});
    }
    return runs.at(row);
}

// The rows hold that the scenario of `row` judges, which are so many.
void check_holds(const std::string& row, int count) {
    process& run = run_of(row);
    CHECK(run.wait(milliseconds(60000)) == 0);
    INFO(run.output());
    CHECK(run.prints(std::to_string(count) + " hold, 0 fail, 0 skipped"));
}

}  // namespace

TEST_CASE("GS-001 SIGTERM: quiet, drain, stop") {
    check_holds("GS-001", 7);
}

TEST_CASE("GS-002 SIGINT does the same as SIGTERM") {
    check_holds("GS-002", 1);
}

TEST_CASE("GS-003 the grace period is 30 seconds, or as configured") {
    process worker = start_worker("http://127.0.0.1:1", "w");
    CHECK(worker.prints("grace_period=30s"));
    check_holds("GS-003", 3);
}

TEST_CASE("GS-004 heartbeats go on during the drain") {
    CHECK(run_of("GS-001").prints("GS-004     holds"));
}

TEST_CASE("GS-005 the grace period expires: FAIL with ShutdownError, and the job is back in the queue") {
    CHECK(run_of("GS-003").prints("GS-005     holds"));
    CHECK(run_of("GS-003").prints("ATTEMPT    holds"));
}

TEST_CASE("GS-R001 SIGTSTP quiets without stopping, SIGCONT resumes") {
    check_holds("GS-R001", 2);
}

TEST_CASE("GS-R002 a second SIGTERM forces the stop, unless it follows at once") {
    check_holds("GS-R002", 1);
    check_holds("TWICE", 1);
}

TEST_CASE("GS-R003 the drain says how many jobs are left, which, and for how long") {
    check_holds("GS-R003", 2);
}
