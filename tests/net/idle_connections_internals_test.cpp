// The connections that a client keeps.
#include <sys/socket.h>

#include "test.hpp"

namespace {
detail::connection_ref make_connection() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    ::close(ends[1]);
    return detail::make_ref<detail::connection>(detail::unique_fd(ends[0]));
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }
}  // namespace

TEST_CASE("idle connections: the connection returned last is taken first") {
    detail::idle_connections idle;
    CHECK(!idle.take(steady_clock::now()));
    const detail::connection_ref first = make_connection();
    const detail::connection_ref second = make_connection();
    idle.keep(first);
    idle.keep(second);
    CHECK(idle.take(steady_clock::now()) == second);
    CHECK(idle.take(steady_clock::now()) == first);
    CHECK(!idle.take(steady_clock::now()));
}

TEST_CASE("idle connections: a connection that expired, or had no recent response, is closed") {
    detail::idle_connections idle;
    detail::connection_ref conn = make_connection();
    const int fd = conn->socket.get();
    idle.keep(detail::exchange(conn, {}));
    const time_point now = steady_clock::now();
    idle.drop(now, time_point());
    CHECK(is_open(fd));
    SUBCASE("the connection has expired") { CHECK(!idle.take(now + 1min)); }
    SUBCASE("the connection had no recent response") { idle.drop(now, now + 1s); }
    CHECK(!is_open(fd));
}
