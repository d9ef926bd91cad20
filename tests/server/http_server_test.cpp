#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <string>

#include "events.hpp"
#include "files.hpp"
#include "raw_peer.hpp"

using namespace ojs;
using namespace std::chrono_literals;

namespace {

http_response echo(const http_request& request) {
    return {200, {}, request.method + " " + request.target + " " + request.body, false};
}

http_server start(http_handler handler = &echo, http_server_options options = {},
                  const std::string& address = "0") {
    result<http_server> started = http_server::start(address, std::move(handler), options);
    if (!started) MESSAGE(started.error().text);
    REQUIRE(started);
    return std::move(*started);
}

const std::string host = "Host: h\r\n";

std::string status_of(const std::string& answer) {
    return answer.size() > 12 ? answer.substr(9, 3) : answer;
}

// What the server answers to `raw`; it must close afterwards.
std::string verdict(const http_server& server, const std::string& raw) {
    peer::client client(server.port());
    client.send(raw);
    return status_of(client.rest());
}

}  // namespace

TEST_CASE("server: requests on one connection, in order, pipelined or not") {
    const http_server server = start();
    peer::client client(server.port());
    client.send("GET /1 HTTP/1.1\r\n" + host + "\r\n");
    CHECK(client.answer() == "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: keep-alive\r\n\r\nGET /1 ");
    client.send("POST /2 HTTP/1.1\r\nContent-Length: 2\r\n" + host + "\r\nabGET /3 HTTP/1.1\r\n" + host +
                "\r\nGET /4 HTTP/1.1\r\nConnection: close\r\n" + host + "\r\n");
    const std::string rest = client.rest();
    const std::size_t second = rest.find("POST /2 ab");
    const std::size_t third = rest.find("GET /3 ");
    const std::size_t fourth = rest.find("GET /4 ");
    CHECK(second < third);
    CHECK(third < fourth);
    CHECK(fourth != std::string::npos);
    CHECK(rest.find("Connection: close") != std::string::npos);
}

TEST_CASE("server: HEAD, HTTP/1.0 and answers without a body") {
    const http_server server = start([](const http_request& request) {
        return http_response{request.target == "/none" ? 204 : 200, {{"X-A", "b"}}, "hello", false};
    });
    peer::client client(server.port());
    client.send("HEAD / HTTP/1.1\r\n" + host + "\r\nGET /none HTTP/1.1\r\n" + host +
                "\r\nGET / HTTP/1.0\r\n\r\n");
    CHECK(client.rest() ==
          "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\n"
          "HTTP/1.1 204 No Content\r\nX-A: b\r\nConnection: keep-alive\r\n\r\n"
          "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello");
}

TEST_CASE("server: bytes one by one make the same request") {
    const http_server server = start();
    peer::client client(server.port());
    for (const char c :
         "POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + host + "\r\n3\r\nabc\r\n0\r\n\r\n") {
        client.send(std::string(1, c));
    }
    CHECK(client.answer().find("POST /x abc") != std::string::npos);
}

