// Asking work to return: reasons, waits that end at once, and callbacks that come and go.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "events.hpp"
#include "test.hpp"

using namespace std::chrono_literals;
using ojs::cancel_reason;
using ojs::cancel_registration;
using ojs::cancel_source;
using ojs::cancel_token;
using ojs::time_point;

TEST_CASE("cancel_token: the first reason stays, and every copy returns it") {
    for (const cancel_reason why : {cancel_reason::grace_period_expired, cancel_reason::forced,
                                    cancel_reason::spot_reclaim, cancel_reason::cancelled}) {
        CAPTURE(ojs::to_string(why));
        cancel_source source;
        const cancel_token token = source.token();
        const cancel_token copy = token;
        CHECK_FALSE(token.cancelled());
        CHECK(token.reason() == cancel_reason::none);
        CHECK_FALSE(source.requested());
        CHECK(source.request(why));
        CHECK(token.cancelled());
        CHECK(token.reason() == why);
        CHECK(copy.reason() == why);
        CHECK_FALSE(source.request(cancel_reason::cancelled));
        CHECK_FALSE(source.cancel(cancel_reason::forced));
        CHECK(copy.reason() == why);
        CHECK(source.token().reason() == why);
    }
}

#if !OJS_SHUTDOWN_SEPARATE  // groups are internal
TEST_CASE("cancel_token: a group is cancelled by one store, and a reason of its own stays") {
    const auto group = ojs::detail::make_ref<ojs::detail::cancel_group>();
    std::vector<cancel_source> sources;
    for (int i = 0; i < 3; ++i) sources.push_back(group->member());
    CHECK(sources[0].request(cancel_reason::timeout));
    CHECK_FALSE(sources[1].token().cancelled());
    CHECK(group->request(cancel_reason::forced));
    CHECK_FALSE(group->request(cancel_reason::cancelled));
    // Nothing but that store was done.
    CHECK(sources[0].token().reason() == cancel_reason::timeout);
    CHECK(sources[1].token().reason() == cancel_reason::forced);
    CHECK_FALSE(sources[1].request(cancel_reason::timeout));
    CHECK_FALSE(sources[2].request(cancel_reason::timeout));
    CHECK(sources[2].reason() == cancel_reason::forced);
    CHECK_FALSE(sources[2].token().seen());
    CHECK_FALSE(sources[2].token().sleep_for(1h));
    CHECK(sources[2].token().seen());
    // A late token reports it as that of another source does.
    bool called = false;
    const cancel_registration keep = sources[1].token().on_cancel([&] { called = true; });
    CHECK(called);
    const cancel_source after = group->member();
    CHECK(after.requested());
}

TEST_CASE("cancel_token: wake_waiters wakes sleepers and pollers") {
    const auto group = ojs::detail::make_ref<ojs::detail::cancel_group>();
    cancel_source source = group->member();
    const ojs::cancel_token token = source.token();
    const ojs::result<int> fd = token.fd();
    REQUIRE(fd);
    std::atomic<bool> slept{true};
    std::thread sleeper([&] { slept = token.sleep_for(1h); });
    CHECK(group->request(cancel_reason::forced));
    source.wake_waiters();
    sleeper.join();
    CHECK_FALSE(slept);
    pollfd readable{*fd, POLLIN, 0};
    CHECK(::poll(&readable, 1, 0) == 1);
}
#endif

TEST_CASE("cancel_token: every reason has the name that the backend receives") {
    CHECK(ojs::to_string(cancel_reason::none) == std::string("none"));
    CHECK(ojs::to_string(cancel_reason::grace_period_expired) == std::string("grace_period_expired"));
    CHECK(ojs::to_string(cancel_reason::forced) == std::string("forced"));
    CHECK(ojs::to_string(cancel_reason::spot_reclaim) == std::string("spot_reclaim"));
    CHECK(ojs::to_string(cancel_reason::cancelled) == std::string("cancelled"));
}

