// cancel_token: reasons, sleeps, and callbacks with their registrations.
#include "thread_sleep.hpp"

// [River cancellation (a)] [River cancellation (b)]
TEST_CASE("cancel_token: the first cancellation reason is kept, and every copy of the token returns it") {
    std::string names = to_string(cancel_reason::none);
    for (const cancel_reason why : {cancel_reason::grace_period_expired, cancel_reason::forced,
                                    cancel_reason::spot_reclaim, cancel_reason::cancelled}) {
        names += std::string(" ") + to_string(why);  // as the backend receives it
        detail::split_source source;
        const cancel_token token = source.token();
        const cancel_token copy = token;
        CHECK_FALSE(token.cancelled());
        CHECK(token.reason() == cancel_reason::none);
        CHECK_FALSE(source.requested());
        CHECK(source.request(why));
        CHECK(token.cancelled());
        CHECK_FALSE(source.request(cancel_reason::cancelled));
        CHECK_FALSE(source.cancel(cancel_reason::forced));
        for (const cancel_token& each : {token, copy, source.token()}) CHECK((each.reason() == why));
    }
    CHECK(names == "none grace_period_expired forced spot_reclaim cancelled");
}

TEST_CASE("cancel_token: a token without a source is never cancelled, sleeps in full, and drops callbacks") {
    const cancel_token token;
    CHECK_FALSE(token.cancelled());
    CHECK(token.reason() == cancel_reason::none);
    CHECK_FALSE(token.seen());
    const detail::split_source source;
    for (const cancel_token& sleeps : {token, source.token()}) {
        const auto before = steady_clock::now();
        CHECK(sleeps.sleep_for(20ms));
        CHECK(steady_clock::now() - before >= 20ms);
        CHECK(sleeps.sleep_until(before + 40ms));
        CHECK(steady_clock::now() >= before + 40ms);
        CHECK(sleeps.sleep_for(-1s));
    }
    const auto held = std::make_shared<int>(0);
    const cancel_registration none = token.on_cancel([held] { ++*held; });
    CHECK(held.use_count() == 1);
    CHECK(*held == 0);
}

// [River cancellation (b)]
TEST_CASE("cancel_token: a cancellation ends sleeps of any length on all threads") {
    for (int round = 0; round < 20; ++round) {
        detail::split_source source;
        std::atomic<int> ended{0};
        test::at_once(4, [&](int thread) {
            const cancel_token token = source.token();
            bool whole = false;
            if (thread == 0) whole = token.sleep_for(std::chrono::nanoseconds::max());
            if (thread == 1) whole = token.sleep_until(time_point::max());
            if (thread == 2) whole = token.sleep_for(1h);
            for (int i = 0; thread == 3 && i < round * 10; ++i) std::this_thread::yield();
            if (thread == 3) CHECK(source.request(cancel_reason::grace_period_expired));
            if (!whole) ++ended;
        });
        CHECK(ended == 4);
        CHECK(source.token().seen());
    }
}

TEST_CASE("cancel_token: seen() is true only after another member function has reported the cancellation") {
    void (*const members[])(const cancel_token&) = {
        [](const cancel_token& token) { static_cast<void>(token.seen()); },
        [](const cancel_token& token) { static_cast<void>(token.cancelled()); },
        [](const cancel_token& token) { static_cast<void>(token.reason()); },
        [](const cancel_token& token) { static_cast<void>(token.sleep_for(0ns)); },
        [](const cancel_token& token) { static_cast<void>(token.sleep_until(time_point())); },
        [](const cancel_token& token) { static_cast<void>(token.on_cancel([] {})); }};
    for (const auto& look : members) {
        CAPTURE(&look - members);
        detail::split_source source;
        const cancel_token token = source.token();
        look(token);
        CHECK_FALSE(token.seen());  // there was nothing to report
        REQUIRE(source.request(cancel_reason::cancelled));
        CHECK_FALSE(token.seen());
        look(token);
        CHECK(token.seen() == (&look != members));
    }
    detail::split_source source;
    CHECK(source.cancel(cancel_reason::cancelled));
    CHECK_FALSE(source.token().seen());
}

// [River cancellation (c)]
TEST_CASE("cancel_token: callbacks run once each, in order of registration, on the cancelling thread") {
    detail::split_source source;
    std::vector<int> calls;
    std::thread::id expected;
    cancel_registration inner;
    std::vector<cancel_registration> registrations;
    for (int i = 0; i < 6; ++i) {
        registrations.push_back(source.token().on_cancel([&, i] {
            calls.push_back(i);
            CHECK((std::this_thread::get_id() == expected));
            if (i == 1) inner = source.token().on_cancel([&] { calls.push_back(100); });
        }));
    }
    CHECK(calls.empty());
    registrations.erase(registrations.begin() + 3);  // moves the others; their callbacks stay registered
    registrations.pop_back();
    std::thread([&] {
        expected = std::this_thread::get_id();
        source.cancel(cancel_reason::forced);
    }).join();
    CHECK(calls == std::vector<int>{0, 1, 2, 4, 100});
    source.cancel(cancel_reason::forced);
    CHECK(calls.size() == 5);
}