TEST_CASE("server: Expect: 100-continue is answered before the body is sent") {
    const http_server server = start();
    peer::client client(server.port());
    client.send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" + host + "\r\n");
    CHECK(client.answer() == "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("ok");
    CHECK(status_of(client.answer()) == "200");
}

TEST_CASE("server: bad input is answered and the connection closed") {
    http_server_options options;
    options.limits.head = 2000;
    options.limits.body = 1000;
    const http_server server = start(&echo, options);
    CHECK(verdict(server, "nonsense\r\n\r\n") == "400");
    CHECK(verdict(server, "GET / HTTP/1.1\r\n\r\n") == "400");
    CHECK(verdict(server, "GET / HTTP/1.1\r\nContent-Length: -1\r\n" + host + "\r\n") == "400");
    CHECK(verdict(server, "GET / HTTP/3.0\r\n" + host + "\r\n") == "505");
    CHECK(verdict(server, "GET / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n" + host + "\r\n") == "501");
    CHECK(verdict(server, "GET / HTTP/1.1\r\nX: " + std::string(100000, 'x')) == "431");
    CHECK(verdict(server, "GET / HTTP/1.1\r\nContent-Length: 100000\r\n" + host + "\r\n" +
                              std::string(100000, 'x')) == "413");
    CHECK(verdict(server, std::string("\x16\x03\x01\x02\x00\x01\x00\n", 8)) ==
          "400");  // TLS at the wrong port
}

TEST_CASE("server: handlers that fail, and answers that cannot be sent, become a 500") {
    const http_server server = start([](const http_request& request) -> http_response {
        if (request.target == "/throw") throw std::runtime_error("secret");
        if (request.target == "/int") throw 7;
        if (request.target == "/split") return {200, {{"X", "a\r\nSet-Cookie: b"}}, "", false};
        if (request.target == "/status") return {100, {}, "", false};
        return {200, {{"Content-Length", "999"}, {"Transfer-Encoding", "chunked"}}, "x", false};
    });
    peer::client client(server.port());
    for (const char* target : {"/throw", "/int", "/split", "/status"}) {
        CAPTURE(target);
        client.send(std::string("GET ") + target + " HTTP/1.1\r\n" + host + "\r\n");
        const std::string answer = client.answer();
        CHECK(status_of(answer) == "500");
        CHECK(answer.find("secret") == std::string::npos);
        CHECK(answer.find("Set-Cookie") == std::string::npos);
    }
    client.send("GET /framing HTTP/1.1\r\n" + host + "\r\n");
    CHECK(client.answer() == "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\nx");
}

TEST_CASE("server: drop closes without an answer") {
    const http_server server = start([](const http_request&) { return http_response{200, {}, "x", true}; });
    CHECK(verdict(server, "GET / HTTP/1.1\r\n" + host + "\r\n") == "");
}

TEST_CASE("server: slow requests end in time, however the bytes trickle") {
    http_server_options options;
    options.request_timeout = 100ms;
    const http_server server = start(&echo, options);
    peer::client client(server.port());
    client.send("GET / HTTP/1.1\r\n");
    const time_point give_up = peer::soon();
    while (!peer::readable(client.fd, 5) && steady_clock::now() < give_up)
        peer::send_text(client.fd, "X: y\r\n");
    CHECK(steady_clock::now() < give_up);
    CHECK(status_of(client.rest()) == "408");
}

TEST_CASE("server: an empty line after a request does not make the connection busy") {
    http_server server = start();
    peer::client client(server.port());
    const std::string request = "GET / HTTP/1.1\r\n" + host + "\r\n";
    client.send(request);
    CHECK(status_of(client.answer()) == "200");
    client.send("\r\n" + request);
    CHECK(status_of(client.answer()) == "200");
    client.send("\r\n");
    CHECK(server.stop(peer::soon()) == 0);
    CHECK(client.closed());
}

TEST_CASE("server: idle connections are closed in time") {
    http_server_options options;
    options.idle_timeout = 50ms;
    options.max_connections = 1;
    test::event entered;
    test::event may_go;
    const http_server server = start(
        [&](const http_request& request) {
            entered.set();
            may_go.wait();
            return echo(request);
        },
        options);
    peer::client first(server.port());
    first.send("GET / HTTP/1.1\r\n" + host + "\r\n");
    CHECK(entered.wait());
    // Its request is there before the server sees it, so that it cannot count as idle before that.
    peer::client kept(server.port());
    kept.send("GET / HTTP/1.1\r\n" + host + "\r\n");
    may_go.set();
    CHECK(status_of(kept.answer()) == "200");
    CHECK(kept.closed());
    const peer::client silent(server.port());
    CHECK(silent.closed());
}

TEST_CASE("server: empty lines do not extend the life of a connection without a request") {
    http_server_options options;
    options.request_timeout = 100ms;
    const http_server server = start(&echo, options);
    peer::client client(server.port());
    const time_point give_up = peer::soon();
    while (!peer::readable(client.fd, 5) && steady_clock::now() < give_up) peer::send_text(client.fd, "\r\n");
    CHECK(steady_clock::now() < give_up);
    CHECK(client.rest() == "");
}

TEST_CASE("server: a peer that does not read its answer is given up") {
    http_server_options options;
    options.request_timeout = 100ms;
    options.max_connections = 1;
    test::event entered;
    const http_server server = start(
        [&](const http_request& request) {
            entered.set();
            return http_response{200, {}, std::string(request.target == "/large" ? 50000000 : 1, 'x'), false};
        },
        options);
    peer::client client(server.port());
    client.send("GET /large HTTP/1.1\r\n" + host + "\r\n");
    CHECK(entered.wait());  // so it has the one place
    peer::client next(server.port());
    next.send("GET / HTTP/1.1\r\n" + host + "\r\n");
    CHECK(status_of(next.answer()) == "200");  // and here no longer, though nothing of its answer was read
    CHECK(client.rest().size() < 50000000);
}

TEST_CASE("server: no more connections at a time than allowed, and the others wait their turn") {
    http_server_options options;
    options.max_connections = 2;
    test::event entered[2];
    test::event may_go;
    std::atomic<int> now{0};
    std::atomic<int> most{0};
    const http_server server = start(
        [&](const http_request& request) {
            const int at_a_time = ++now;
            for (int seen = most; seen < at_a_time && !most.compare_exchange_weak(seen, at_a_time);) {
            }
            if (request.target == "/0") entered[0].set();
            if (request.target == "/1") entered[1].set();
            may_go.wait();
            --now;
            return echo(request);
        },
        options);
    const std::string request = "GET / HTTP/1.1\r\n" + host + "\r\n";
    peer::client first(server.port());
    peer::client second(server.port());
    first.send("GET /0 HTTP/1.1\r\n" + host + "\r\n");
    second.send("GET /1 HTTP/1.1\r\n" + host + "\r\n");
    CHECK(entered[0].wait());
    CHECK(entered[1].wait());
    peer::client waiting(server.port());
    waiting.send(request);
    CHECK_FALSE(peer::readable(waiting.fd, 100));  // time to get it wrong in
    may_go.set();
    CHECK(status_of(first.answer()) == "200");
    CHECK(status_of(second.answer()) == "200");
    CHECK(status_of(waiting.answer()) == "200");
    std::vector<std::thread> callers;
    std::atomic<int> good{0};
    for (int i = 0; i < 8; ++i) {
        callers.emplace_back([&] {
            for (int n = 0; n < 20; ++n) {
                peer::client caller(server.port());
                peer::send_text(caller.fd, request);
                good += status_of(caller.answer()) == "200" ? 1 : 0;
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    CHECK(good == 160);
    CHECK(most == 2);
}

TEST_CASE("server: at the limit, the connection that has been idle longest is closed, and no other") {
    http_server_options options;
    options.max_connections = 3;
    options.idle_timeout = options.request_timeout = 1h;
    const http_server server = start(&echo, options);
    const std::string request = "GET / HTTP/1.1\r\n" + host + "\r\n";
    const auto asks = [&](peer::client& who) {
        who.send(request);
        const std::string answer = who.answer();
        CHECK(answer.find("Connection: keep-alive") != std::string::npos);
        return status_of(answer);
    };
    peer::client oldest(server.port());
    peer::client middle(server.port());
    peer::client youngest(server.port());
    CHECK(asks(middle) == "200");
    CHECK(asks(oldest) == "200");
    CHECK(asks(youngest) == "200");
    CHECK(asks(middle) == "200");  // idle since now
    peer::client probe(server.port());
    CHECK(asks(probe) == "200");
    CHECK(oldest.closed());
    CHECK(asks(middle) == "200");
    peer::client another(server.port());
    CHECK(asks(another) == "200");
    CHECK(youngest.closed());
    CHECK(asks(middle) == "200");
    CHECK(asks(probe) == "200");
}

TEST_CASE("server: at the limit, the slowest client is cut if none is idle") {
    http_server_options options;
    options.max_connections = 2;
    options.idle_timeout = options.request_timeout = 1h;
    options.overload_timeout = 50ms;
    const http_server server = start(&echo, options);
    const std::string half = "GET / HTTP/1.1\r\n" + host;
    for (const std::string& text : {half, std::string()}) {  // one that says nothing is slow as well
        peer::client slowest(server.port());
        peer::send_text(slowest.fd, text);
        peer::client slow(server.port());
        peer::send_text(slow.fd, half);
        peer::client probe(server.port());
        probe.send("GET / HTTP/1.1\r\n" + host + "\r\n");
        CHECK(status_of(probe.answer()) == "200");
        CHECK(slowest.closed());
        peer::send_text(slow.fd, "\r\n");  // younger, and still has its place
        CHECK(status_of(slow.answer()) == "200");
    }
}

TEST_CASE("server: empty lines keep no slot from others") {
    http_server_options options;
    options.max_connections = 1;
    options.idle_timeout = options.request_timeout = 1h;
    const http_server server = start(&echo, options);
    peer::client stranger(server.port());
    stranger.send("\r\n");
    for (int i = 0; i < 2; ++i) {  // the second takes the place of a kept connection
        peer::client probe(server.port());
        probe.send("GET / HTTP/1.1\r\n" + host + "\r\n");
        CHECK(status_of(probe.answer()) == "200");
        CHECK(stranger.closed());
    }
}

TEST_CASE("server: at the limit, a busy connection closes after its response") {
    http_server_options options;
    options.max_connections = 1;
    options.idle_timeout = 1h;
    test::event entered;
    test::event may_go;
    const http_server server = start(
        [&](const http_request& request) {
            entered.set();
            may_go.wait();
            return echo(request);
        },
        options);
    const std::string request = "GET / HTTP/1.1\r\n" + host + "\r\n";
    peer::client busy(server.port());
    busy.send(request);
    CHECK(entered.wait());
    peer::client waiting(server.port());
    waiting.send(request);
    may_go.set();
    CHECK(status_of(busy.answer()) == "200");
    CHECK(status_of(waiting.answer()) == "200");
    CHECK(busy.closed());
}

TEST_CASE("server: out of descriptors, it waits without spinning and recovers") {
    const http_server server = start();
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    rlimit limit{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &limit) == 0);
    rlimit tight = limit;
    const int lowest_free = ::dup(fd);
    ::close(lowest_free);
    tight.rlim_cur = static_cast<rlim_t>(lowest_free);
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
    const sockaddr_in address = peer::loopback(server.port());
    const bool connected = ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    peer::send_text(fd, "GET / HTTP/1.1\r\n" + host + "\r\n");
    const std::clock_t before = std::clock();
    const bool early = peer::readable(fd, 500);
    const std::clock_t used = std::clock() - before;
    ::setrlimit(RLIMIT_NOFILE, &limit);
    CHECK(connected);
    CHECK_FALSE(early);
    CHECK(used < CLOCKS_PER_SEC / 4);
    CHECK(status_of(peer::read_message(fd)) == "200");
    ::close(fd);
}

TEST_CASE("server: stop lets requests in flight finish, closes idle ones, and sends Connection: close") {
    std::atomic<bool> entered{false};
    std::atomic<bool> may_go{false};
    http_server server = start([&](const http_request& request) {
        entered = true;
        while (!may_go) std::this_thread::yield();
        return echo(request);
    });
    peer::client idle(server.port());
    peer::client busy(server.port());
    busy.send("GET /busy HTTP/1.1\r\n" + host + "\r\n");
    while (!entered) std::this_thread::yield();
    std::size_t cut = 99;
    std::thread stopper([&] { cut = server.stop(peer::soon()); });
    CHECK(idle.closed());  // so stop() is past the idle ones
    may_go = true;
    const std::string answer = busy.rest();
    CHECK(answer.find("Connection: close") != std::string::npos);
    CHECK(answer.find("GET /busy") != std::string::npos);
    stopper.join();
    CHECK(cut == 0);
    CHECK(server.stop(peer::soon()) == 0);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = peer::loopback(server.port());
    CHECK(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0);
    ::close(fd);
}

TEST_CASE("server: stop cuts what is not done at its deadline, and waits for the handler") {
    std::atomic<bool> entered{false};
    std::atomic<bool> may_go{false};
    http_server server = start([&](const http_request& request) {
        entered = true;
        while (!may_go) std::this_thread::yield();
        return echo(request);
    });
    peer::client busy(server.port());
    busy.send("GET / HTTP/1.1\r\n" + host + "\r\n");
    while (!entered) std::this_thread::yield();
    std::atomic<bool> stopped{false};
    std::size_t cut = 0;
    std::thread stopper([&] {
        cut = server.stop(time_point{});
        stopped = true;
    });
    CHECK(busy.rest() == "");  // cut
    CHECK_FALSE(stopped);
    may_go = true;
    stopper.join();
    CHECK(cut == 1);
}

TEST_CASE("server: a half-sent request does not delay a stop beyond its deadline") {
    http_server server = start();
    peer::client client(server.port());
    client.send("GET / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n" + host + "\r\n");
    CHECK(status_of(client.answer()) == "100");  // so the server is in the middle of the request
    CHECK(server.stop(steady_clock::now() + 50ms) == 1);
    CHECK(client.closed());
}

TEST_CASE("server: destroyed under load, it leaks nothing") {
    for (int round = 0; round < 20; ++round) {
        std::vector<std::thread> callers;
        {
            const http_server server = start();
            http_client client = peer::make_client("http://" + server.address());
            std::atomic<int> answered{0};
            for (int i = 0; i < 3; ++i) {
                callers.emplace_back(
                    [client = peer::make_client("http://" + server.address()), &answered]() mutable {
                        while (client.send(peer::get(), peer::call())) ++answered;
                    });
            }
            while (answered < 10) std::this_thread::yield();
            // `answered` must outlive the callers, so the server goes first by hand.
            const_cast<http_server&>(server).stop(steady_clock::now());
            for (std::thread& caller : callers) caller.join();
        }
    }
}

TEST_CASE("server: addresses") {
    http_server server = start();
    CHECK(server.address() == "127.0.0.1:" + std::to_string(server.port()));
    const result<http_server> second = http_server::start(server.address(), &echo);
    REQUIRE(test::code_of(second) == errc::busy);
    CHECK(second.error().text.find(server.address()) != std::string::npos);
    for (const char* address : {"", "nowhere", "host:80", "1.2.3.4:99999"}) {
        CHECK(test::code_of(http_server::start(address, &echo)) == errc::invalid_argument);
    }
    CHECK_FALSE(http_server::start("0", nullptr));
    server = start();  // the first one stops
    CHECK(peer::make_client("http://" + server.address()).send(peer::get("/x"), peer::call())->body ==
          "GET /x ");
}

TEST_CASE("server and client: IPv6") {
    const peer::dead_port port;
    const result<http_server> server = http_server::start("[::1]:" + port.text(), &echo);
    if (!server) {
        MESSAGE("skipped: ", server.error().text);
        return;
    }
    CHECK(server->address() == "[::1]:" + std::to_string(server->port()));
    const http_request request = peer::get("/six");
    CHECK(peer::make_client("http://" + server->address()).send(request, peer::call())->body == "GET /six ");
    // localhost is 127.0.0.1 first, where nobody listens on that port, and then ::1
    const std::string url = "http://localhost:" + std::to_string(server->port());
    CHECK(peer::make_client(url).send(request, peer::call())->body == "GET /six ");
}

TEST_CASE("server and client: unix sockets") {
    const test::temporary_folder here;
    const std::string path = here.file("sock");
    ::unlink(path.c_str());
    {
        const http_server server = start(&echo, {}, "unix:" + path);
        CHECK(server.address() == "unix:" + path);
        CHECK(server.port() == 0);
        struct stat found {};
        REQUIRE(::stat(path.c_str(), &found) == 0);
        CHECK((found.st_mode & 0777U) == 0600U);
        http_client client = peer::make_client("unix:" + path);
        for (int i = 0; i < 3; ++i) CHECK(client.send(peer::get("/u"), peer::call())->body == "GET /u ");
        CHECK(test::code_of(http_server::start("unix:" + path, &echo)) == errc::busy);
        CHECK(client.send(peer::get("/u"), peer::call()));
    }
    CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("server: the socket file of a dead process is replaced, any other file is not") {
    const test::temporary_folder here;
    const std::string path = here.file("dead");
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    ::close(fd);
    { CHECK(http_server::start("unix:" + path, &echo)); }
    FILE* file = std::fopen(path.c_str(), "w");
    REQUIRE(file != nullptr);
    std::fclose(file);
    const result<http_server> refused = http_server::start("unix:" + path, &echo);
    CHECK_FALSE(refused);
    CHECK(::unlink(path.c_str()) == 0);
}

#if !OJS_SHUTDOWN_SEPARATE  // unix_address is an internal
namespace {

// A folder of its own, with a path in it, gone afterwards.
struct own_folder {
    ~own_folder() {
        ::unlink(path.c_str());
        CHECK(std::filesystem::is_empty(own.path()));  // nothing was left beside it
    }
    int bound(int type) const {
        const int fd = ::socket(AF_UNIX, type | SOCK_CLOEXEC, 0);
        detail::endpoint target;
        target.unix_path = path;
        detail::socket_address address = detail::known_addresses(target)[0];
        REQUIRE(::bind(fd, address.get(), address.length) == 0);
        return fd;
    }
    void leave_dead_socket() const { ::close(bound(SOCK_STREAM)); }
    ino_t inode() const {
        struct stat found {};
        return ::lstat(path.c_str(), &found) == 0 ? found.st_ino : 0;
    }
    result<http_server> serve() const { return http_server::start("unix:" + path, &echo); }

    const test::temporary_folder own;
    const std::string path = own.file("s");
};

}  // namespace

TEST_CASE("server: a unix path that is anything but a dead socket's file stays as it is") {
    const own_folder folder;
    const std::string other = folder.own.file("other");
    int fd = -1;
    const std::function<void()> all[] = {
        [&] { test::write_file(folder.path, ""); },
        [&] { REQUIRE(::symlink("other", folder.path.c_str()) == 0); },  // to nothing
        [&] {
            const int dead = folder.bound(SOCK_STREAM);
            ::close(dead);
            REQUIRE(::rename(folder.path.c_str(), other.c_str()) == 0);
            REQUIRE(::symlink("other", folder.path.c_str()) == 0);  // to a dead socket
        },
        [&] { REQUIRE(::mkfifo(folder.path.c_str(), 0600) == 0); },
        [&] { fd = folder.bound(SOCK_STREAM); },  // it has yet to listen
        [&] {
            fd = folder.bound(SOCK_STREAM);
            REQUIRE(::listen(fd, 1) == 0);
        },
        [&] { fd = folder.bound(SOCK_DGRAM); },
        [&] { fd = folder.bound(SOCK_SEQPACKET); },
    };
    for (const auto& make : all) {
        CAPTURE(&make - all);
        make();
        const ino_t before = folder.inode();
        CHECK(before != 0);
        CHECK(test::code_of(folder.serve()) == errc::busy);
        CHECK(folder.inode() == before);
        if (fd >= 0) ::close(fd);
        fd = -1;
        ::unlink(folder.path.c_str());
        ::unlink(other.c_str());
    }
}

TEST_CASE("server: at its end it removes its own file and no other") {
    const own_folder folder;
    result<http_server> server = folder.serve();
    REQUIRE(server);
    REQUIRE(::unlink(folder.path.c_str()) == 0);
    test::write_file(folder.path, "another's");
    const ino_t another = folder.inode();
    server->stop(peer::soon());
    CHECK(folder.inode() == another);
}

TEST_CASE("server: of several that find a dead socket's file at once, one gets the path") {
    const own_folder folder;
    for (int round = 0; round < 300; ++round) {
        folder.leave_dead_socket();
        std::vector<result<http_server>> servers;
        for (int i = 0; i < 4; ++i) servers.emplace_back(error{errc::system, 0, ""});
        std::vector<std::thread> starters;
        std::atomic<std::size_t> ready{0};
        for (auto& server : servers) {
            starters.emplace_back([&] {
                ++ready;
                while (ready < servers.size()) std::this_thread::yield();
                server = folder.serve();
            });
        }
        for (std::thread& starter : starters) starter.join();
        int owners = 0;
        for (const auto& server : servers) {
            owners += server ? 1 : 0;
            if (!server) CHECK(server.error().code == errc::busy);
        }
        REQUIRE(owners == 1);
        CHECK(peer::make_client("unix:" + folder.path).send(peer::get("/u"), peer::call()));
    }
}

TEST_CASE("server: the lock for taking over a unix path: held, left behind, or not one") {
    const own_folder folder;
    const std::string lock = folder.path + ".ojs-lock";
    folder.leave_dead_socket();
    const ino_t dead = folder.inode();
    test::write_file(lock, "");
    const int holder = ::open(lock.c_str(), O_RDONLY | O_CLOEXEC);
    REQUIRE(::flock(holder, LOCK_EX) == 0);
    result<http_server> server = folder.serve();
    REQUIRE(test::code_of(server) == errc::busy);
    CHECK(folder.inode() == dead);
    ::close(holder);
    test::write_file(lock, "somebody's");
    server = folder.serve();
    REQUIRE_FALSE(server);
    CHECK(::access(lock.c_str(), F_OK) == 0);
    CHECK(folder.inode() == dead);
    test::write_file(lock, "");
    CHECK(folder.serve());
    CHECK(::access(lock.c_str(), F_OK) != 0);
}
#endif

TEST_CASE("client: a full listen queue of a unix socket is waited for, until the deadline") {
    const test::temporary_folder here;
    const std::string path = here.file("full");
    const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(listener, 0) == 0);
    std::vector<int> fillers;
    for (bool room = true; room && fillers.size() < 16;) {
        fillers.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        room = ::connect(fillers.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    }
    http_client client = peer::make_client("unix:" + path);
    const result<http_response> got = client.send(peer::get(), peer::call(steady_clock::now() + 100ms));
    REQUIRE(test::code_of(got) == errc::unreachable);
    CHECK(got.error().sys_errno == ETIMEDOUT);
    for (const int filler : fillers) ::close(filler);
    ::close(listener);
    ::unlink(path.c_str());
}

TEST_CASE(
    "server: the address is free once it has stopped, though a child made by fork() still holds the socket") {
    const auto answer = [](const http_request&) { return http_response{}; };
    result<http_server> first = http_server::start("127.0.0.1:0", answer);
    REQUIRE(first);
    const std::string address = first->address();
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        for (;;) ::pause();
    }
    first->stop(steady_clock::now());
    CHECK(http_server::start(address, answer));
    ::kill(child, SIGKILL);
    CHECK(::waitpid(child, nullptr, 0) == child);
}

#ifdef __linux__
namespace {

// The threads of servers in this process, and how often they have gone to sleep.
struct server_threads {
    server_threads() {
        for (const auto& each : std::filesystem::directory_iterator("/proc/self/task")) {
            std::string name;
            std::getline(std::ifstream(each.path() / "comm"), name);
            if (name != "ojs-accept" && name != "ojs-serve") continue;
            ++count;
            std::ifstream status(each.path() / "status");
            for (std::string line; std::getline(status, line);) {
                if (line.rfind("voluntary_ctxt_switches:", 0) == 0) sleeps += std::stoul(line.substr(24));
                if (line.rfind("State:", 0) == 0 && line.find('S', 6) == std::string::npos) ++awake;
            }
        }
    }
    std::size_t count = 0;
    std::size_t sleeps = 0;
    std::size_t awake = 0;
};

void await_threads(std::size_t count) {
    const time_point give_up = peer::soon();
    server_threads found;
    for (; found.count != count || found.awake > 0; found = {}) {
        REQUIRE(steady_clock::now() < give_up);
        std::this_thread::yield();
    }
}

}  // namespace

TEST_CASE("server: one thread, one more per connection, and none wakes without an event") {
    await_threads(0);
    http_server server = start();
    await_threads(1);
    {
        peer::client first(server.port());
        peer::client second(server.port());
        for (peer::client* each : {&first, &second}) {
            each->send("GET / HTTP/1.1\r\n" + host + "\r\n");
            CHECK(status_of(each->answer()) == "200");
        }
        await_threads(3);
        const server_threads before;
        std::this_thread::sleep_for(600ms);  // time to get it wrong in
        CHECK(server_threads().sleeps == before.sleeps);
    }
    await_threads(1);
    CHECK(server.stop(peer::soon()) == 0);
    await_threads(0);
}
#endif

TEST_CASE("server: a handler that ends its thread ends its connection alone") {
    http_server server = start([](const http_request& request) {
        if (request.target == "/end") pthread_exit(nullptr);
        return echo(request);
    });
    peer::client ended(server.port());
    ended.send("GET /end HTTP/1.1\r\n" + host + "\r\n");
    CHECK(ended.rest().empty());
    CHECK(verdict(server, "GET /1 HTTP/1.1\r\nConnection: close\r\n" + host + "\r\n") == "200");
    CHECK(server.stop(deadline_after(20s)) == 0);
}