TEST_CASE("cancel_token: of many that cancel at once one is the first, and its reason stays") {
    for (int round = 0; round < 100; ++round) {
        cancel_source source;
        int called = 0;
        const cancel_registration registration = source.token().on_cancel([&called] { ++called; });
        std::atomic<int> ready{0};
        std::atomic<int> first{0};
        std::atomic<int> winner{0};
        std::vector<std::thread> threads;
        for (int t = 1; t <= 4; ++t) {
            threads.emplace_back([&, t] {
                ++ready;
                while (ready < 4) std::this_thread::yield();
                if (source.cancel(static_cast<cancel_reason>(t))) {
                    ++first;
                    winner = t;
                }
            });
        }
        for (std::thread& each : threads) each.join();
        CHECK(first == 1);
        CHECK(source.token().reason() == static_cast<cancel_reason>(winner.load()));
        CHECK(called == 1);
    }
}

TEST_CASE("cancel_token: one of no source is never cancelled, still sleeps, and drops callbacks") {
    const cancel_token token;
    CHECK_FALSE(token.cancelled());
    CHECK(token.reason() == cancel_reason::none);
    CHECK_FALSE(token.seen());
    const auto before = ojs::steady_clock::now();
    CHECK(token.sleep_for(5ms));
    CHECK(ojs::steady_clock::now() - before >= 5ms);
    CHECK(token.sleep_for(-1s));
    const auto held = std::make_shared<int>(0);
    const cancel_registration none = token.on_cancel([held] { ++*held; });
    CHECK(held.use_count() == 1);
    CHECK(*held == 0);
}

TEST_CASE("cancel_token: sleeps that are over at once: no time, past times, cancelled before") {
    cancel_source source;
    const cancel_token token = source.token();
    CHECK(token.sleep_for(0ns));
    CHECK(token.sleep_for(-1ns));
    CHECK(token.sleep_for(std::chrono::nanoseconds::min()));
    CHECK(token.sleep_until(time_point::min()));
    CHECK(token.sleep_until(time_point()));
    CHECK_FALSE(token.seen());
    REQUIRE(source.request(cancel_reason::forced));
    CHECK_FALSE(token.sleep_for(1h));
    CHECK_FALSE(token.sleep_for(std::chrono::nanoseconds::max()));
    CHECK_FALSE(token.sleep_until(time_point::max()));
    CHECK_FALSE(token.sleep_for(-1s));  // cancelled counts more than the time
    CHECK_FALSE(token.sleep_until(time_point::min()));
}

TEST_CASE("cancel_token: a sleep takes the time it was given") {
    cancel_source source;
    const auto before = ojs::steady_clock::now();
    CHECK(source.token().sleep_for(20ms));
    CHECK(ojs::steady_clock::now() - before >= 20ms);
    CHECK(source.token().sleep_until(before + 40ms));
    CHECK(ojs::steady_clock::now() >= before + 40ms);
}

TEST_CASE("cancel_token: cancelling ends every sleep, however long") {
    for (int round = 0; round < 20; ++round) {
        cancel_source source;
        std::atomic<int> ready{0};
        std::atomic<int> ended{0};
        std::vector<std::thread> sleepers;
        for (int t = 0; t < 3; ++t) {
            sleepers.emplace_back([&, t] {
                const cancel_token token = source.token();
                ++ready;
                const bool whole = t == 0   ? token.sleep_for(std::chrono::nanoseconds::max())
                                   : t == 1 ? token.sleep_until(time_point::max())
                                            : token.sleep_for(1h);
                if (!whole) ++ended;
            });
        }
        while (ready < 3) std::this_thread::yield();
        CHECK(ended == 0);
        CHECK(source.request(cancel_reason::grace_period_expired));
        for (std::thread& each : sleepers) each.join();
        CHECK(ended == 3);
        CHECK(source.token().seen());
    }
}

