// The conformance requirements of the graceful-shutdown specification: shutdown-probe judges tools/worker. [GS 10]
#include "harness.hpp"

using namespace test;

namespace {

// All rows that the scenario judges hold: so many, `rows` among them.
void check_holds(const char* scenario, int count, const std::vector<std::string>& rows) {
    process probe({program("shutdown-probe"), "--scenario", scenario, "--", program("worker")}, {});
    CHECK(probe.wait(milliseconds(60000)) == 0);
    INFO(probe.output());
    CHECK(probe.prints(std::to_string(count) + " hold, 0 fail, 0 skipped"));
    for (const std::string& row : rows)
        CHECK(probe.prints(row + std::string(11 - row.size(), ' ') + "holds"));
}

}  // namespace

TEST_CASE("GS-001 SIGTERM: quiet, drain, stop") {
    check_holds("drain", 7, {"GS-001"});
}

TEST_CASE("GS-002 SIGINT does the same as SIGTERM") {
    check_holds("sigint", 1, {"GS-002"});
}

TEST_CASE("GS-003 the grace period is 30 seconds, or as configured") {
    process worker = start_worker("http://127.0.0.1:1", "w");
    CHECK(worker.prints("grace_period=30s"));
    check_holds("grace", 3, {"GS-003"});
}

TEST_CASE("GS-004 heartbeats go on during the drain") {
    check_holds("drain", 7, {"GS-004"});
}

TEST_CASE("GS-005 the grace period expires: FAIL with ShutdownError, and the job is back in the queue") {
    check_holds("grace", 3, {"GS-005", "ATTEMPT"});
}

TEST_CASE("GS-R001 SIGTSTP quiets without stopping, SIGCONT resumes") {
    check_holds("tstp", 2, {"GS-R001"});
}

TEST_CASE("GS-R002 a second SIGTERM forces the stop, unless it follows at once") {
    check_holds("second-term", 1, {"GS-R002"});
    check_holds("sent-twice", 1, {"TWICE"});
}

TEST_CASE("GS-R003 the drain says how many jobs are left, which, and for how long") {
    check_holds("progress", 2, {"GS-R003"});
}
