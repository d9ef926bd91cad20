// Cancellation groups and wake-ups, which only the library uses.
#include "test.hpp"

// [River StopAndCancel (a)]
TEST_CASE("cancel_token: cancelling a group cancels all members, and the earlier reason of a member stays") {
    detail::split_source group;
    std::vector<detail::split_source> sources;
    for (int i = 0; i < 3; ++i) sources.push_back(group.member());
    CHECK(sources[0].request(cancel_reason::timeout));
    CHECK_FALSE(sources[1].token().cancelled());
    CHECK(group.cancel_members(cancel_reason::forced));
    CHECK_FALSE(group.cancel_members(cancel_reason::cancelled));
    // Nothing but that store was done.
    CHECK(sources[0].token().reason() == cancel_reason::timeout);
    CHECK(sources[1].token().reason() == cancel_reason::forced);
    CHECK_FALSE(sources[1].request(cancel_reason::timeout));
    CHECK(sources[2].reason() == cancel_reason::forced);
    CHECK_FALSE(sources[2].token().seen());
    CHECK_FALSE(sources[2].token().sleep_for(1h));
    CHECK(sources[2].token().seen());
    bool called = false;
    const cancel_registration late = sources[1].token().on_cancel([&] { called = true; });
    CHECK(called);
    CHECK(group.member().requested());
}

TEST_CASE("wake: a failed write keeps errno") {
    errno = EDOM;
    detail::wake().put(1);
    detail::wake().notify();
    const int after = errno;
    CHECK(after == EDOM);
    CHECK(detail::poll_timeout(time_point::max()) == -1);
    CHECK(detail::poll_timeout(time_point()) == 0);
    CHECK(detail::poll_timeout(time_point::min()) == 0);
    CHECK(detail::poll_timeout(deadline_after(24h * 30)) == 0x7fffffff);
    CHECK((detail::random_half(no_limit) >= 0ms && detail::random_half(no_limit) <= no_limit / 2));
}
