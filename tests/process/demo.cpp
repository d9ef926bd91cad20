// tools/demo and tools/fleet play to their end and lose no job; a demo that is interrupted leaves nothing behind.
#include <cerrno>

#include "harness.hpp"

namespace {
process play(std::vector<std::string> flags) {
    flags.insert(flags.begin(), program("demo"));
    return process(flags, {});
}

// The process id that follows `text` in the output.
pid_t pid_after(const std::string& output, const std::string& text) {
    const auto at = output.find(text);
    REQUIRE(at != std::string::npos);
    return static_cast<pid_t>(std::atoi(output.c_str() + at + text.size()));
}

bool is_gone(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }
}  // namespace

// At the same time, as each waits most of its time.
TEST_CASE("demo and fleet: every job completes once, and an interrupted demo ends its processes") {
    const std::string svg = scratch_file("shutdown.svg");
    process demo = play({"--svg", svg});
    process fleet({program("fleet")}, {});

    process interrupted = play({});
    REQUIRE(interrupted.prints("kill -TERM"));
    const pid_t backend = pid_after(interrupted.output(), "backend  pid ");
    const pid_t worker = pid_after(interrupted.output(), "worker   pid ");
    CHECK(!is_gone(backend));
    CHECK(interrupted.end_by(SIGINT) == 130);
    CHECK(is_gone(backend));
    CHECK(is_gone(worker));

    CHECK_MESSAGE(fleet.wait(seconds(120)) == 0, fleet.output());
    CHECK(fleet.count("replaced 3 of 3") == 9);
    CHECK(fleet.prints("lost 0, doubled 0"));

    REQUIRE(demo.wait(seconds(60)) == 0);
    CHECK(demo.prints("Every job was completed once; none was lost."));
    CHECK(demo.count("FAIL ShutdownError") > 0);
    CHECK(access(svg.c_str(), R_OK) == 0);
}
