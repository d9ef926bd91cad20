// River's three stages in its own example, a job's own timeout, and stuck jobs, in real processes.
#include "harness.hpp"

namespace {
constexpr const char* soft = "Received SIGINT/SIGTERM; initiating soft stop (try to wait for jobs to finish)";
constexpr const char* succeeded = "Soft stop succeeded";
constexpr const char* again = "Received SIGINT/SIGTERM again; initiating hard stop (cancel everything)";
constexpr const char* timeout = "Soft stop timeout; initiating hard stop (cancel everything)";
constexpr const char* unsafe = "Hard stop timeout; ignoring stop procedure and exiting unsafely";
}  // namespace

// [River Stop] [River hard stop] [River stuck programs (a)] [River shutdown code (a)] [River shutdown code (b)]
// [River shutdown code (c)] [River shutdown code (e)] [River shutdown code (f)]
TEST_CASE("river examples: each signal or timeout begins the next stage, and the last stage exits with 70") {
    const struct {
        const char* example;
        const char* job;
        const char* soft_stop;
        std::vector<int> signals;
        int status;
        std::vector<std::string> says;  // and no other of the guide's lines
    } rows[] = {
        {"river_stages", "short", "10s", {SIGINT}, 0, {succeeded}},
        {"river_stages", "good", "10s", {SIGTERM, SIGINT}, 0, {again, "job: cancelled, returning"}},
        {"river_stages", "good", "200ms", {SIGTERM}, 0, {timeout, "job: cancelled, returning"}},
        {"river_stages", "deaf", "200ms", {SIGTERM}, 70, {timeout, unsafe, "abandoned: job job-1"}},
        {"river_stages",
         "deaf",
         "10s",
         {SIGTERM, SIGTERM, SIGTERM},
         128 + SIGTERM,
         {again, "third stop signal: exiting immediately"}},
        {"river_guide", "short", "1m", {SIGINT}, 0, {succeeded}},
        {"river_guide", "good", "1m", {SIGTERM, SIGINT}, 0, {again}},
        {"river_guide", "deaf", "200ms", {SIGTERM}, 70, {timeout, unsafe}},
    };
    for (const auto& row : rows) {
        CAPTURE(row.example);
        CAPTURE(row.job);
        process run({program(row.example), row.job, row.soft_stop}, {});
        REQUIRE(run.prints("job: started"));
        run.signal(row.signals.front());
        if (row.says.front() != succeeded) REQUIRE(run.prints(soft));
        for (std::size_t i = 1; i < row.signals.size(); ++i) {
            // The gap itself is what is waited for: two signals closer together are one stop event.
            ::usleep(300 * 1000);
            run.signal(row.signals[i]);
            CHECK(run.prints(again));
        }
        CHECK(run.wait() == row.status);
        INFO(run.output());
        for (const std::string& text : row.says) CHECK_MESSAGE(run.count(text) == 1, text);
        for (const char* text : {succeeded, again, timeout, unsafe}) {
            const bool expected = std::find(row.says.begin(), row.says.end(), text) != row.says.end();
            CHECK_MESSAGE((run.count(text) == 1) == expected, text);
        }
    }
}
