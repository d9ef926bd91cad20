// Back-off and descriptors.
#include "processes.hpp"

using std::chrono::milliseconds;

namespace {
TEST_CASE("fill_standard_descriptors: closed descriptors 0, 1 and 2 become /dev/null, but not in started programs") {
    const pid_t child = test::forked([] {
        ::close(0), ::close(2);
        detail::fill_standard_descriptors();
        const detail::unique_fd next(::open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (next.get() < 3 || ::fcntl(1, F_GETFD) != 0) return 1;
        return ::fcntl(0, F_GETFD) == FD_CLOEXEC && ::fcntl(2, F_GETFD) == FD_CLOEXEC ? 0 : 2;
    });
    CHECK(test::status_of(child) == 0);
}

TEST_CASE("backoff: the delay doubles up to its maximum, reduced at random by less than half") {
    detail::backoff tested(100ms, 350ms);
    for (const milliseconds full : {100ms, 200ms, 350ms, 350ms}) {
        const milliseconds delay = tested.next();
        CHECK(delay > full / 2);
        CHECK(delay <= full);
    }
    tested.reset();
    CHECK(tested.next() <= 100ms);
}

TEST_CASE("backoff: a Retry-After is the minimum of the delay, with up to half of it added at random") {
    std::set<milliseconds> delays;
    for (int i = 0; i < 100; ++i) delays.insert(detail::backoff(100ms, 350ms).next(60s));
    CHECK(*delays.begin() >= 60s);
    CHECK(*delays.rbegin() < 90s);
    CHECK(*delays.rbegin() - *delays.begin() > 15s);  // all within half of the range: once in 10^28
    CHECK(detail::backoff(100ms, 350ms).next(1ms) > 50ms);
    CHECK(detail::backoff(100ms, 350ms).next(milliseconds::max()) > 24h);
}
}  // namespace
