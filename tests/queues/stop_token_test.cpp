// ojs_stop_token.hpp: stop_source_of and cancel_on, with the threads of C++20.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include "ojs_stop_token.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <semaphore>
#include <thread>

using namespace std::chrono_literals;

TEST_CASE("stop_source_of: cancelling the token stops its stop tokens and marks the cancellation as seen") {
    ojs::cancel_source source;
    const ojs::stop_source_of linked(source.token());
    const std::stop_token stop = linked.get_token();
    CHECK(stop.stop_possible());
    CHECK_FALSE(stop.stop_requested());
    CHECK_FALSE(source.token().seen());
    source.cancel(ojs::cancel_reason::forced);
    CHECK(stop.stop_requested());
    CHECK(linked.get_token() == stop);
    CHECK(source.token().seen());
}

TEST_CASE("stop_source_of: a token already cancelled gives a stop token that is stopped at once") {
    ojs::cancel_source source;
    source.cancel(ojs::cancel_reason::forced);
    CHECK(ojs::stop_source_of(source.token()).get_token().stop_requested());
    CHECK_FALSE(ojs::stop_source_of(ojs::cancel_token()).get_token().stop_requested());
}

TEST_CASE("stop_source_of: a stop callback runs on the cancelling thread and may destroy the link") {
    ojs::cancel_source source;
    std::optional<ojs::stop_source_of> linked(source.token());
    std::thread::id called_on;
    const std::stop_callback callback(linked->get_token(), [&] {
        called_on = std::this_thread::get_id();
        linked.reset();
    });
    std::thread canceller([&] { source.cancel(ojs::cancel_reason::cancelled); });
    const std::thread::id expected = canceller.get_id();
    canceller.join();
    CHECK(called_on == expected);
    CHECK_FALSE(linked);
}

TEST_CASE("stop_source_of: a cancellation stops tokens of a moved object, not those of a destroyed one") {
    ojs::cancel_source source;
    std::optional<ojs::stop_source_of> first(source.token());
    std::optional<ojs::stop_source_of> second(std::move(*first));
    const std::stop_token kept = second->get_token();
    first.reset();
    ojs::cancel_source other;
    ojs::stop_source_of assigned(other.token());
    const std::stop_token dropped = assigned.get_token();
    assigned = std::move(*second);
    other.cancel(ojs::cancel_reason::cancelled);
    CHECK_FALSE(dropped.stop_requested());
    source.cancel(ojs::cancel_reason::cancelled);
    CHECK(kept.stop_requested());
    {
        ojs::cancel_source late;
        std::optional<ojs::stop_source_of> gone(late.token());
        const std::stop_token left = gone->get_token();
        gone.reset();
        late.cancel(ojs::cancel_reason::cancelled);
        CHECK_FALSE(left.stop_requested());
        CHECK_FALSE(left.stop_possible());
    }
}

TEST_CASE("cancel_on: destroying a jthread cancels the linked source with the given reason") {
    std::atomic<ojs::cancel_reason> reason{ojs::cancel_reason::none};
    std::binary_semaphore linked(0);
    {
        const std::jthread thread([&](const std::stop_token& stop) {
            ojs::cancel_source source;
            const ojs::stop_registration link = ojs::cancel_on(stop, source, ojs::cancel_reason::timeout);
            linked.release();
            (void)source.token().sleep_for(1h);
            reason = source.reason();
        });
        linked.acquire();
        CHECK(reason == ojs::cancel_reason::none);
    }
    CHECK(reason == ojs::cancel_reason::timeout);
}

TEST_CASE("cancel_on: a link to a token already stopped cancels at once, and an ended link does not cancel") {
    std::stop_source stop;
    ojs::cancel_source unlinked;
    { const auto ended = ojs::cancel_on(stop.get_token(), unlinked); }
    stop.request_stop();
    CHECK_FALSE(unlinked.requested());
    ojs::cancel_source source;
    const auto link = ojs::cancel_on(stop.get_token(), source);
    CHECK(source.reason() == ojs::cancel_reason::cancelled);
}

TEST_CASE("cancel_on: with links in both directions, a stop at either end stops both ends once") {
    for (const bool from_token : {true, false}) {
        ojs::cancel_source source;
        std::stop_source stop;
        int called = 0;
        const auto forth = ojs::cancel_on(stop.get_token(), source);
        const auto back = source.token().on_cancel([&] { stop.request_stop(); });
        const auto count = source.token().on_cancel([&] { ++called; });
        from_token ? stop.request_stop() : source.cancel(ojs::cancel_reason::forced);
        CHECK(stop.stop_requested());
        CHECK(source.requested());
        CHECK(called == 1);
    }
}
