// drain_barrier: entries, the last one to leave, waits, and when it may be destroyed.

#include "events.hpp"
#include "test.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace {

time_point guard() {
    return deadline_after(20s);  // only a hang takes this long
}
time_point passed() {
    return steady_clock::now() - 1s;
}

}  // namespace

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

TEST_CASE("drain_barrier: a ticket can be split, also after close()") {
    drain_barrier barrier;
    drain_barrier::ticket inside = barrier.enter();
    drain_barrier::ticket before = inside.split();
    CHECK(static_cast<bool>(before));
    CHECK(barrier.count() == 2);
    barrier.close();
    drain_barrier::ticket after = inside.split();
    CHECK(static_cast<bool>(after));
    CHECK(barrier.count() == 3);
    CHECK(barrier.closed());
    CHECK_FALSE(inside.leave());
    CHECK_FALSE(static_cast<bool>(inside.split()));
    CHECK(barrier.count() == 2);
    CHECK_FALSE(before.leave());
    CHECK(barrier.wait_until(passed()) == 1);
    CHECK(after.leave());
    CHECK(barrier.wait_until(guard()) == 0);
}

TEST_CASE("drain_barrier: wait_until() returns the entries left at the deadline, or 0 once drained") {
    drain_barrier barrier;
    drain_barrier::ticket first = barrier.enter();
    drain_barrier::ticket second = barrier.enter();
    CHECK(barrier.wait_until(time_point::min()) == 2);
    barrier.close();
    CHECK(barrier.wait_until(passed()) == 2);
    CHECK(barrier.wait_until(deadline_after(5ms)) == 2);
    static_cast<void>(first.leave());
    CHECK(barrier.wait_until(passed()) == 1);
    static_cast<void>(second.leave());
    CHECK(barrier.wait_until(passed()) == 0);  // drained counts more than a deadline
    CHECK(barrier.wait_until(time_point::max()) == 0);
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
                CHECK(barrier.wait_until(thread == 1 ? time_point::max() : guard()) == 0);
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

TEST_CASE("drain_barrier: under contention no entry is admitted after close(), and one leave() is the last") {
    for (int round = 0; round < 40; ++round) {
        drain_barrier barrier;
        std::atomic<bool> close_returned{false};
        std::atomic<int> wrong{0}, last_ones{0};
        int inside[4] =
            {};  // plain: what is done inside is seen without any other lock, or a race detector reports it
        drain_barrier::ticket own = barrier.enter();
        test::at_once(4, [&](int thread) {
            while (thread > 0) {
                const bool late = close_returned;
                drain_barrier::ticket ticket = barrier.enter();
                if (!ticket) return;
                if (late) ++wrong;
                ++inside[thread];
                drain_barrier::ticket extra = ticket.split();
                if (!extra) ++wrong;
                if (ticket.leave()) ++wrong;  // the other one is still inside
                --inside[thread];
                if (extra.leave()) ++last_ones;
            }
            for (int i = 0; i < round % 8; ++i) std::this_thread::yield();
            barrier.close();
            close_returned = true;
            if (own.leave()) ++last_ones;
            CHECK(barrier.wait_until(guard()) == 0);
            for (const int each : inside) CHECK(each == 0);
            CHECK(barrier.count() == 0);
        });
        CHECK(wrong == 0);
        CHECK(last_ones == 1);
    }
}

TEST_CASE(
    "drain_barrier: once wait_until() returns 0 the barrier may be destroyed while leave() still runs") {
    for (int round = 0; round < 1000; ++round) {
        auto barrier = std::make_unique<drain_barrier>();
        drain_barrier::ticket tickets[3];
        for (drain_barrier::ticket& each : tickets) each = barrier->enter();
        barrier->close();
        test::at_once(4, [&](int thread) {
            if (thread < 3) return static_cast<void>(tickets[thread].leave());
            CHECK(barrier->wait_until(guard()) == 0);
            barrier.reset();
        });
    }
}
