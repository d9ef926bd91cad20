// Custom servers made of the building blocks: requests in flight, and a second signal.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "harness.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {

class own_server {
  public:
    explicit own_server(const environment& extra = {}, const char* name = "http_server_drain")
        : program_({program(name)}, extra) {
        REQUIRE(program_.prints("listening on 127.0.0.1:"));
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

TEST_CASE("custom server: answers requests in flight, and ends in order") {
    own_server server;
    peer::client first(server.port());
    first.send(request);
    peer::client second(server.port());
    second.send(request);
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

TEST_CASE("custom server: ends within OJS_SERVER_SHUTDOWN_TIMEOUT, or at a second signal") {
    environment settings;
    bool signals_again = false;
    SUBCASE("signalled again: the cut requests are logged") {
        signals_again = true;
    }
    SUBCASE("in time") {
        settings["OJS_SERVER_SHUTDOWN_TIMEOUT"] = "200ms";
    }
    own_server server(settings);
    peer::client silent(server.port());  // never sends its request
    peer::client answered(server.port());
    answered.send(request);
    CHECK(answered.rest().find("hello") != std::string::npos);  // so the silent one is in flight as well
    server.of().signal(SIGTERM);
    if (signals_again) {
        REQUIRE(server.of().prints("\"stop accepting\""));
        std::this_thread::sleep_for(milliseconds(300));  // signals closer than 250 ms count as one
        CHECK_FALSE(server.of().ended());
        server.of().signal(SIGTERM);
    }
    CHECK(server.of().wait() == 1);
    if (signals_again) CHECK(server.of().count("\"cut short\"") == 1);
    // One that stood still in the step's last moment is left behind instead.
    if (!signals_again)
        CHECK(server.of().count("1 requests aborted") + server.of().count("\"timed out\"") == 1);
    CHECK(server.of().count("storage closed") == 1);
}

TEST_CASE("custom server: a timeout that is no duration is status 64") {
    process wrong({program("http_server_drain")}, {{"OJS_SERVER_SHUTDOWN_TIMEOUT", "soon"}});
    CHECK(wrong.wait() == 64);
    CHECK(wrong.count("OJS_SERVER_SHUTDOWN_TIMEOUT='soon' is not a duration") == 1);
}

TEST_CASE("event-loop server: answers lines that have begun, and closes idle connections") {
    own_server server({}, "event_loop_drain");
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

TEST_CASE("event-loop server: an unfinished line is cut at the second signal or at the timeout") {
    environment settings;
    bool signals_again = false;
    SUBCASE("told again") {
        signals_again = true;
    }
    SUBCASE("in time") {
        settings["OJS_SERVER_SHUTDOWN_TIMEOUT"] = "200ms";
    }
    own_server server(settings, "event_loop_drain");
    peer::client endless(server.port());
    endless.send("a\nb");
    CHECK(line_from(endless) == "A\n");
    server.of().signal(SIGTERM);
    // Signals closer than 250 ms count as one.
    CHECK(eventually([&] {
        if (signals_again) server.of().signal(SIGTERM);
        return server.of().ended();
    }));
    CHECK(server.of().wait() == 1);
    CHECK(server.of().count("cut 1 lines") == 1);
}
