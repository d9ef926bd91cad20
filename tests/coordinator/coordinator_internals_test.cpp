#include "test.hpp"

using namespace ojs;

TEST_CASE("coordinator: only the event unblocked moves the state back, from blocked to draining") {
    using detail::drain_event;
    for (int what = 0; what < 6; ++what) {
        for (int now = 0; now < 5; ++now) {
            const auto happens = static_cast<drain_event>(what);
            const auto from = static_cast<shutdown_state>(now);
            const shutdown_state to = detail::next_state(happens, from);
            CHECK(to != shutdown_state::forced);
            if (happens == drain_event::unblocked && from == shutdown_state::blocked)
                CHECK(to == shutdown_state::draining);
            else
                CHECK(to >= from);
        }
    }
}
