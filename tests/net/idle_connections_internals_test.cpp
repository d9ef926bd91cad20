// The connections that a client keeps, as many threads take them and give them back.
#include <fcntl.h>
#include <sys/socket.h>

#include <atomic>
#include <map>
#include <thread>

#include "test.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace {

detail::connection_ref make_connection(std::chrono::milliseconds max_age = 1h) {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    ::close(ends[1]);
    return detail::make_ref<detail::connection>(detail::unique_fd(ends[0]), max_age);
}

bool is_open(int fd) {
    return ::fcntl(fd, F_GETFD) >= 0;
}

}  // namespace

TEST_CASE(
    "idle connections: a thread takes the connection it returned itself before those of other threads") {
    detail::idle_connections idle(4);
    CHECK(!idle.take(steady_clock::now()));
    std::thread([&] { idle.keep(make_connection()); }).join();
    const detail::connection_ref own = make_connection();
    idle.keep(own);
    std::thread([&] { idle.keep(make_connection()); }).join();
    CHECK(idle.take(steady_clock::now()) == own);
    CHECK(idle.take(steady_clock::now()));  // another's rather than none
    CHECK(idle.take(steady_clock::now()));
    CHECK(!idle.take(steady_clock::now()));
}

TEST_CASE("idle connections: connections above the limit, expired, or without a recent response are closed") {
    detail::idle_connections idle(1);
    detail::connection_ref first = make_connection();
    const int fd = first->socket.get();
    idle.keep(detail::exchange(first, {}));
    detail::connection_ref second = make_connection();
    const int second_fd = second->socket.get();
    idle.keep(detail::exchange(second, {}));
    CHECK(is_open(fd));
    CHECK(!is_open(second_fd));
    const time_point now = steady_clock::now();
    idle.drop(now, time_point());
    CHECK(is_open(fd));
    SUBCASE("expired") {
        CHECK(!idle.take(now + 2h));
    }
    SUBCASE("no response since") {
        idle.drop(now, now + 1s);
    }
    CHECK(!is_open(fd));
    detail::idle_connections none(0);
    none.keep(make_connection());
    CHECK(!none.take(now));
}

TEST_CASE("idle connections: concurrent threads never share a connection, and no connection is lost") {
    constexpr std::size_t count = 3;
    detail::idle_connections idle(count);
    std::map<detail::connection*, std::atomic<int>> users;
    for (std::size_t i = 0; i < count; ++i) {
        const detail::connection_ref made = make_connection();
        users[made.get()] = 0;
        idle.keep(made);
    }
    std::atomic<int> shared{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
        threads.emplace_back([&, i] {
            for (int round = 0; round < 20000; ++round) {
                if (i == 0 && round % 16 == 0) idle.drop(steady_clock::now(), time_point());
                const detail::connection_ref mine = idle.take(steady_clock::now());
                if (!mine) continue;
                if (users.at(mine.get()).fetch_add(1) != 0) ++shared;
                users.at(mine.get()).fetch_sub(1);
                idle.keep(mine);
            }
        });
    }
    for (std::thread& each : threads) each.join();
    CHECK(shared == 0);
    std::size_t left = 0;
    while (idle.take(steady_clock::now())) ++left;
    CHECK(left == count);
}