TEST_CASE("cancel_token: seen only once a member has reported it, whichever") {
    const auto after_request = [](void (*look)(const cancel_token&)) {
        cancel_source source;
        const cancel_token token = source.token();
        look(token);
        CHECK_FALSE(token.seen());  // there was nothing to report
        REQUIRE(source.request(cancel_reason::cancelled));
        CHECK_FALSE(token.seen());
        look(token);
        return token.seen();
    };
    CHECK(after_request([](const cancel_token& token) { static_cast<void>(token.cancelled()); }));
    CHECK(after_request([](const cancel_token& token) { static_cast<void>(token.reason()); }));
    CHECK(after_request([](const cancel_token& token) { static_cast<void>(token.sleep_for(0ns)); }));
    CHECK(
        after_request([](const cancel_token& token) { static_cast<void>(token.sleep_until(time_point())); }));
    CHECK(after_request([](const cancel_token& token) { static_cast<void>(token.on_cancel([] {})); }));
    CHECK_FALSE(after_request([](const cancel_token& token) { static_cast<void>(token.seen()); }));

    cancel_source source;
    const cancel_registration registration = source.token().on_cancel([] {});
    REQUIRE(source.request(cancel_reason::cancelled));
    CHECK_FALSE(source.token().seen());
    source.run_callbacks();
    CHECK(source.token().seen());

    cancel_source unheard;
    CHECK(unheard.cancel(cancel_reason::cancelled));
    CHECK_FALSE(unheard.token().seen());
}

TEST_CASE(
    "cancel_token: callbacks run once each, in the order they were registered, on the cancelling thread") {
    cancel_source source;
    const cancel_token token = source.token();
    std::vector<int> calls;
    std::vector<std::thread::id> callers;
    std::vector<cancel_registration> registrations;
    for (int i = 0; i < 20; ++i) {
        registrations.push_back(token.on_cancel([&calls, &callers, i] {
            calls.push_back(i);
            callers.push_back(std::this_thread::get_id());
        }));
    }
    CHECK(calls.empty());
    registrations.erase(registrations.begin() + 3);  // moves the others; their callbacks stay registered
    registrations.pop_back();
    std::thread canceller([&source] { source.cancel(cancel_reason::forced); });
    const std::thread::id cancelling = canceller.get_id();
    canceller.join();
    const std::vector<int> expected = {0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18};
    CHECK(calls == expected);
    for (const std::thread::id caller : callers) CHECK((caller == cancelling));
    source.run_callbacks();
    source.cancel(cancel_reason::forced);
    CHECK(calls.size() == expected.size());
}

TEST_CASE("cancel_token: has_pending_callbacks is true if run_callbacks would call anything") {
    cancel_source source;
    int called = 0;
    CHECK_FALSE(source.has_pending_callbacks());
    cancel_registration first = source.token().on_cancel([&called] { ++called; });
    CHECK(source.has_pending_callbacks());
    first = cancel_registration();
    CHECK_FALSE(source.has_pending_callbacks());
    const cancel_registration second = source.token().on_cancel([&called] { ++called; });
    REQUIRE(source.request(cancel_reason::forced));
    CHECK(called == 0);  // request() calls nobody
    CHECK(source.has_pending_callbacks());
    source.run_callbacks();
    CHECK(called == 1);
    CHECK_FALSE(source.has_pending_callbacks());
}

TEST_CASE("cancel_token: registering with a cancelled token calls at once, and once") {
    cancel_source source;
    REQUIRE(source.cancel(cancel_reason::cancelled));
    int called = 0;
    std::thread::id caller;
    {
        const cancel_registration registration = source.token().on_cancel([&called, &caller] {
            ++called;
            caller = std::this_thread::get_id();
        });
        CHECK(called == 1);
        CHECK((caller == std::this_thread::get_id()));
    }
    source.run_callbacks();
    CHECK(called == 1);
    CHECK_FALSE(source.has_pending_callbacks());
}

