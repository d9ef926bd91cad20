// Custom servers made of the building blocks: requests in flight, and a second signal.
#include "harness.hpp"
#include "raw_peer.hpp"

using namespace test;

namespace {

class own_server {
  public:
    explicit own_server(const environment& extra = {}, const std::string& name = "http_server_drain")
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

TEST_CASE(
    "custom server: ends within OJS_SERVER_SHUTDOWN_TIMEOUT, or at a second signal, and says what it cut") {
    const struct {
        const char* program;
        bool signals_again;             // else the timeout ends it
        std::vector<const char*> says;  // one of these
    } rows[] = {
        {"http_server_drain", true, {"\"cut short\""}},
        // One that stood still in the step's last moment is left behind instead.
        {"http_server_drain", false, {"1 requests aborted", "\"timed out\""}},
        {"event_loop_drain", true, {"cut 1 lines"}},
        {"event_loop_drain", false, {"cut 1 lines"}},
    };
    for (const auto& row : rows) {
        const bool is_http = row.program == std::string("http_server_drain");
        CAPTURE(row.program);
        CAPTURE(row.signals_again);
        environment settings;
        if (!row.signals_again) settings["OJS_SERVER_SHUTDOWN_TIMEOUT"] = "200ms";
        own_server server(settings, row.program);
        peer::client endless(server.port());  // never sends the rest of its request, or line
        if (is_http) {
            peer::client answered(server.port());
            answered.send(request);
            CHECK(answered.rest().find("hello") != std::string::npos);  // so the other is in flight as well
        } else {
            endless.send("a\nb");
            CHECK(line_from(endless) == "A\n");
        }
        server.of().signal(SIGTERM);
        if (is_http && row.signals_again) REQUIRE(server.of().prints("\"stop accepting\""));
        // Signals closer than 250 ms count as one.
        CHECK(eventually([&] {
            if (row.signals_again) server.of().signal(SIGTERM);
            return server.of().ended();
        }));
        CHECK(server.of().wait() == 1);
        int said = 0;
        for (const char* text : row.says) said += server.of().count(text);
        CHECK(said == 1);
        CHECK(server.of().count("storage closed") == (is_http ? 1 : 0));
    }
    process wrong({program("http_server_drain")}, {{"OJS_SERVER_SHUTDOWN_TIMEOUT", "soon"}});
    CHECK(wrong.wait() == 64);
    CHECK(wrong.count("OJS_SERVER_SHUTDOWN_TIMEOUT='soon' is not a duration") == 1);
}
