#include "test.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using namespace std::chrono_literals;
using detail::restart_after;
using detail::restart_decision;
using detail::restart_history;

namespace {

restart_options with_policy(restart_policy policy) {
    restart_options out;
    out.policy = policy;
    return out;
}

bool restarts(restart_policy policy, bool failed) {
    const restart_options options = with_policy(policy);
    restart_history history(options);
    return restart_after(options, failed, history, steady_clock::now()).restart_at != time_point::max();
}

}  // namespace

TEST_CASE("restart_policy: which ends lead to a restart") {
    for (const restart_policy each :
         {restart_policy::never, restart_policy::on_failure, restart_policy::always}) {
        CAPTURE(to_string(each));
        CHECK(restarts(each, false) == (each == restart_policy::always));
        CHECK(restarts(each, true) == (each != restart_policy::never));
    }
}

TEST_CASE("restart_policy: pauses double up to the last one, less at most their half") {
    restart_options options;
    options.initial_backoff = 1000ms;
    options.max_backoff = 5000ms;
    options.max_restarts = 0;
    restart_history history(options);
    const time_point now = steady_clock::now();
    history.started_at = now;
    for (const auto longest : {1000ms, 2000ms, 4000ms, 5000ms, 5000ms}) {
        const restart_decision next = restart_after(options, true, history, now);
        CHECK(next.restart_at <= now + longest);
        CHECK(next.restart_at >= now + longest / 2);
    }
}

TEST_CASE("restart_policy: too many restarts end in a degraded group, one that lasts begins anew") {
    restart_options options;
    options.max_restarts = 3;
    options.stable_after = 60s;
    restart_history history(options);
    time_point now = steady_clock::now();
    history.started_at = now;
    for (int i = 0; i < 3; ++i)
        CHECK(restart_after(options, true, history, now).restart_at != time_point::max());
    const restart_decision last = restart_after(options, true, history, now + 59s);
    CHECK(last.degraded);
    CHECK(last.restart_at == time_point::max());
    const restart_decision later = restart_after(options, true, history, now + 60s);
    CHECK(later.restart_at <= now + 61s);  // the first pause again
    CHECK(history.restarts == 1);
}

TEST_CASE("restart_policy: what is not restarted is never a degradation") {
    restart_options options;
    options.max_restarts = 1;
    restart_history history(options);
    history.started_at = steady_clock::now();
    history.restarts = 1;
    CHECK_FALSE(restart_after(options, false, history, history.started_at).degraded);
    CHECK(history.restarts == 1);
}

#endif