TEST_CASE("cancel_token: a callback registered from within one is called as well") {
    cancel_source source;
    const cancel_token token = source.token();
    std::vector<int> calls;
    cancel_registration inner;
    const cancel_registration outer = token.on_cancel([&] {
        calls.push_back(1);
        inner = token.on_cancel([&calls] { calls.push_back(3); });
        calls.push_back(2);
    });
    CHECK(source.cancel(cancel_reason::forced));
    REQUIRE(calls.size() == 3);
    CHECK(calls[0] == 1);
}

TEST_CASE(
    "cancel_token: a callback whose registration is gone is not called, and what it held goes with it") {
    cancel_source source;
    const auto held = std::make_shared<int>(0);
    {
        cancel_registration registration = source.token().on_cancel([held] { ++*held; });
        const cancel_registration moved = std::move(registration);
        CHECK(held.use_count() == 2);
    }
    CHECK(held.use_count() == 1);
    {
        cancel_registration replaced = source.token().on_cancel([held] { ++*held; });
        replaced = source.token().on_cancel([held] { *held += 10; });
        CHECK(held.use_count() == 2);
        CHECK(source.cancel(cancel_reason::forced));
        CHECK(*held == 10);
        CHECK(held.use_count() == 1);  // as soon as it was called
    }
}

TEST_CASE("cancel_token: a registration outlives the source and the token") {
    const auto held = std::make_shared<int>(0);
    cancel_registration registration;
    {
        const cancel_source source;
        registration = source.token().on_cancel([held] {});
    }
    CHECK(held.use_count() == 2);
    registration = cancel_registration();
    CHECK(held.use_count() == 1);
}

TEST_CASE("cancel_token: dropping a registration waits for its callback running on another thread") {
    for (int round = 0; round < 20; ++round) {
        cancel_source source;
        test::event inside;
        test::event go_on;
        std::atomic<bool> dropping{false};
        std::atomic<bool> dropped{false};
        bool finished = false;  // plain: a race detector would report it
        bool early = false;
        auto registration = std::make_unique<cancel_registration>(source.token().on_cancel([&] {
            inside.set();
            static_cast<void>(go_on.wait());
            early = dropped;
            finished = true;
        }));
        std::thread canceller([&source] { source.cancel(cancel_reason::forced); });
        REQUIRE(inside.wait());
        std::thread dropper([&] {
            dropping = true;
            registration.reset();
            dropped = true;
        });
        while (!dropping) std::this_thread::yield();
        for (int i = 0; i < 20; ++i) std::this_thread::yield();  // time to get it wrong in
        CHECK_FALSE(dropped);
        go_on.set();
        dropper.join();
        CHECK(finished);
        CHECK_FALSE(early);
        canceller.join();
    }
}

TEST_CASE("cancel_token: dropping another registration does not wait for a callback that runs") {
    cancel_source source;
    test::event inside;
    test::event go_on;
    int other_called = 0;
    const cancel_registration running = source.token().on_cancel([&] {
        inside.set();
        static_cast<void>(go_on.wait());
    });
    cancel_registration other = source.token().on_cancel([&other_called] { ++other_called; });
    std::thread canceller([&source] { source.cancel(cancel_reason::forced); });
    REQUIRE(inside.wait());
    other = cancel_registration();  // returns while the first callback is held up
    go_on.set();
    canceller.join();
    CHECK(other_called == 0);
}

TEST_CASE("cancel_token: a callback may drop its own registration") {
    cancel_source source;
    auto registration = std::make_unique<cancel_registration>();
    const auto held = std::make_shared<int>(0);
    int after = 0;
    *registration = source.token().on_cancel([&registration, held] {
        registration.reset();
        ++*held;  // and goes on, what it holds still there
    });
    const cancel_registration next = source.token().on_cancel([&after] { ++after; });
    CHECK(source.cancel(cancel_reason::forced));
    CHECK(registration == nullptr);
    CHECK(*held == 1);
    CHECK(held.use_count() == 1);
    CHECK(after == 1);
}

