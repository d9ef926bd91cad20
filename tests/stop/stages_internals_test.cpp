// The stages of a stop as functions of facts: when each is over, its deadline, and why a stop cancels.
#include "test.hpp"

using namespace ojs;
using namespace std::chrono_literals;

TEST_CASE("stages: each is over by its own facts alone, and the others do not end it") {
    using detail::stage;
    const auto with = [](void (*set)(detail::stop_facts&)) {
        detail::stop_facts out;
        out.may_return = true;
        set(out);
        return out;
    };
    const struct {
        const char* name;
        detail::stop_facts facts;
        std::vector<stage> over;
    } rows[] = {
        {"nothing", with([](detail::stop_facts&) {}), {}},
        {"draining", with([](detail::stop_facts& now) { now.phase = phase::draining; }), {stage::working}},
        {"stopping",
         with([](detail::stop_facts& now) { now.phase = phase::stopping; }),
         {stage::working, stage::draining}},
        {"idle",
         with([](detail::stop_facts& now) { now.is_idle = true; }),
         {stage::draining, stage::cancelling, stage::reporting}},
        {"another signal",
         with([](detail::stop_facts& now) { now.was_signalled = true; }),
         {stage::cancelling, stage::returning}},
        {"a third signal",
         with([](detail::stop_facts& now) { now.has_given_up = true; }),
         {stage::cancelling}},
        {"parted", with([](detail::stop_facts& now) { now.has_parted = true; }), {stage::parting}},
        {"returned", with([](detail::stop_facts& now) { now.may_return = false; }), {stage::returning}},
        {"closed", with([](detail::stop_facts& now) { now.has_closed = true; }), {stage::closing}},
        {"no threads", with([](detail::stop_facts& now) { now.only_hung_threads = true; }), {stage::ending}}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        std::vector<stage> over;
        for (int i = 0; i <= static_cast<int>(stage::over); ++i) {
            if (detail::is_over(static_cast<stage>(i), row.facts)) over.push_back(static_cast<stage>(i));
        }
        CHECK(over == row.over);
    }
}

TEST_CASE("stages: a stage ends at its deadline, calls get the margin, and a late stop still has a moment") {
    using detail::stage;
    const time_point now = steady_clock::now();
    const detail::stop_deadlines ends{now + 1s, now + 2s, now + 3s, now + 4s, now + 5s, now + 10s, 100ms};
    const auto due = [&](stage current) { return detail::deadline_of(current, ends) - now; };
    CHECK(due(stage::draining) == 1s);
    CHECK(due(stage::cancelling) == 2s);
    CHECK(due(stage::reporting) == 3100ms);
    CHECK(due(stage::parting) == 4100ms);
    CHECK(due(stage::returning) == 10100ms);
    CHECK(due(stage::ending) == 10500ms);
    for (const stage endless : {stage::ready, stage::working, stage::closing, stage::over})
        CHECK(detail::deadline_of(endless, ends) == detail::never);
    detail::stop_deadlines in_time = ends;
    in_time.entered = now;
    CHECK(detail::deadline_of(stage::returning, in_time) == now + 5s);
    CHECK(detail::deadline_of(stage::ending, in_time) == now + 5s);
}

TEST_CASE("stages: cancelled handlers have their wait, but half of the stop, at most 3 s, is for reports") {
    const time_point now = steady_clock::now();
    stop_times times;
    times.cancel_wait = 2s;
    times.reclaim_wait = 500ms;
    const auto wait = [&](cancel_reason reason, std::chrono::milliseconds left) {
        return detail::cancelling_ends(now, reason, times, now + left) - now;
    };
    CHECK(wait(cancel_reason::forced, 10s) == 2s);
    CHECK(wait(cancel_reason::grace_period_expired, 3s) == 1500ms);
    CHECK(wait(cancel_reason::spot_reclaim, 10s) == 500ms);
    times.cancel_wait = 1h;
    CHECK(wait(cancel_reason::forced, 10s) == 7s);
    CHECK(wait(cancel_reason::cancelled, 10s) == 7s);
    times.cancel_wait = 0ms;
    CHECK(wait(cancel_reason::forced, 10s) == 0s);
    CHECK(wait(cancel_reason::cancelled, 10s) == 1s);  // of stop_and_cancel()
    times.stop_timeout = 1s;
    CHECK(detail::last_beat_time(times) == 200ms);
    times.stop_timeout = 1h;
    CHECK(detail::last_beat_time(times) == 500ms);
}

TEST_CASE(
    "stages: the state of the lifecycle decides why a stop cancels, and whether a file may say otherwise") {
    lifecycle_state state;
    CHECK(detail::stop_reason(state) == cancel_reason::grace_period_expired);
    state.cancel_requested = true;
    CHECK(detail::stop_reason(state) == cancel_reason::cancelled);
    state.mode = stop_mode::forced;
    CHECK(detail::stop_reason(state) == cancel_reason::forced);
    state.mode = stop_mode::reclaim;
    CHECK(detail::stop_reason(state) == cancel_reason::spot_reclaim);

    lifecycle_state own;
    lifecycle_state shared;
    CHECK_FALSE(detail::needs_mode_file(own, shared));
    own.phase = phase::draining;
    own.cause = {cause_kind::api, 0};
    CHECK_FALSE(detail::needs_mode_file(own, shared));
    shared.cause = {cause_kind::signal, SIGTERM};
    CHECK_FALSE(detail::needs_mode_file(own, shared));  // it does not drain
    shared.phase = phase::draining;
    CHECK(detail::needs_mode_file(own, shared));
    shared.cause.signal = SIGUSR1;
    CHECK_FALSE(detail::needs_mode_file(own, shared));
    own.cause = {cause_kind::signal, SIGINT};
    CHECK(detail::needs_mode_file(own, shared));
    own.phase = phase::stopping;
    CHECK_FALSE(detail::needs_mode_file(own, shared));

    CHECK_FALSE(detail::must_exit_now(own, shared, false));
    shared.exit_now = true;
    CHECK(detail::must_exit_now(own, shared, false));
    CHECK_FALSE(detail::must_exit_now(own, shared, true));
    own.exit_now = true;
    CHECK(detail::must_exit_now(own, shared, true));
}
