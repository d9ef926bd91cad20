// loop: how it takes, counts and stops the items of any queue.

#include "core/dispositions.hpp"

using test::counter;

namespace {
// Without a record on standard error; each record's message is kept.
struct fixture {
    fixture() {
        options.log.hook = [this](const log_record& record) {
            const std::lock_guard<std::mutex> held(mutex);
            messages.push_back(record.message);
        };
        options.signal_debounce = 0ms;
        options.times.stop_timeout = 60s;
    }
    bool logged(const std::string& message) {
        const std::lock_guard<std::mutex> held(mutex);
        return std::find(messages.begin(), messages.end(), message) != messages.end();
    }

    loop_options options;
    std::mutex mutex;
    std::vector<std::string> messages;
};

// Polls as the event loop of a program would; false at the guard.
template <class Condition>
bool advance_until(loop& turned, Condition holds) {
    for (const auto end = deadline_after(test::hang_guard); !holds(); static_cast<void>(turned.advance())) {
        pollfd ready{turned.fd(), POLLIN, 0};
        ::poll(&ready, 1, 5);
        if (steady_clock::now() > end) return false;
    }
    return true;
}

std::uint64_t in_flight(const loop& of) {
    const worker_report now = of.report();
    return now.claimed - now.completed - now.requeued - now.gone;
}
}  // namespace

TEST_CASE_FIXTURE(fixture, "loop: a stop -> items in flight end, then shutdown steps run, and the status is 0") {
    loop one(options);
    counter begun;
    counter released;
    std::atomic<int> after_stop{0};
    std::atomic<std::uint64_t> left_at_step{99};
    one.on_shutdown("close", [&] { left_at_step = in_flight(one); });
    one.add_consumers(3, [&](consumer& consumer) {
        while (consumer.next()) {
            if (one.phase() != phase::running) ++after_stop;
            const item taken = consumer.begin("item " + std::to_string(consumer.index()));
            begun.add();
            released.wait_for(1);
        }
    });
    std::thread stopper([&] {
        begun.wait_for(3);
        CHECK(in_flight(one) == 3);
        CHECK_FALSE(one.add_consumers(1, [](consumer&) { std::abort(); }));
        CHECK(logged("added to a loop after its start, and not used"));
        CHECK(one.request_stop());
        CHECK_FALSE(one.accepting());
        released.add();
    });
    CHECK(one.run() == 0);
    stopper.join();
    CHECK(after_stop == 0);
    CHECK(left_at_step == 0);
    CHECK(one.report().claimed == 3);
    CHECK(one.report().completed == 3);
    CHECK(one.report().steps.size() == 1);
    CHECK(one.stopped_token().cancelled());
    CHECK(logged("loop stopped"));
}

TEST_CASE_FIXTURE(fixture,
                  "loop: quiet() cancels intake_token(); next() calls keep_alive, and returns only after resume()") {
    loop one(options);
    std::atomic<int> taken{0};
    counter kept_alive;
    counter woken;
    one.add_consumers(1, [&](consumer& consumer) {
        while (consumer.next([&] { kept_alive.add(); })) {
            ++taken;
            static_cast<void>(consumer.intake_token().sleep_for(1h));
            woken.add();
        }
    });
    std::thread driver([&] {
        CHECK(test::eventually([&] { return taken == 1; }));
        CHECK(one.quiet());
        woken.wait_for(1);
        CHECK(one.intake_token().cancelled());
        kept_alive.wait_for(1);
        CHECK(taken == 1);
        CHECK(one.resume());
        CHECK(test::eventually([&] { return taken == 2; }));
        CHECK(test::eventually([&] { return !one.intake_token().cancelled(); }));
        one.request_stop();
    });
    CHECK(one.run() == 0);
    driver.join();
}

TEST_CASE_FIXTURE(fixture, "loop: request_stop_and_cancel() cancels all items, and those that saw it are requeued") {
    loop one(options);
    counter begun;
    counter called;
    one.add_consumers(2, [&](consumer& consumer) {
        while (consumer.next()) {
            const item taken = consumer.begin("an item");
            const auto registration = taken.token().on_cancel([&] { called.add(); });
            begun.add();
            CHECK_FALSE(taken.token().sleep_for(1h));
            CHECK(taken.token().reason() == cancel_reason::cancelled);
            called.wait_for(2);
        }
    });
    std::thread stopper([&] {
        begun.wait_for(2);
        one.request_stop_and_cancel();
    });
    CHECK(one.run() == 0);
    stopper.join();
    CHECK(one.report().requeued == 2);
    CHECK(one.report().interrupted == 2);
    CHECK(one.report().completed == 0);
}

