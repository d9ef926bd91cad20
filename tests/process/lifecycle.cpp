// tools/lifecycle_runner by itself: its signals and its exit statuses. Its behaviors are seen in rfc_041.cpp.
#include <signal.h>
#include <unistd.h>

#include "harness.hpp"
#include "text.hpp"

using namespace test;

TEST_CASE("lifecycle: SIGTERM drains, a second one ends the drain with status 1") {
    process slow(words(program("lifecycle_runner") + " --behavior slow-drain --drain-duration 1h --port 0"),
                 {});
    REQUIRE(slow.prints("ready"));
    slow.signal(SIGTERM);
    REQUIRE(slow.prints("draining"));
    // Signals closer than 250 ms count as one. Not again and again: one could come after run(), and end the process.
    ::usleep(300 * 1000);
    slow.signal(SIGTERM);
    CHECK(slow.wait() == 1);
    CHECK(slow.count("draining") == 1);
    CHECK(slow.prints("drain timeout with 5 in-flight"));
}

TEST_CASE("lifecycle: a wrong environment is status 64") {
    process odd({program("lifecycle_runner")}, {{"OJS_LIFECYCLE_ADDR", "nowhere"}});
    CHECK(odd.wait() == 64);
    CHECK(odd.prints("OJS_LIFECYCLE_ADDR"));
}
