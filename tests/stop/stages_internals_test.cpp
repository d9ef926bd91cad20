// The times of a stop, and why it cancels.
#include <filesystem>

#include "test.hpp"

TEST_CASE("stages: cancelled handlers get cancel_grace, but half of stop_timeout, at most 3 s, is kept for reports") {
    const time_point now = steady_clock::now();
    stop_times times;
    times.cancel_grace = 2s;
    times.reclaim_grace = 500ms;
    const auto wait = [&](cancel_reason reason, std::chrono::milliseconds left) {
        return detail::cancelling_ends(now, reason, times, now + left) - now;
    };
    CHECK(wait(cancel_reason::forced, 10s) == 2s);
    CHECK(wait(cancel_reason::grace_period_expired, 3s) == 1500ms);
    CHECK(wait(cancel_reason::spot_reclaim, 10s) == 500ms);
    times.cancel_grace = 1h;
    CHECK(wait(cancel_reason::forced, 10s) == 7s);
    CHECK(wait(cancel_reason::cancelled, 10s) == 7s);
    times.cancel_grace = 0ms;
    CHECK(wait(cancel_reason::forced, 10s) == 0s);
    CHECK(wait(cancel_reason::cancelled, 10s) == 1s);  // of stop_and_cancel()
    times.stop_timeout = 1s;
    CHECK(detail::last_beat_time(times) == 200ms);
    times.stop_timeout = 1h;
    CHECK(detail::last_beat_time(times) == 500ms);
}

TEST_CASE("options: a relative termination_mode_file is resolved when the worker is constructed") {
    loop_options given;
    given.termination_mode_file = "mode";
    const detail::held_options<loop_options> held(std::move(given));
    CHECK(held.options.termination_mode_file == std::filesystem::current_path().string() + "/mode");
}

TEST_CASE("stages: the lifecycle's state decides the cancel reason, and whether the termination-mode file is read") {
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
}
