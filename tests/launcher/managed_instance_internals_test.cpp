#include "test.hpp"

using namespace ojs::detail;
using state = instance_state;

TEST_CASE("managed_instance: no event moves the state back (TestShutdownStateMachine)") {
    using event = instance_event;
    // How far it is. Ready and unhealthy are as far, and lead to each other.
    const auto rank = [](state of) {
        return is_final(of) ? 6 : of == state::unhealthy ? 3 : of > state::unhealthy ? int(of) - 1 : int(of);
    };
    for (int i = 0; i <= int(state::crashed); ++i) {
        const state from = state(i);
        CAPTURE(i);
        for (int what = 0; what <= int(event::forced); ++what) {
            const state to = next_state(from, event(what));
            CAPTURE(what);
            CHECK(rank(to) >= rank(from));
            if (is_final(from)) CHECK(to == from);
            if (is_stopping_or_ended(from)) CHECK(is_stopping_or_ended(to));
        }
        if (is_final(from)) continue;
        CHECK(next_state(from, event::forced) == state::forced);
        CHECK(next_state(from, event::crashed) == state::crashed);
        CHECK(next_state(from, event::completed) == state::complete);
        CHECK(next_state(from, event::shutdown_requested) ==
              (is_stopping_or_ended(from) ? from : state::shutdown_requested));
        CHECK(next_state(from, event::draining) == (is_stopping_or_ended(from) ? state::draining : from));
    }
}
