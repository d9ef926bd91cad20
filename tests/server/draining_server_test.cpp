// draining_server: HTTP as by the small server, its bounds, and above all its end.
#include <deque>
#include <future>

#include "processes.hpp"
#include "server_clients.hpp"

using namespace std::string_literals;
using namespace test;

namespace {
draining_server start(http_handler handler = &echo, draining_server_options options = {},
                      const std::string& address = "0") {
    return started_server<draining_server>(std::move(handler), std::move(options), address);
}

draining_server_options with_threads(std::size_t count) {
    draining_server_options out;
    out.threads = count;
    return out;
}

// Of a request that closes its connection.
std::string last_get(const std::string& target = "/") { return get(target, "Connection: close\r\n"); }

bool says_close(const std::string& answer) { return answer.find("Connection: close") != std::string::npos; }

std::string verdict(const draining_server& server, const std::string& raw) {
    sent client(server, raw);
    return status_of(client.rest());
}

// A drain on a thread of its own.
std::future<drain_result> draining(draining_server& server, const drain_options& options) {
    return std::async(std::launch::async, [&server, options] { return server.drain(options); });
}

// 30 MB under /large, which no socket's buffer holds.
http_response large_or_echo(const http_request& request) {
    return request.target == "/large" ? http_response{200, {}, std::string(30000000, 'x')} : echo(request);
}

drain_options until(time_point deadline) { return {deadline, {}, false}; }
void check_result(const drain_result& of, std::size_t answered, std::size_t refused, std::size_t cut) {
    CHECK(of.answered == answered);
    CHECK(of.refused == refused);
    CHECK(of.aborted == cut);
}
drain_options aborted_by(const cancel_source& abort) { return {time_point::max(), abort.token(), false}; }
drain_options in_time() { return until(peer::soon()); }
drain_options with_successor() { return {peer::soon(), {}, true}; }

struct unconnected {
    int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    unconnected() = default;
    unconnected(const unconnected&) = delete;
    unconnected& operator=(const unconnected&) = delete;
    ~unconnected() { ::close(fd); }