TEST_CASE_FIXTURE(fixture, "loop: a cancel callback blocks -> all items are cancelled, and the phase is stopping") {
    loop one(options);
    counter begun;
    counter released;
    one.add_consumers(2, [&](consumer& consumer) {
        while (consumer.next()) {
            const item taken = consumer.begin("an item");
            const auto registration = taken.token().on_cancel([&] { released.wait_for(1); });
            begun.add();
            CHECK_FALSE(taken.token().sleep_for(1h));
            begun.wait_for(4);
            released.add();
        }
    });
    std::thread stopper([&] {
        begun.wait_for(2);
        one.request_stop_and_cancel();
        CHECK(test::eventually([&] { return one.phase() == phase::stopping; }));
        begun.add();
        begun.add();
    });
    CHECK(one.run() == 0);
    stopper.join();
}

TEST_CASE_FIXTURE(fixture, "loop: a consumer throws -> the exception is logged, the loop stops, and the status is 70") {
    loop one(options);
    one.add_consumers(1, [](consumer& consumer) {
        if (consumer.next()) throw std::runtime_error("no connection");
    });
    one.add_consumers(1, [](consumer& consumer) {
        while (consumer.next()) static_cast<void>(consumer.intake_token().sleep_for(1h));
    });
    CHECK(one.run() == 70);
    CHECK(logged("a consumer threw; the loop stops"));
}

TEST_CASE_FIXTURE(fixture, "loop: all consumers return -> run() ends with status 0") {
    options.concurrency = 4;
    loop one(options);
    std::atomic<unsigned> seen{0};
    one.add_consumers(0, [&](consumer& consumer) { seen += 1U << consumer.index(); });
    CHECK(one.run() == 0);
    CHECK(seen == 0b1111);
}

TEST_CASE_FIXTURE(fixture, "loop: renew gets the ids in flight, in a drain too, and an id that it returns is revoked") {
    options.stuck_after = 10ms;
    options.times.shutdown_grace_period = 1h;  // else its end cancels and checks too
    loop one(options);
    counter renewed;
    std::atomic<bool> loses{false};
    one.on_renew(1ms, [&](const std::vector<std::string>& ids) {
        CHECK(ids == std::vector<std::string>{"a"});
        renewed.add();
        return loses ? ids : std::vector<std::string>();
    });
    one.add_consumers(1, [&](consumer& consumer) {
        if (!consumer.next()) return;
        const item taken = consumer.begin("a");
        renewed.wait_for(2);
        one.request_stop();
        const int so_far = renewed.count();
        renewed.wait_for(so_far + 2);
        test::event cancelled;
        const cancel_registration keep = taken.token().on_cancel([&] { cancelled.set(); });
        loses = true;
        CHECK(cancelled.wait());
        CHECK(taken.token().reason() == cancel_reason::revoked);
        CHECK(test::eventually([&] { return one.report().stuck.size() == 1; }));
    });
    CHECK(one.run() == 0);
    CHECK(one.report().gone == 1);
    CHECK(logged("item lost: another consumer may have it"));
}

TEST_CASE_FIXTURE(fixture, "loop: renew still runs after the last item has ended -> the shutdown steps wait for it") {
    loop one(options);
    test::event renews;
    std::atomic<bool> has_renewed{false};
    one.on_renew(1ms, [&](const std::vector<std::string>&) {
        renews.set();
        CHECK(test::eventually([&] { return one.phase() == phase::stopping; }));
        std::this_thread::sleep_for(100ms);  // in which the step would run
        has_renewed = true;
        return std::vector<std::string>();
    });
    one.on_shutdown("close the connection", [&] { CHECK(has_renewed); });
    one.add_consumers(1, [&](consumer& consumer) {
        if (!consumer.next()) return;
        const item taken = consumer.begin("a");
        renews.wait();
    });
    CHECK(one.run() == 0);
    CHECK(one.report().steps.size() == 1);
}

