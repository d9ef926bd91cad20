// signals: the state that a process keeps between installers, and what a child of fork() forgets.
#include "dispositions.hpp"

using namespace ojs;
using namespace std::chrono_literals;
using test::claim;
using test::disposition_of;
using test::send_self;
using test::with_disposition;

namespace {

void foreign_handler(int) {}

TEST_CASE(
    "signals: an installer left SIGHUP handled, and the next does not claim it -> the next restores "
    "SIG_DFL") {
    const with_disposition foreign(SIGINT, foreign_handler);
    for (const int sent : {SIGHUP, SIGUSR1}) {
        CAPTURE(sent);
        const signal_options options{true, true, {SIGHUP, SIGINT}};
        lifecycle target(10min), next(0ms);
        {
            const signals installed = claim(target, options);
            send_self(sent);
        }
        REQUIRE((disposition_of(SIGHUP).sa_flags & SA_SIGINFO) != 0);
        CHECK((disposition_of(SIGTSTP).sa_handler == SIG_DFL));  // stops nothing: is no repetition
        CHECK((disposition_of(SIGINT).sa_handler == foreign_handler));
        CHECK(detail::process.claim.load() == 0);
        { const signals again = claim(next, options); }
        CHECK((disposition_of(SIGHUP).sa_handler == SIG_DFL));
        {
            const signals installed = claim(target, options);
            send_self(sent);
        }
        const signals installed = claim(next, {true});
        CHECK((disposition_of(SIGHUP).sa_handler == SIG_DFL));
    }
}

TEST_CASE("signals: a refused signal_claim stays inactive after the active one is released") {
    auto holds = detail::make_ref<detail::signal_claim>();
    const auto refused = detail::make_ref<detail::signal_claim>();
    CHECK(holds->active());
    holds = {};
    CHECK_FALSE(refused->active());
}

TEST_CASE("signals: fork() in a chained handler -> the child has no chained handler in progress") {
    using detail::process;
    lifecycle target(0ms);
    const signals installed = claim(target);
    const siginfo_t in_progress{};
    for (auto& slot : process.chained) slot.store(&in_progress);
    const pid_t child = test::forked([&] {
        for (auto& slot : process.chained) {
            if (slot.load() != nullptr) return 4;
        }
        lifecycle own(0ms);
        return signals::install(own) ? 0 : 3;
    });
    CHECK(test::status_of(child) == 0);
    for (auto& slot : process.chained) slot.store(nullptr);
}

}  // namespace
