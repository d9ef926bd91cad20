// examples/own_loop.cpp: each item that was started is done, or requeued by a second signal; none is lost.
#include "harness.hpp"

using namespace test;

namespace {

// Both consumers have an item in progress.
process start_loop(const std::string& time) {
    process loop({program("own_loop"), time}, {});
    REQUIRE(loop.prints("item 1: started"));
    REQUIRE(loop.prints("item 5: started"));
    return loop;
}

}  // namespace

TEST_CASE("own loop: SIGTERM or SIGINT -> the items in progress finish") {
    for (const int number : {SIGTERM, SIGINT}) {
        process loop = start_loop("500ms");
        loop.signal(number);
        CHECK(loop.wait() == 0);
        CAPTURE(loop.output());
        CHECK(loop.count(": done") == loop.count(": started"));
        CHECK(loop.count(": interrupted, requeued") == 0);
    }
}

TEST_CASE("own loop: a second signal requeues the items in progress, and no other item starts") {
    process loop = start_loop("1h");
    // Signals closer than 250 ms count as one. None after the second: the program may not be there to handle it.
    CHECK(eventually([&] {
        loop.signal(SIGTERM);
        return loop.count(": interrupted, requeued") == 2;
    }));
    CHECK(loop.wait() == 0);
    CAPTURE(loop.output());
    CHECK(loop.count("loop stopped") == 1);
    CHECK(loop.count(": started") == 2);
    CHECK(loop.count(": interrupted, requeued") == 2);
}

TEST_CASE("own loop: after SIGTSTP no item starts until SIGCONT") {
    process loop = start_loop("1s");
    loop.signal(SIGTSTP);
    CHECK(eventually([&] { return loop.count(": done") == loop.count(": started"); }));
    const auto started = loop.count(": started");
    CHECK(started < 8);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));  // in which the next would start
    CHECK(loop.count(": started") == started);
    loop.signal(SIGCONT);
    CHECK(eventually([&] { return loop.count(": started") > started; }));
    loop.signal(SIGTSTP);
    CHECK(eventually([&] { return loop.count(": done") == loop.count(": started"); }));
    loop.signal(SIGTERM);
    CHECK(loop.wait() == 0);
    CHECK(loop.count(": done") == loop.count(": started"));
}