TEST_CASE("cancel_token: dropping a registration waits while its callback runs on another thread") {
    for (int round = 0; round < 20; ++round) {
        detail::split_source source;
        test::event inside, dropping;
        std::atomic<bool> dropped{false};
        bool finished = false;  // plain: a race detector would report it
        auto registration = std::make_unique<cancel_registration>(source.token().on_cancel([&] {
            inside.set();
            CHECK(dropping.wait());
            for (int i = 0; i < 20; ++i) std::this_thread::yield();  // a wrong drop returns by now
            CHECK_FALSE(dropped);
            finished = true;
        }));
        std::thread canceller([&source] { source.cancel(cancel_reason::forced); });
        REQUIRE(inside.wait());
        dropping.set();
        registration.reset();
        dropped = true;
        CHECK(finished);
        canceller.join();
    }
}

TEST_CASE("cancel_token: dropping a registration does not wait for another callback that is running") {
    detail::split_source source;
    test::event inside, proceed;
    int other_called = 0;
    const cancel_registration running =
        source.token().on_cancel([&] { inside.set(), static_cast<void>(proceed.wait()); });
    cancel_registration other = source.token().on_cancel([&other_called] { ++other_called; });
    std::thread canceller([&source] { source.cancel(cancel_reason::forced); });
    REQUIRE(inside.wait());
    other = cancel_registration();  // returns while the first callback is held up
    proceed.set();
    canceller.join();
    CHECK(other_called == 0);
}

#if OJS_SHUTDOWN_USE_PROC
// A thread that runs `body` and sleeps in it.
class sleeping_thread {
  public:
    template <class Body>
    explicit sleeping_thread(Body body)
        : thread_([this, body] {
              id_ = test::thread_id();
              started_.set();
              body();
          }) {
        REQUIRE(started_.wait());
        CHECK(test::await_sleep(id_));
    }
    ~sleeping_thread() { thread_.join(); }

  private:
    long id_ = 0;
    test::event started_;
    std::thread thread_;
};

TEST_CASE("cancel_token: a cancellation wakes sleepers and a thread that waits to drop a running callback") {
    detail::split_source source;
    test::event inside, proceed, dropped;
    const auto sleeps = [&] { CHECK_FALSE(source.token().sleep_for(1h)); };
    auto registration = std::make_unique<cancel_registration>(
        source.token().on_cancel([&] { inside.set(), static_cast<void>(proceed.wait()); }));
    const sleeping_thread first(sleeps);
    {
        const sleeping_thread caller([&] { source.run_callbacks(); });
        REQUIRE(inside.wait());
        const sleeping_thread drops([&] { registration.reset(), dropped.set(); });
        proceed.set();
        CHECK(dropped.wait());
    }
    const sleeping_thread second(sleeps);
    CHECK(source.request(cancel_reason::forced));
}
#endif

TEST_CASE("cancel_token: a callback may own registrations, including its own, without a deadlock") {
    struct owner {
        cancel_registration one, two;
    };
    // Called: what it owns deregisters after the call, its own place included.
    for (const bool called : {true, false}) {
        CAPTURE(called);
        detail::split_source source;
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
        } else {
            owned.reset();
            outside = cancel_registration();
            CHECK_FALSE(source.has_pending_callbacks());
        }
        CHECK(source.cancel(cancel_reason::forced));
        CHECK(own == (called ? 1 : 0));
        CHECK(other == 0);  // its registration went with the first callback
        CHECK(witness.expired());
    }
}

TEST_CASE("cancel_token: a callback registered during a cancellation runs at most once, and not after its drop") {
    for (int round = 0; round < 50; ++round) {
        detail::split_source source;
        std::atomic<int> wrong{0};
        test::at_once(4, [&](int thread) {
            if (thread == 0) return static_cast<void>(source.cancel(cancel_reason::forced));
            const cancel_token token = source.token();
            // Each on its own stack: called after the drop it would touch what is gone.
            for (bool over = false; !over;) {
                over = token.cancelled();
                std::atomic<int> calls{0};
                std::atomic<bool> gone{false};
                {
                    const cancel_registration registration = token.on_cancel([&] {
                        if (gone) ++wrong;
                        ++calls;
                    });
                }
                gone = true;
                if (calls > 1) ++wrong;
            }
            // This one is registered after cancelling and kept until it was called.
            test::counter calls;
            const cancel_registration kept = token.on_cancel([&calls] { calls.add(); });
            if (!calls.wait_for(1) || calls.count() != 1) ++wrong;
        });
        CHECK(wrong == 0);
        CHECK_FALSE(source.has_pending_callbacks());
    }
}