TEST_CASE(
    "cancel_token: a callback that owns registrations may go in every way there is, without a deadlock") {
    struct owner {
        cancel_registration one;
        cancel_registration two;
    };
    // Called: what it owns deregisters after the call, its own place included.
    for (const bool called : {true, false}) {
        CAPTURE(called);
        cancel_source source;
        int other = 0;
        int own = 0;
        auto owned = std::make_shared<owner>();
        const std::weak_ptr<owner> witness = owned;
        owner* raw = owned.get();
        cancel_registration outside = source.token().on_cancel([owned, &own] { ++own; });
        raw->two = source.token().on_cancel([&other] { ++other; });
        if (called) {
            raw->one = std::move(outside);  // the callback owns its own registration
            owned.reset();
            CHECK(source.cancel(cancel_reason::forced));
            CHECK(own == 1);
            CHECK(other == 0);  // its registration went with the first callback
        } else {
            owned.reset();
            outside = cancel_registration();
            CHECK_FALSE(source.has_pending_callbacks());
            CHECK(source.cancel(cancel_reason::forced));
            CHECK(own + other == 0);
        }
        CHECK(witness.expired());
    }
}

TEST_CASE("cancel_token: what a callback throws is dropped, and the next one is called") {
    cancel_source source;
    std::vector<int> calls;
    const cancel_registration first = source.token().on_cancel([&calls] {
        calls.push_back(1);
        throw std::runtime_error("nobody hears this");
    });
    const cancel_registration second = source.token().on_cancel([&calls] {
        calls.push_back(2);
        throw 7;
    });
    const cancel_registration third = source.token().on_cancel([&calls] { calls.push_back(3); });
    CHECK(source.cancel(cancel_reason::forced));
    CHECK(calls == std::vector<int>{1, 2, 3});
    const cancel_registration late = source.token().on_cancel([&calls] {
        calls.push_back(4);
        throw std::runtime_error("nor this");
    });
    CHECK(calls.size() == 4);
}

TEST_CASE(
    "cancel_token: registering and dropping race with cancelling: each callback runs once or not at all") {
    for (int round = 0; round < 50; ++round) {
        cancel_source source;
        constexpr int threads = 3;
        std::atomic<int> ready{0};
        std::atomic<int> kept_but_not_called{0};
        std::atomic<int> called_twice{0};
        std::atomic<int> called_after_drop{0};
        std::vector<std::thread> workers;
        for (int t = 0; t < threads; ++t) {
            workers.emplace_back([&] {
                const cancel_token token = source.token();
                ++ready;
                // Each on its own stack: called after the drop it would touch what is gone.
                for (bool over = false; !over;) {
                    over = token.cancelled();
                    std::atomic<int> calls{0};
                    std::atomic<bool> gone{false};
                    {
                        const cancel_registration registration = token.on_cancel([&] {
                            if (gone) ++called_after_drop;
                            ++calls;
                        });
                    }
                    gone = true;
                    if (calls > 1) ++called_twice;
                }
                // This one is registered after cancelling and kept until it was called.
                std::atomic<int> calls{0};
                const cancel_registration kept = token.on_cancel([&calls] { ++calls; });
                const auto until = ojs::steady_clock::now() + 20s;
                while (calls == 0 && ojs::steady_clock::now() < until) std::this_thread::yield();
                if (calls != 1) ++kept_but_not_called;
            });
        }
        while (ready < threads) std::this_thread::yield();
        CHECK(source.cancel(cancel_reason::forced));
        for (std::thread& each : workers) each.join();
        CHECK(called_twice == 0);
        CHECK(called_after_drop == 0);
        CHECK(kept_but_not_called == 0);
        CHECK_FALSE(source.has_pending_callbacks());
    }
}