    bool connect(std::uint16_t port) const {
        const sockaddr_in address = peer::loopback(port);
        return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    }
};

int a_listener() {
    const int out = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = peer::loopback(0);
    REQUIRE(::bind(out, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    REQUIRE(::listen(out, 4) == 0);
    return out;
}

// What its clients send before serve() has arrived when the server accepts them: none looks idle.
struct early_clients {
    const int fd = a_listener();

    std::uint16_t port() const {
        sockaddr_in address{};
        socklen_t size = sizeof address;
        ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
        return ntohs(address.sin_port);
    }
    draining_server serve(http_handler handler, const draining_server_options& options) const {
        return start(std::move(handler), options, "fd:" + std::to_string(fd));  // which closes it
    }
};

bool refuses(std::uint16_t port) { return !unconnected().connect(port); }

void await_connections(const draining_server& server, std::size_t count) {
    REQUIRE(eventually([&] { return server.connections() == count; }));
}
}  // namespace

TEST_CASE("draining server: requests on one connection are served in order, pipelined or not") {
    const draining_server server = start();
    sent client(server, get("/1"));
    CHECK(client.answer() == "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: keep-alive\r\n\r\nGET /1 ");
    std::string many = "POST /2 HTTP/1.1\r\nContent-Length: 2\r\nHost: h\r\n\r\nab";
    for (int i = 3; i < 3000; ++i) many += get("/" + std::to_string(i));  // each waits for its turn, none recurses
    std::thread sender([&] { client.send(many + last_get("/last")); });
    const std::string rest = client.rest();
    sender.join();
    std::size_t at = rest.find("POST /2 ab");
    for (int i = 3; i < 3000; ++i) at = rest.find("GET /" + std::to_string(i) + " ", at);
    CHECK(rest.find("GET /last ", at) != std::string::npos);
    CHECK(says_close(rest));
}

TEST_CASE("draining server: slow bytes, HEAD, HTTP/1.0, Expect and bodiless responses are framed correctly") {
    const draining_server server = start([](const http_request& request) {
        http_response out = request.target == "/none" ? http_response{204, {}, "x"} : echo(request);
        out.headers = {{"X-A", "b"}, {"Content-Length", "999"}, {"Transfer-Encoding", "chunked"}};
        return out;
    });
    peer::client client(server.port());
    const std::string expect = "POST /2 HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\nHost: h\r\n\r\n";
    for (const char c : get("/1") + expect) client.send(std::string(1, c));
    std::string both;
    while (both.find("100 Continue\r\n\r\n") == std::string::npos && peer::read_some(client.fd, both)) {
    }
    CHECK(both.find("GET /1") < both.find("100 Continue"));
    client.send("ok");
    CHECK(client.answer().find("POST /2 ok") != std::string::npos);
    client.send(get("/none") + "HEAD /head HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.0\r\n\r\n");
    CHECK(client.rest() ==
          "HTTP/1.1 204 No Content\r\nX-A: b\r\nConnection: keep-alive\r\n\r\n"
          "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 11\r\nConnection: keep-alive\r\n\r\n"
          "HTTP/1.1 200 OK\r\nX-A: b\r\nContent-Length: 6\r\nConnection: close\r\n\r\nGET / ");
}

TEST_CASE("draining server: a refused request gets its error status, and the connection is closed") {
    draining_server_options options;
    options.limits.head = 2000;
    options.limits.body = 1000;
    const draining_server server = start(&echo, options);
    CHECK(verdict(server, "nonsense\r\n\r\n") == "400");
    CHECK(verdict(server, "GET / HTTP/1.1\r\nX: " + std::string(100000, 'x')) == "431");
    CHECK(verdict(server, get("/", "Content-Length: 100000\r\n") + std::string(100000, 'x')) == "413");
    await_connections(server, 0);
}

TEST_CASE("draining server: a handler that throws, ends its thread or answers badly affects no other request") {
    draining_server server = start(
        [](const http_request& request) -> http_response {
            if (request.target == "/throw") throw std::runtime_error("secret");
            if (request.target == "/int") throw 7;
            if (request.target == "/end") pthread_exit(nullptr);
            if (request.target == "/split") return {200, {{"X", "a\r\nSet-Cookie: b"}}, ""};
            return {request.target == "/bad" ? 100 : request.target == "/drop" ? 0 : 200, {}, "x"};
        },
        with_threads(1));
    const std::pair<const char*, std::string> cases[] = {{"/end", ""},  // there is one thread: another takes its place
                                                         {"/drop", ""},   {"/throw", "500"}, {"/int", "500"},
                                                         {"/bad", "500"}, {"/split", "500"}, {"/", "200"}};
    for (int i = 0; i < 3; ++i) {
        for (const auto& each : cases) {
            CAPTURE(each.first);
            sent client(server, get(each.first, "Connection: close\r\n"));
            const std::string answer = client.rest();
            CHECK(status_of(answer) == each.second);
            CHECK(answer.find("secret") == std::string::npos);
            CHECK(answer.find("Set-Cookie") == std::string::npos);
        }
    }
    CHECK(server.drain(in_time()).aborted == 0);
}

TEST_CASE("draining server: with 24 threads, 24 handlers run at once") {
    gate held;
    draining_server server = start(held.handler(), with_threads(24));
    std::deque<sent> clients;
    for (int i = 0; i < 24; ++i) clients.emplace_back(server, get("/held"));
    REQUIRE(held.entered.wait_for(24));
    held.may_go.set();
    for (sent& each : clients) CHECK(each.status() == "200");
    server.drain(until(steady_clock::now()));  // which ends the threads that are parked by now as well
}

TEST_CASE("draining server: a client that is idle, sends slowly or does not read blocks no thread") {
    draining_server_options options = with_threads(1);
    options.request_timeout = 1h;
    draining_server server = start(&large_or_echo, options);
    peer::client idle(server.port());
    sent slow(server, "POST /slow HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nab");
    sent deaf(server, last_get("/large"));
    await_connections(server, 3);
    for (int i = 0; i < 3; ++i) CHECK(verdict(server, last_get()) == "200");
    slow.send("cde");
    CHECK(slow.answer().find("POST /slow abcde") != std::string::npos);
    CHECK(deaf.rest().size() > 30000000);
    idle.send(get("/idle"));
    CHECK(status_of(idle.answer()) == "200");
}

TEST_CASE("draining server: slow requests, slow readers and idle connections end at their timeouts") {
    draining_server_options options;
    options.request_timeout = 100ms;
    CHECK(options.idle_timeout > 70s);  // a proxy's is 60 s, and it must be the first to close
    options.idle_timeout = 100ms;
    const early_clients early;
    peer::client silent(early.port());
    sent kept(early, get("/"));
    sent deaf(early, get("/large"));
    sent trickles(early, "GET / HTTP/1.1\r\n");
    const draining_server server = early.serve(&large_or_echo, options);
    CHECK(kept.status() == "200");
    const time_point give_up = peer::soon();
    while (!peer::readable(trickles.fd, 5) && steady_clock::now() < give_up) peer::send_text(trickles.fd, "X: y\r\n");
    CHECK(trickles.status() == "408");
    peer::client empty(server.port());
    while (!peer::readable(empty.fd, 5) && steady_clock::now() < give_up) peer::send_text(empty.fd, "\r\n");
    CHECK(empty.closed());
    CHECK(silent.closed());
    CHECK(kept.closed());
    await_connections(server, 0);
    CHECK(deaf.rest().size() < 30000000);
    CHECK(steady_clock::now() < give_up);
}

TEST_CASE("draining server: at max_connections, a new client replaces the connection that is idle longest") {
    draining_server_options options;
    options.max_connections = 2;
    const draining_server server = start(&echo, options);
    sent oldest(server, get("/"));
    CHECK(oldest.status() == "200");
    sent idle(server, get("/"));
    CHECK(idle.status() == "200");
    sent waits(server, get("/waits"));
    CHECK(waits.answer().find("GET /waits") != std::string::npos);
    CHECK(oldest.closed());
    idle.send(get("/idle"));
    CHECK(idle.answer().find("GET /idle") != std::string::npos);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && defined(__linux__)
TEST_CASE("draining server: an idle connection keeps no buffer") {
    const std::string large(1000000, 'x');
    const draining_server server = start(&echo, with_threads(1));
    std::deque<sent> clients;
    std::size_t before = 0;
    for (int i = 0; i < 20; ++i) {
        if (i == 5) before = memory_used();
        sent& client = clients.emplace_back(server, get("/", "Content-Length: 1000000\r\n") + large);
        CHECK(client.status() == "200");
    }
    CHECK(memory_used() < before + 7 * large.size());  // 15 of them came since
}

#endif

TEST_CASE("draining server: the buffers of all connections are bounded, and small requests still succeed") {
    draining_server_options options;
    options.max_buffered = 30000;
    options.threads = 1;  // which has read all that came before it answers what comes after
    const draining_server server = start(&echo, options);
    const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 25000\r\n\r\n";
    sent first(server, head + std::string(20000, 'x'));
    CHECK(verdict(server, last_get()) == "200");
    sent second(server, head + std::string(20000, 'x'));
    CHECK(second.status() == "503");
    CHECK(verdict(server, last_get()) == "200");
    first.send(std::string(5000, 'x'));
    CHECK(first.status() == "200");
}

TEST_CASE("draining server: while unread responses exceed max_buffered, requests to the handler get 503") {
    std::atomic<int> made{0};
    draining_server_options options;
    options.max_buffered = 1000000;
    options.threads = 1;  // which is through with one before it begins with the next
    options.request_timeout = 1h;
    options.readiness_path = "/readyz";
    const draining_server server = start(
        [&](const http_request&) {
            ++made;
            return http_response{200, {}, std::string(30000000, 'x')};
        },
        options);
    sent deaf(server, last_get());
    REQUIRE(peer::readable(deaf.fd));
    for (int i = 0; i < 3; ++i) CHECK(verdict(server, last_get()) == "503");
    CHECK(verdict(server, last_get("/readyz")) == "200");
    CHECK(made == 1);
    CHECK(deaf.rest().size() > 30000000);
    CHECK(verdict(server, last_get()) == "200");
}

TEST_CASE("draining server: a drain finishes requests in flight, closes idle connections, refuses new ones") {
    gate held;
    draining_server server = start(held.handler());
    sent idle(server, get("/"));
    CHECK(idle.status() == "200");
    sent busy(server, get("/held"));
    sent half(server, "POST /half HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
    CHECK(half.status() == "100");
    peer::client fresh(server.port());
    await_connections(server, 4);
    REQUIRE(held.entered.wait_for(1));
    CHECK_FALSE(server.draining());
    auto drains = draining(server, in_time());
    CHECK(idle.closed());  // so the drain is past its begin
    CHECK(server.draining());
    CHECK(server.listeners() == std::vector<int>{-1});
    CHECK(refuses(server.port()));
    fresh.send(get("/late"));
    const std::string late = fresh.rest();
    CHECK(status_of(late) == "503");
    CHECK(late.find("Retry-After: 1\r\n") != std::string::npos);
    CHECK(says_close(late));
    half.send("ok");
    const std::string finished = half.rest();
    CHECK(finished.find("POST /half ok") != std::string::npos);
    CHECK(says_close(finished));
    held.may_go.set();
    const std::string answer = busy.rest();
    CHECK(answer.find("GET /held") != std::string::npos);
    CHECK(says_close(answer));
    check_result(drains.get(), 2, 1, 0);
    CHECK(server.drain(in_time()).answered == 2);
    await_connections(server, 0);
}

// [GS 9.1]
TEST_CASE("draining server: requests received before the drain get a response; incomplete ones get 408") {
    gate held;
    draining_server_options options = with_threads(1);
    options.request_timeout = 50ms;
    options.idle_timeout = 1h;
    draining_server server = start(held.handler(), options);
    sent first(server, get("/held"));
    REQUIRE(held.entered.wait_for(1));
    sent unread(server, get("/unread"));  // the one thread is with the first
    sent kept(server, get("/kept"));
    sent half(server, "GET / HT");
    await_connections(server, 4);
    auto drains = draining(server, in_time());
    CHECK(unread.rest().find("GET /unread") != std::string::npos);  // by the drain's own thread
    CHECK(kept.rest().find("GET /kept") != std::string::npos);
    CHECK(status_of(half.rest()) == "408");
    held.may_go.set();
    CHECK(first.rest().find("GET /held") != std::string::npos);
    for (const sent* each : {&first, &half}) ::shutdown(each->fd, SHUT_RDWR);  // else they are waited for
    check_result(drains.get(), 3, 0, 0);
}

TEST_CASE("draining server: at its deadline, or aborted, a drain cuts connections and awaits no handler") {
    const struct {
        const char* name;
        bool is_aborted;
        std::chrono::milliseconds lame_duck;
    } rows[] = {{"deadline", false, 0ms}, {"aborted", true, 0ms}, {"aborted in the lame duck", true, 1h}};
    for (const auto& each : rows) {
        CAPTURE(each.name);
        gate held;
        draining_server_options options;
        options.lame_duck = each.lame_duck;
        draining_server server = start(held.handler(), options);
        sent busy(server, get("/held"));
        sent half(server, "POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
        CHECK(half.status() == "100");
        REQUIRE(held.entered.wait_for(1));
        cancel_source abort;
        auto drains = draining(server, each.is_aborted ? aborted_by(abort) : until(steady_clock::now() + 20ms));
        while (!server.draining()) std::this_thread::yield();
        if (each.is_aborted) abort.cancel(cancel_reason::forced);
        check_result(drains.get(), 0, 0, 2);  // returns, though the handler does not
        CHECK(busy.closed());
        CHECK(half.closed());
        held.may_go.set();  // the server's end waits for it
    }
}

TEST_CASE("draining server: during lame_duck readiness is 503, and all other requests are served") {
    draining_server_options options;
    options.readiness_path = "/readyz";
    options.lame_duck = 1h;
    draining_server server = start(&echo, options);
    const std::string ready = last_get("/readyz?verbose");
    CHECK(verdict(server, ready) == "200");
    sent kept(server, get("/1"));
    CHECK_FALSE(says_close(kept.answer()));
    cancel_source abort;
    auto drains = draining(server, aborted_by(abort));
    while (!server.draining()) std::this_thread::yield();
    CHECK(verdict(server, ready) == "503");
    kept.send(get("/2"));
    const std::string last = kept.rest();
    CHECK(last.find("GET /2") != std::string::npos);
    CHECK(says_close(last));
    CHECK(verdict(server, get("/again")) == "200");
    await_connections(server, 0);  // that one is counted as answered
    abort.cancel(cancel_reason::forced);
    check_result(drains.get(), 3, 0, 0);
    CHECK(refuses(server.port()));
}

TEST_CASE("draining server: a successor takes over the socket and its queue") {
    draining_server first = start();
    sent kept(first, get("/"));
    CHECK(kept.status() == "200");
    const int shared = ::dup(first.listeners()[0]);
    const std::uint16_t port = first.port();
    CHECK(first.drain(with_successor()).aborted == 0);
    sent waits(first, get("/waits"));  // nobody accepts
    CHECK_FALSE(peer::readable(waits.fd, 20));
    const draining_server second = start(&echo, {}, "fd:" + std::to_string(shared));
    CHECK(second.port() == port);
    CHECK(second.address() == "127.0.0.1:" + std::to_string(port));
    CHECK(waits.answer().find("GET /waits") != std::string::npos);
}

TEST_CASE("draining server: with a successor on another socket, connections already queued are still served") {
    gate held;
    draining_server_options options;
    options.reuse_port = true;
    options.max_connections = 1;
    draining_server server = start(held.handler(), options);
    sent first(server, get("/held"));
    REQUIRE(held.entered.wait_for(1));
    sent waits(server, get("/waits"));  // for a place
    auto drains = draining(server, with_successor());
    CHECK(waits.answer().find("GET /waits") != std::string::npos);
    held.may_go.set();
}

// Asks again and again on one connection until it is closed. When that was sent which got no answer, if any.
time_point ask_until_closed(std::uint16_t port, std::atomic<int>& answered) {
    const unconnected client;
    if (!client.connect(port)) return time_point::max();
    for (;;) {
        if (!peer::send_text(client.fd, get("/load"))) return time_point::max();  // nothing of it was sent
        const time_point sent = steady_clock::now();
        const std::string got = peer::read_message(client.fd);
        if (got.find("GET /load ") == std::string::npos) return sent;
        ++answered;
        if (says_close(got)) return time_point::max();
    }
}

// [GS 9.1]
TEST_CASE("draining server: under load, every request sent before the drain gets its response") {
    for (int round = 0; round < 20; ++round) {
        draining_server server = start();
        std::atomic<int> answered{0};
        std::vector<time_point> unanswered(16, time_point::max());
        std::vector<std::thread> clients;
        for (time_point& each : unanswered)
            clients.emplace_back([&] { each = ask_until_closed(server.port(), answered); });
        while (answered < 200) std::this_thread::yield();
        const time_point began = steady_clock::now();
        const drain_result drained = server.drain(in_time());
        for (std::thread& each : clients) each.join();
        for (const time_point& sent : unanswered) CHECK(sent >= began);
        CHECK(drained.aborted == 0);
        await_connections(server, 0);
    }
}

TEST_CASE("draining server: a new connection, or an idle one at a handover, has 100 ms to send a request") {
    for (const bool has_successor : {false, true}) {
        for (const bool asks : {false, true}) {
            CAPTURE(has_successor);
            CAPTURE(asks);
            draining_server server = start();
            peer::client client(server.port());
            if (has_successor) {
                client.send(get("/1"));
                CHECK(status_of(client.answer()) == "200");
            }
            await_connections(server, 1);
            const time_point began = steady_clock::now();
            auto drains = draining(server, has_successor ? with_successor() : in_time());
            while (server.listeners()[0] >= 0) std::this_thread::yield();
            if (asks) peer::send_text(client.fd, get("/2"));
            const bool in_time = steady_clock::now() - began < 100ms;  // unless the machine stood still
            const std::string got = client.rest();
            const drain_result drained = drains.get();
            CHECK((!got.empty() || !asks || !in_time));
            if (got.empty()) CHECK(steady_clock::now() - began >= 100ms);
            CHECK(says_close(got) == !got.empty());
            CHECK(drained.answered == (status_of(got) == "200" ? 1 : 0));
            CHECK(drained.refused == (status_of(got) == "503" ? 1 : 0));
            CHECK(drained.aborted == 0);
        }
    }
}

TEST_CASE("draining server: several addresses and shared ports are accepted, and invalid addresses are refused") {
    const temporary_folder folder;
    const std::string path = folder.file("socket");
    const draining_server both = start(&echo, {}, "0,unix:" + path);
    CHECK(both.address() == "127.0.0.1:" + std::to_string(both.port()) + ",unix:" + path);
    CHECK(verdict(both, last_get()) == "200");
    CHECK(peer::make_client("unix:" + path).send(peer::get("/x"), peer::call())->body == "GET /x ");

    draining_server_options shared;
    shared.reuse_port = true;
    const draining_server one = start(&echo, shared);
    const draining_server other = start(&echo, shared, std::to_string(one.port()));
    CHECK(one.port() == other.port());
    CHECK(code_of(draining_server::start(std::to_string(one.port()), &echo)) == errc::busy);

    const int no_listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (const std::string& bad :
         {""s, "0,"s, "fd:x"s, "fd:999999"s, "systemd:"s, "fd:" + std::to_string(no_listener)}) {
        CAPTURE(bad);
        CHECK(code_of(draining_server::start(bad, &echo)) == errc::invalid_argument);
    }
    ::close(no_listener);
    CHECK_FALSE(draining_server::start("0", nullptr));
}

bool still_listens(int fd) {
    int out = 0;
    socklen_t size = sizeof out;
    return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &out, &size) == 0 && out == 1;
}

TEST_CASE("draining server: an inherited socket stays open after a failed start(), a drain and the destructor") {
    const int listener = a_listener();
    const std::string given = "fd:" + std::to_string(listener);
    for (const std::string& bad : {given + ",host:80", given + "," + given, given + ",systemd:"}) {
        CAPTURE(bad);
        CHECK_FALSE(draining_server::start(bad, &echo));
        CHECK(still_listens(listener));
    }
    const auto passed = [listener] { return "fd:" + std::to_string(::dup(listener)); };
    start(&echo, {}, passed());
    CHECK(still_listens(listener));
    start(&echo, {}, passed()).drain({});
    CHECK(still_listens(listener));
    ::close(listener);
}

#ifdef __linux__
TEST_CASE("draining server: a forked child can destroy its copy while the parent's server keeps serving") {
    await_threads(0);
    const temporary_folder folder;
    const std::string path = folder.file("socket");
    draining_server server = start(&echo, with_threads(1), "0,unix:" + path);
    sent kept(server, get("/1"));
    CHECK(kept.status() == "200");
    const std::vector<int> listeners = server.listeners();
    await_threads(2);  // asleep: none holds the server's lock at the fork
    const pid_t child = forked([&] {
        {
            draining_server moved = std::move(server);
            if (moved.drain().answered != 0) return 1;
        }
        return std::none_of(listeners.begin(), listeners.end(), still_listens) ? 0 : 2;
    });
    CHECK(status_of(child) == 0);
    kept.send(get("/2"));
    CHECK(kept.status() == "200");
    CHECK(verdict(server, last_get()) == "200");
    CHECK(::access(path.c_str(), F_OK) == 0);
}
#endif

TEST_CASE("draining server: systemd: serves the socket of socket activation, and naming it twice is refused") {
    const early_clients early;
    const pid_t child = forked([&] {
        ::dup2(early.fd, 3);
        ::setenv("LISTEN_FDS", "1", 1);
        ::setenv("LISTEN_PID", std::to_string(::getpid()).c_str(), 1);
        for (const char* twice : {"systemd:,systemd:", "fd:3,systemd:"}) {
            if (draining_server::start(twice, &echo) || !still_listens(3)) return 2;
        }
        const result<draining_server> server = draining_server::start("systemd:", &echo);
        return server && server->port() == early.port() ? ::pause() : 1;
    });
    sent client(early, get("/activated"));
    CHECK(client.answer().find("GET /activated") != std::string::npos);
    ::kill(child, SIGKILL);
    CHECK(status_of(child) == -SIGKILL);
    ::close(early.fd);
}

// [GS 9.2]
TEST_CASE("server_shutdown_timeout: the default is 30s, and an invalid variable is refused by name and value") {
    const auto with = [](const char* value) {
        return server_shutdown_timeout(
            [=](const char* name) { return std::string(name) == "OJS_SERVER_SHUTDOWN_TIMEOUT" ? value : nullptr; });
    };
    CHECK(*with(nullptr) == 30s);
    CHECK(*with("1m30s") == 90s);
    for (const char* const bad : {"", "soon"}) {
        CAPTURE(bad);
        const auto refused = with(bad);
        REQUIRE(test::code_of(refused) == errc::invalid_argument);
        CHECK(refused.error().sys_errno == 0);
        CHECK(refused.error().text.find(std::string("OJS_SERVER_SHUTDOWN_TIMEOUT='") + bad + "' ") == 0);
    }
}
