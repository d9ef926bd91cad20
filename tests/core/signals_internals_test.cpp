// signals: the state that a process keeps between installers.
#include "dispositions.hpp"

using test::claim;
using test::disposition_of;
using test::send_self;

namespace {
TEST_CASE("signals: SIGHUP still handled by an earlier installer -> a new installer without SIGHUP restores SIG_DFL") {
    for (const int sent : {SIGHUP, SIGUSR1}) {
        CAPTURE(sent);
        const signal_options options{true, {SIGHUP, SIGINT}};
        lifecycle target(10min), next(0ms);
        {
            const signals installed = claim(target, options);
            send_self(sent);
        }
        REQUIRE((disposition_of(SIGHUP).sa_flags & SA_SIGINFO) != 0);
        CHECK((disposition_of(SIGTSTP).sa_handler == SIG_DFL));  // stops nothing: is no repetition
        CHECK(detail::process.owner == 0);
        { const signals again = claim(next, options); }
        CHECK((disposition_of(SIGHUP).sa_handler == SIG_DFL));
        {
            const signals installed = claim(target, options);
            send_self(sent);
        }
        const signals installed = claim(next);
        CHECK((disposition_of(SIGHUP).sa_handler == SIG_DFL));
    }
}

TEST_CASE("signals: a refused signal_claim stays inactive after the active one is released") {
    auto holds = detail::make_ref<detail::signal_claim>(detail::wake());
    const auto refused = detail::make_ref<detail::signal_claim>(detail::wake());
    CHECK(holds->active());
    holds = {};
    CHECK_FALSE(refused->active());
}
}  // namespace
