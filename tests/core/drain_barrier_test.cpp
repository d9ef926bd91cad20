// drain_barrier: entries, the last one to leave, waits, and when it may be destroyed.
#include "test.hpp"

TEST_CASE("drain_barrier: after close() no entry is admitted, and only the last leave() returns true") {
    drain_barrier barrier;
    CHECK_FALSE(barrier.closed());
    drain_barrier::ticket first = barrier.enter();
    CHECK(static_cast<bool>(first));
    CHECK(barrier.count() == 1);
    CHECK_FALSE(first.leave());  // the last one, but the barrier is open
    CHECK_FALSE(static_cast<bool>(first));
    CHECK_FALSE(first.leave());  // left already
    CHECK(barrier.count() == 0);
    first = barrier.enter();
    drain_barrier::ticket last = barrier.enter();
    CHECK(static_cast<bool>(barrier.enter()));  // leaves at once
    for (int i = 0; i < 2; ++i) {               // closing once more does nothing
        barrier.close();
        CHECK(barrier.closed());
        CHECK_FALSE(static_cast<bool>(barrier.enter()));
        CHECK_FALSE(barrier.enter().leave());
        CHECK(barrier.count() == 2);
    }
    CHECK_FALSE(first.leave());
    CHECK(barrier.count() == 1);
    CHECK(last.leave());
    CHECK_FALSE(last.leave());
    CHECK(barrier.count() == 0);
    CHECK_FALSE(drain_barrier::ticket().leave());
}

TEST_CASE("drain_barrier: a ticket is movable, and only its last holder leaves") {
    drain_barrier barrier;
    drain_barrier::ticket first = barrier.enter();
    drain_barrier::ticket moved = std::move(first);
    CHECK_FALSE(static_cast<bool>(first));
    CHECK(static_cast<bool>(moved));
    CHECK_FALSE(first.leave());
    CHECK(barrier.count() == 1);
    {
        drain_barrier::ticket other = barrier.enter();
        CHECK(barrier.count() == 2);
        other = std::move(moved);  // leaves its own place
        static_cast<void>(moved.leave());
        CHECK(barrier.count() == 1);
        CHECK(static_cast<bool>(other));
    }
    CHECK(barrier.count() == 0);
}

TEST_CASE("drain_barrier: the last leave() wakes all waiters, or close() does if no entry is left") {
    for (int round = 0; round < 100; ++round) {
        const bool empty = round % 2 == 0;
        drain_barrier barrier;
        drain_barrier::ticket first, second;
        if (!empty) first = barrier.enter();
        if (!empty) second = barrier.enter();
        std::atomic<int> woken{0};
        test::at_once(4, [&](int thread) {
            if (thread > 0) {
                CHECK(barrier.wait_until(thread == 1 ? time_point::max() : deadline_after(test::hang_guard)) == 0);
                CHECK(barrier.closed());  // and not the guard
                ++woken;
                return;
            }
            CHECK_FALSE(first.leave());
            for (int i = 0; i < round; ++i) std::this_thread::yield();  // by then some of them wait
            barrier.close();
            CHECK((empty || woken == 0));  // one is inside
            CHECK(second.leave() == !empty);
        });
    }
}

TEST_CASE("drain_barrier: once wait_until() returns 0 the barrier may be destroyed while leave() still runs") {
    for (int round = 0; round < 1000; ++round) {
        auto barrier = std::make_unique<drain_barrier>();
        drain_barrier::ticket tickets[3];
        for (drain_barrier::ticket& each : tickets) each = barrier->enter();
        barrier->close();
        test::at_once(4, [&](int thread) {
            if (thread < 3) return static_cast<void>(tickets[thread].leave());
            CHECK(barrier->wait_until(deadline_after(test::hang_guard)) == 0);
            barrier.reset();
        });
    }
}