TEST_CASE_FIXTURE(fixture, "loop: fork() before run() -> SIGTERM in the child ends its loop with status 0") {
    loop one(options);
    one.add_consumers(1, [](consumer& consumer) {
        while (consumer.next()) {
            const item taken = consumer.begin("a");
            ::kill(::getpid(), SIGTERM);
            static_cast<void>(consumer.intake_token().sleep_for(1h));
        }
    });
    CHECK(test::status_of(test::forked([&] { return one.report().claimed == 0 ? one.run() : 1; })) == 0);
}

TEST_CASE_FIXTURE(fixture, "loop: a child forked in a consumer takes no item and exits with status 70") {
    loop one(options);
    const pid_t parent = ::getpid();
    one.add_consumers(1, [&](consumer& consumer) {
        while (consumer.next()) {
            if (::getpid() != parent) ::_exit(1);
            const item taken = consumer.begin("a");
            const pid_t child = ::fork();
            if (child == 0) continue;
            int status = -1;
            ::waitpid(child, &status, 0);
            CHECK(WIFEXITED(status));
            CHECK(WEXITSTATUS(status) == 70);
            one.request_stop();
        }
    });
    CHECK(one.run() == 0);
    CHECK(one.report().completed == 1);
}

TEST_CASE_FIXTURE(fixture, "loop: a consumer never returns -> its thread is logged and abandoned; the status is 75") {
    options.times.stop_timeout = 300ms;
    options.times.shutdown_grace_period = 0ms;
    const auto run = [&](int status_if_logged) {
        options.log.hook = [status_if_logged](const log_record& record) {
            if (record.message == "threads have not ended; exiting without waiting for them") ::_exit(status_if_logged);
        };
        if (status_if_logged == 0) options.log.hook = [](const log_record&) {};
        loop one(options);
        one.add_consumers(1, [&](consumer&) {
            one.request_stop();
            for (;;) ::pause();
        });
        return one.run();
    };
    CHECK(test::status_of(test::forked([&] { return run(3); })) == 3);
    CHECK(test::status_of(test::forked([&] { return run(0); })) == 75);
}

TEST_CASE_FIXTURE(fixture, "loop: advance() in an event loop -> fd() signals each phase; the last item ends it") {
    loop one(options);
    REQUIRE(one.advance());
    item first = one.begin("first");
    item second = one.begin("second");
    CHECK(in_flight(one) == 2);
    const cancel_token taking = one.intake_token();
    CHECK(one.quiet());
    CHECK_FALSE(one.accepting());
    CHECK(advance_until(one, [&] { return taking.cancelled(); }));
    one.request_stop();
    CHECK(advance_until(one, [&] { return one.deadline() < deadline_after(30s); }));
    first.end();
    first.end();
    CHECK(one.advance());
    CHECK_FALSE(one.stopped_token().cancelled());
    second = item();
    CHECK(advance_until(one, [&] { return !one.advance(); }));
    CHECK(one.exit_code() == 0);
    CHECK(one.report().completed == 2);
}

TEST_CASE_FIXTURE(fixture, "loop: an item does not end -> it is listed as stuck and unreported; the status is 75") {
    options.times.stop_timeout = 300ms;
    options.times.shutdown_grace_period = 0ms;
    options.stuck_after = 10ms;
    for (const bool frozen : {false, true}) {
        CAPTURE(frozen);
        messages.clear();
        loop one(options);
        REQUIRE(one.advance());
        item deaf = one.begin("deaf");
        one.request_stop();
        CHECK(advance_until(one, [&] { return deaf.token().cancelled(); }));
        if (frozen) std::this_thread::sleep_for(400ms);  // until after the end of the stop
        CHECK(advance_until(one, [&] { return !one.advance(); }));
        CHECK(one.exit_code() == 75);
        CHECK(one.report().stuck.size() == 1);
        CHECK(one.report().unreported == std::vector<std::string>{"deaf"});
        CHECK(logged("item has not ended in time; its queue will deliver it again"));
        deaf.end();
        CHECK(one.report().completed == 0);
    }
}

