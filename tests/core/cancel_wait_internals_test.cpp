// Waits that a cancellation ends: on condition variables and on descriptors.
#include <array>
#include <future>
#include <shared_mutex>

#include "processes.hpp"

namespace {
// Tells, once it is watched, when somebody wants it.
struct watched_mutex {
    void lock() {
        if (watched.is_set()) wanted.set();
        mutex.lock();
    }
    void unlock() { mutex.unlock(); }

    std::mutex mutex;
    test::event watched;
    test::event wanted;
};

// One that hangs hangs the test, which waits for it at its end.
bool returned(const std::future<void>& call) { return call.wait_for(test::hang_guard) == std::future_status::ready; }

template <class Condition, class Mutex, class Lock>
void check_wait_ends() {
    detail::split_source source;
    Condition changed;
    Mutex mutex;
    {
        Lock held(mutex);
        CHECK(source.token().wait(changed, held, [] { return true; }));
        CHECK(held.owns_lock());
        CHECK_FALSE(source.has_pending_callbacks());
    }
    test::counter checks;
    const std::future<void> waiter = std::async(std::launch::async, [&] {
        Lock held(mutex);
        CHECK_FALSE(source.token().wait(changed, held, [&] { return checks.add() < 0; }));
        CHECK(held.owns_lock());
    });
    REQUIRE(checks.wait_for(2));
    CHECK(source.cancel(cancel_reason::forced));
    CHECK(returned(waiter));
    CHECK_FALSE(source.has_pending_callbacks());
}

// [River cancellation (d)]
TEST_CASE("cancel_token: a cancellation ends a condition variable wait with any type of mutex and lock") {
    check_wait_ends<std::condition_variable, std::mutex, std::unique_lock<std::mutex>>();
    check_wait_ends<std::condition_variable_any, std::mutex, std::unique_lock<std::mutex>>();
    check_wait_ends<std::condition_variable_any, std::timed_mutex, std::unique_lock<std::timed_mutex>>();
    check_wait_ends<std::condition_variable_any, std::shared_mutex, std::shared_lock<std::shared_mutex>>();
}

TEST_CASE("cancel_token: a cancellation while wait() first calls the predicate -> wait() returns without sleeping") {
    std::mutex mutex;
    std::condition_variable changed;
    detail::split_source source;
    std::unique_lock<std::mutex> held(mutex);
    CHECK_FALSE(source.token().wait(changed, held, [&] {
        CHECK(source.request(cancel_reason::forced));
        return false;
    }));
    CHECK(held.owns_lock());
    CHECK_FALSE(source.has_pending_callbacks());
}

TEST_CASE("cancel_token: a cancellation between wait()'s last call of the predicate and its sleep ends the wait") {
    watched_mutex mutex;
    std::condition_variable_any changed;
    detail::split_source source;
    std::thread canceller([&] {
        static_cast<void>(mutex.watched.wait());
        source.cancel(cancel_reason::forced);
    });
    int checks = 0;
    {
        const std::future<void> waiter = std::async(std::launch::async, [&] {
            std::unique_lock<watched_mutex> held(mutex);
            CHECK_FALSE(source.token().wait(changed, held, [&] {
                if (++checks < 2) return false;
                mutex.watched.set();
                return !mutex.wanted.wait();  // by the canceller, which must not notify us before we sleep
            }));
        });
        const bool ended = returned(waiter);
        CHECK(ended);
        if (!ended) changed.notify_all();
    }
    canceller.join();
    CHECK(checks == 2);
}

TEST_CASE("cancel_token: a predicate that throws leaves the lock held and no callback registered") {
    std::mutex mutex;
    std::condition_variable changed;
    for (const bool while_cancelling : {false, true}) {
        CAPTURE(while_cancelling);
        detail::split_source source;
        test::event last_look;
        std::thread canceller([&] {
            static_cast<void>(last_look.wait());
            if (while_cancelling) source.cancel(cancel_reason::forced);
        });
        std::unique_lock<std::mutex> held(mutex);
        int checks = 0;
        const auto throws = [&]() -> bool {
            if (++checks < 2) return false;
            last_look.set();
            while (while_cancelling && !source.requested()) std::this_thread::yield();
            throw std::runtime_error("from the predicate");
        };
        CHECK_THROWS_AS(static_cast<void>(source.token().wait(changed, held, throws)), std::runtime_error);
        CHECK(held.owns_lock());
        held.unlock();
        canceller.join();
        CHECK_FALSE(source.has_pending_callbacks());
    }
}

bool readable(int fd, int timeout_ms = 0) {
    pollfd one{fd, POLLIN, 0};
    return ::poll(&one, 1, timeout_ms) == 1 && (one.revents & POLLIN) != 0;
}

// [River cancellation (c)]
TEST_CASE("cancel_token: the descriptor becomes readable with the cancellation and stays readable") {
    int fd = -1;
    {
        detail::split_source source;
        const cancel_token token = source.token();
        fd = token.fd().value_or(-1);
        CHECK(fd >= 0);
        CHECK((::fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
        for (const cancel_token& each : {token, source.token()}) CHECK(each.fd().value_or(-2) == fd);
        CHECK_FALSE(readable(fd));
        CHECK_FALSE(token.seen());
        REQUIRE(source.request(cancel_reason::forced));
        for (int i = 0; i < 2; ++i) CHECK(readable(fd));
        CHECK(token.seen());  // a poller calls no other member
        CHECK(token.fd().value_or(-2) == fd);
        CHECK(readable(fd));
    }
    CHECK(::fcntl(fd, F_GETFD) < 0);  // closed with the last copy
}

TEST_CASE("cancel_token: fd() without free descriptors fails with EMFILE, and succeeds when called later") {
    detail::split_source source;
    result<int> refused = 0;
    {
        const test::no_descriptors now;
        refused = source.token().fd();
    }
    CHECK(test::code_of(refused) == errc::system);
    CHECK(refused.error().sys_errno == EMFILE);
    REQUIRE(source.request(cancel_reason::forced));
    CHECK(readable(source.token().fd().value_or(-1)));
}

TEST_CASE("cancel_token: fd() called by several threads during a cancellation returns one readable descriptor") {
    for (int round = 0; round < 50; ++round) {
        detail::split_source source;
        std::atomic<int> notified{0};
        std::array<int, 4> descriptors{};
        test::at_once(4, [&](int thread) {
            if (thread == 0) static_cast<void>(source.request(cancel_reason::forced));
            int& fd = descriptors[static_cast<std::size_t>(thread)];
            fd = source.token().fd().value_or(-1);
            if (readable(fd, 20000)) ++notified;
        });
        CHECK(notified == 4);
        CHECK(std::set<int>(descriptors.begin(), descriptors.end()).size() == 1);
    }
}
}  // namespace
