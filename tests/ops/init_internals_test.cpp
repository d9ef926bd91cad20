// as_init: in which order it takes pending signals.
#include "test.hpp"

TEST_CASE("as_init: a pending SIGUSR1 is taken before a pending stop signal") {
    sigset_t both;
    sigemptyset(&both);
    for (const int each : {SIGHUP, SIGUSR1}) sigaddset(&both, each);
    sigset_t previous;
    ::pthread_sigmask(SIG_BLOCK, &both, &previous);
    for (const int each : {SIGHUP, SIGUSR1}) ::pthread_kill(::pthread_self(), each);
    CHECK(ojs::detail::take_signal(both) == SIGUSR1);
    CHECK(ojs::detail::take_signal(both) == SIGHUP);
    ::pthread_sigmask(SIG_SETMASK, &previous, nullptr);
}
