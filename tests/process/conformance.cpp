// The conformance requirements of the graceful-shutdown specification: shutdown-probe judges tools/worker. [GS 10]
#include "harness.hpp"

using namespace test;

namespace {

// All checks of the scenario pass: so many, `checks` among them.
void check_passes(const char* scenario, int count, const std::vector<std::string>& checks) {
    process probe({program("shutdown-probe"), "--scenario", scenario, "--", program("worker")}, {});
    CHECK(probe.wait(milliseconds(60000)) == 0);
    INFO(probe.output());
    CHECK(probe.prints(std::to_string(count) + " pass, 0 fail, 0 skipped"));
    for (const std::string& check : checks)
        CHECK(probe.prints(check + std::string(11 - check.size(), ' ') + "PASS"));
}

}  // namespace

// [GS-001] [GS 4.2 (b)] [GS 5.1 (a)] [GS 5.2 (a)] [GS 5.3 (c)] [GS 12.3] [Website Phase 1] [Website Signals]
// [Website Conformance (a)] [WP 7.2 (4)] [WP 7.2 (7)] [WP 9.2]
TEST_CASE("worker: SIGTERM -> the worker becomes quiet, drains and stops (GS-001)") {
    check_passes("drain", 8, {"GS-001"});
}

// [GS-002] [Website Signals] [WP 9.1, 9.5]
TEST_CASE("worker: SIGINT has the same effect as SIGTERM (GS-002)") {
    check_passes("sigint", 1, {"GS-002"});
}

// [GS-003] [GS 6.1] [Website Grace period (a)] [Website Conformance (b)]
TEST_CASE("worker: the grace period is 30 seconds by default and configurable (GS-003)") {
    process worker = start_worker("http://127.0.0.1:1", "w");
    CHECK(worker.prints("grace_period=30s"));
    check_passes("grace", 3, {"GS-003"});
}

// [GS-004] [GS 5.2 (b)] [Website Phase 2]
TEST_CASE("worker: heartbeats continue during the drain (GS-004)") {
    check_passes("drain", 8, {"GS-004"});
}

// [GS-005] [GS 5.3 (a)] [GS 7.2 (1)] [GS 7.2 (2)] [Website In-flight (a)] [Website Conformance (c)] [WP 7.2 (4)]
// [Timeouts 9.4] [River no jobs lost] [River must return an error (b)]
TEST_CASE("worker: the grace period ends -> the job fails with ShutdownError and is requeued (GS-005)") {
    check_passes("grace", 3, {"GS-005", "ATTEMPT"});
}

// [GS-R001] [GS 4.1 (b)] [GS 4.2 (a)] [Website Phase 1] [Website Signals] [WP 9.3] [WP 9.4]
TEST_CASE("worker: SIGTSTP makes the worker quiet without stopping it, and SIGCONT resumes it (GS-R001)") {
    check_passes("tstp", 2, {"GS-R001"});
}

// [GS-R002] [GS 3] [GS 4.2 (d)]
TEST_CASE("worker: a second SIGTERM forces the stop, unless it follows the first at once (GS-R002)") {
    check_passes("second-term", 1, {"GS-R002"});
    check_passes("sent-twice", 1, {"TWICE"});
}

// [GS-R003] [GS 5.2 (c)]
TEST_CASE("worker: the drain logs how many jobs are left (GS-R003)") {
    check_passes("progress", 1, {"GS-R003"});
}