TEST_CASE_FIXTURE(fixture, "loop: a thread begins items while run() starts -> all are counted") {  // for TSan
    options.extensions.add(ops({}));
    loop one(options);
    std::thread taker([&] {
        for (int i = 0; i < 1000; ++i) const item taken = one.begin("a");
        one.request_stop();
    });
    CHECK(one.run() == 0);
    taker.join();
    CHECK(one.report().completed == 1000);
}

TEST_CASE_FIXTURE(fixture, "loop: invalid options -> no consumer is called, and the status is 64") {
    options.concurrency = -1;
    options.log.hook = nullptr;
    bool called = false;
    {
        loop one(options);
        one.add_consumers(0, [&](consumer&) { called = true; });
        one.add_consumers(1, [&](consumer&) { called = true; });
        CHECK(one.run() == 64);
        CHECK_FALSE(one.advance());
    }
    CHECK_FALSE(called);
}

TEST_CASE_FIXTURE(fixture, "loop: the destructor waits for the consumers; an item that outlives the loop can end") {
    options.times.stop_timeout = 2s;  // for the item; the consumer ends in it
    item left;
    counter ended;
    {
        loop one(options);
        one.add_consumers(1, [&](consumer& consumer) {
            while (consumer.next()) static_cast<void>(consumer.intake_token().sleep_for(1h));
            ended.add();
        });
        REQUIRE(one.advance());
        left = one.begin("left");
    }
    CHECK(ended.count() == 1);
    left.end();
}

TEST_CASE_FIXTURE(fixture, "loop: a second loop -> status 64; a stop signal before run() -> no item, status 0") {
    lifecycle shared(0ms);
    loop one(options, shared);
    loop other(options, shared);
    CHECK(other.run() == exit_status::usage);
    ::raise(SIGTERM);
    int taken = 0;
    one.add_consumers(1, [&](consumer& consumer) { taken += consumer.next() ? 1 : 0; });
    CHECK(one.run() == 0);
    CHECK(taken == 0);
}

TEST_CASE_FIXTURE(fixture, "loop: a signal that was ignored before it, or loses its handler, is named in the log") {
    const test::with_disposition ignored(SIGTERM, SIG_IGN);
    const test::with_disposition by_nohup(SIGHUP, SIG_IGN);
    options.log.level = log_level::warn;
    loop one(options);
    CHECK(logged("signal stays ignored: it was ignored at process start (nohup, trap '' or &)"));
    CHECK(messages.size() == 1);  // nohup is meant to: no warning
    ::signal(SIGTSTP, SIG_DFL);
    CHECK(one.advance());
    CHECK(logged("signals no longer reach this worker or loop: their handlers were replaced"));
}

TEST_CASE_FIXTURE(fixture, "loop: a report request -> the log lists the items in flight") {
    lifecycle shared(0ms);
    loop one(options, shared);
    REQUIRE(one.advance());
    item order = one.begin("order-7");
    shared.apply(event::report_request, {});
    CHECK(advance_until(one, [&] { return logged("item in flight"); }));
    CHECK(logged("items in flight"));
    order.end();
    shared.apply(event::stop_request, {});
    CHECK(advance_until(one, [&] { return !one.advance(); }));
}

TEST_CASE_FIXTURE(fixture, "loop: the lifecycle that it follows becomes quiet and resumes -> the loop does, too") {
    lifecycle shared(0ms);
    loop one(options, shared);
    REQUIRE(one.advance());
    CHECK(shared.apply(event::quiet_request, {}));
    CHECK_FALSE(one.accepting());  // before the loop has noticed
    CHECK(advance_until(one, [&] { return one.intake_token().cancelled(); }));
    CHECK(shared.apply(event::resume_request, {}));
    CHECK(advance_until(one, [&] { return one.accepting() && !one.intake_token().cancelled(); }));
    CHECK(one.quiet());  // it alone
    CHECK(advance_until(one, [&] { return one.intake_token().cancelled(); }));
    CHECK_FALSE(shared.apply(event::resume_request, {}));
    CHECK(advance_until(one, [&] { return one.accepting() && !one.intake_token().cancelled(); }));
    shared.apply(event::stop_request, {});
    CHECK(advance_until(one, [&] { return !one.advance(); }));
    CHECK(one.exit_code() == 0);
}
