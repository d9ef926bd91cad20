// Servers and a loop made of the building blocks: each starts, works, and ends by SIGTERM without losing what has begun; a
// second signal or the timeout ends what does not end by itself.
#include "harness.hpp"
#include "raw_peer.hpp"

namespace {
// A program that prints "... on 127.0.0.1:PORT".
class own_server {
  public:
    explicit own_server(const std::vector<std::string>& command, const environment& extra = {})
        : program_(command, extra) {
        REQUIRE_MESSAGE(program_.prints(" on 127.0.0.1:"), program_.output());
        const std::string& said = program_.output();
        const std::size_t at = said.find("127.0.0.1:") + 10;
        port_ = static_cast<std::uint16_t>(std::atoi(said.c_str() + at));
    }
    process& of() { return program_; }
    std::uint16_t port() const { return port_; }

  private:
    process program_;
    std::uint16_t port_ = 0;
};

std::string line_from(const peer::client& server) {
    std::string out;
    while (out.find('\n') == std::string::npos && peer::read_some(server.fd, out)) {
    }
    return out;
}

const std::string request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
}  // namespace

// [GS 9.1]
TEST_CASE("custom server: SIGTERM -> requests in flight get a response, then steps run in order") {
    own_server server({program("http_server_drain")});
    peer::client first(server.port());
    first.send(request);
    peer::client second(server.port());
    second.send(request);
    peer::client silent(server.port());  // a preconnect, or a balancer's check: aborts nothing
    server.of().signal(SIGTERM);
    CHECK(first.rest().find("hello") != std::string::npos);
    CHECK(second.rest().find("hello") != std::string::npos);
    CHECK(server.of().wait() == 0);
    const std::string& said = server.of().output();
    std::size_t at = 0;
    for (const char* step : {"\"stop accepting\"", "\"finish requests\"", "\"close the storage\""}) {
        CAPTURE(said);
        const std::size_t next = said.find(step, at);
        REQUIRE(next != std::string::npos);
        at = next;
    }
    CHECK(server.of().count("storage closed") == 1);
}

TEST_CASE("event-loop server: SIGTERM -> lines already begun get a response, and idle connections are closed") {
    own_server server({program("event_loop_drain")});
    peer::client busy(server.port());
    peer::client idle(server.port());
    busy.send("one\ntw");
    CHECK(line_from(busy) == "ONE\n");
    idle.send("three\n");
    CHECK(line_from(idle) == "THREE\n");
    server.of().signal(SIGTERM);
    CHECK(idle.closed());
    busy.send("o\n");
    CHECK(busy.rest() == "TWO\n");
    CHECK(server.of().wait() == 0);
}

// [GS 9.2]
TEST_CASE("event-loop server: a line that never ends is cut at the timeout or a second signal, and logged") {
    for (const bool signals_again : {true, false}) {
        CAPTURE(signals_again);
        environment settings;
        if (!signals_again) settings["OJS_SERVER_SHUTDOWN_TIMEOUT"] = "200ms";
        own_server server({program("event_loop_drain")}, settings);
        peer::client endless(server.port());
        endless.send("a\nb");
        CHECK(line_from(endless) == "A\n");
        server.of().signal(SIGTERM);
        // Signals closer than 250 ms count as one.
        CHECK(eventually([&] {
            if (signals_again && server.of().count("cut 1 lines") == 0) server.of().signal(SIGTERM);
            return server.of().ended();
        }));
        CHECK(server.of().wait() == 1);
        CHECK(server.of().count("cut 1 lines") == 1);
    }
}

TEST_CASE("own loop: SIGTERM lets the items in progress finish, and a second signal requeues them") {
    for (const bool again : {false, true}) {
        CAPTURE(again);
        process loop({program("own_loop"), again ? "1h" : "500ms"}, {});
        REQUIRE(loop.prints("item 1: started"));
        REQUIRE(loop.prints("item 5: started"));  // that of the other consumer
        loop.signal(SIGTERM);
        // Signals closer than 250 ms count as one. None after the second: the program may not be there to handle it.
        CHECK(eventually([&] {
            if (again) loop.signal(SIGTERM);
            return loop.count(": interrupted, requeued") == 2 || !again;
        }));
        CHECK(loop.wait() == 0);
        INFO(loop.output());
        CHECK(loop.count(": done") == (again ? 0 : loop.count(": started")));
        if (again) CHECK(loop.count(": started") == 2);
    }
}

TEST_CASE("keyvalue: a drain completes requests in flight, refuses new ones and saves every stored value") {
    const temporary_folder folder;
    const std::string lifecycle = "unix:" + folder.file("kv.sock");
    const auto start = [&](const char* work_duration) {
        return own_server(
            {program("keyvalue_runner"), "--file", folder.file("values"), "--work-duration", work_duration},
            {{"OJS_LIFECYCLE_ADDR", lifecycle}});
    };
    const auto call = [&](const std::string& method, const std::string& body = "{}") {
        const auto got = ask(lifecycle, "POST", "/prism.interfaces.ProcessLifecycleInterface/" + method, body,
                             {{"Content-Type", "application/json"}});
        REQUIRE_MESSAGE(got, got.error().text);
        return json::parse(got->body);
    };
    const auto send = [](const own_server& to, const char* method, const char* key, const char* body = "") {
        const auto got = ask("http://127.0.0.1:" + std::to_string(to.port()), method, key, body);
        REQUIRE_MESSAGE(got, got.error().text);
        return *got;
    };
    {
        own_server one = start("2s");
        int in_hand = 0;
        std::thread client([&] { in_hand = send(one, "PUT", "/a", "first value").status; });
        REQUIRE(eventually([&] { return call("GetShutdownStatus")["metrics"]["inFlightRequests"].number == 1; }));
        call("Shutdown", "{\"maxShutdownSeconds\":3600}");
        REQUIRE(eventually([&] { return call("GetShutdownStatus")["state"].is("SHUTDOWN_DRAINING"); }));
        CHECK(send(one, "PUT", "/b", "late").status == 503);
        client.join();
        CHECK(in_hand == 204);
        CHECK(one.of().wait() == 0);
    }
    CHECK(read_file(folder.file("values")) == "a first value\n");
    own_server next = start("0s");
    CHECK(send(next, "GET", "/a").body == "first value");
    CHECK(send(next, "PUT", "/c", "third").status == 204);
    CHECK(next.of().end_by(SIGTERM) == 0);
    CHECK(read_file(folder.file("values")) == "a first value\nc third\n");
}
