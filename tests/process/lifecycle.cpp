// tools/lifecycle_runner by itself: its signals, its options and its exit statuses. Its behaviors are seen in rfc_041.cpp.
#include <signal.h>

#include <string>
#include <vector>

#include "harness.hpp"

using namespace test;

namespace {

process start_runner(std::vector<std::string> flags, const environment& extra = {}) {
    flags.insert(flags.begin(), program("lifecycle_runner"));
    return process(flags, extra);
}

}  // namespace

TEST_CASE("lifecycle: SIGTERM drains, a second one ends the drain with status 1") {
    process slow = start_runner({"--behavior", "slow-drain", "--drain-duration", "1h", "--port", "0"});
    REQUIRE(slow.prints("ready"));
    slow.signal(SIGTERM);
    REQUIRE(slow.prints("draining"));
    // Signals closer than 250 ms count as one.
    CHECK(eventually([&] {
        slow.signal(SIGTERM);
        return slow.ended();
    }));
    CHECK(slow.wait() == 1);
    CHECK(slow.count("draining") == 1);
    CHECK(slow.prints("drain timeout with 5 in-flight"));
}

TEST_CASE("lifecycle: wrong options of the runner, and a wrong environment, are status 64") {
    const std::vector<std::string> wrong[] = {{"--nonsense"},
                                              {"--port"},
                                              {"--behavior", "odd"},
                                              {"--initial-work", "-1x"},
                                              {"--drain-duration", "1 s"},
                                              {"clean"}};
    for (const std::vector<std::string>& each : wrong) {
        process one = start_runner(each);
        CAPTURE(each.front());
        CHECK(one.wait() == 64);
        CHECK(one.output().compare(0, 7, "error: ") == 0);
    }
    process odd = start_runner({}, {{"OJS_LIFECYCLE_ADDR", "nowhere"}});
    CHECK(odd.wait() == 64);
    CHECK(odd.prints("OJS_LIFECYCLE_ADDR"));
}
