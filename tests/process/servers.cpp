// Custom servers made of the building blocks: requests in flight, and a second signal.
#include <sys/resource.h>

#include <filesystem>
#include <optional>

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

// Limits a resource of a running program, for a scope.
class limited {
  public:
    limited(const process& of, __rlimit_resource kind, rlim_t most) : pid_(of.pid()), kind_(kind) {
        REQUIRE(::prlimit(pid_, kind_, nullptr, &before_) == 0);
        const rlimit none{most, before_.rlim_max};
        REQUIRE(::prlimit(pid_, kind_, &none, nullptr) == 0);
    }
    limited(const limited&) = delete;
    limited& operator=(const limited&) = delete;
    ~limited() { CHECK(::prlimit(pid_, kind_, &before_, nullptr) == 0); }

  private:
    pid_t pid_;
    __rlimit_resource kind_;
    rlimit before_{};
};

milliseconds processor_time(const process& of) {
    clockid_t id = 0;
    timespec used{};
    REQUIRE(::clock_getcpuclockid(of.pid(), &id) == 0);
    REQUIRE(::clock_gettime(id, &used) == 0);
    return seconds(used.tv_sec) + milliseconds(used.tv_nsec / 1000000);
}

const std::string request = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";

}  // namespace

// [GS 9.1]
TEST_CASE(
    "custom server: SIGTERM -> requests in flight get a response, then the shutdown steps run in order") {
    own_server server;
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

TEST_CASE("event-loop server: SIGTERM -> lines that have begun are served, and idle connections are closed") {
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

TEST_CASE("event-loop server: 4000 lines sent before SIGTERM all get a response") {
    own_server server({}, "event_loop_drain");
    peer::client busy(server.port());
    busy.send("a\n");
    CHECK(line_from(busy) == "A\n");  // accepted
    server.of().freeze();
    std::string lines;
    for (int i = 0; i < 4000; ++i) lines += "line " + std::to_string(i) + "\n";
    busy.send(lines + "las");
    server.of().signal(SIGTERM);
    server.of().signal(SIGCONT);
    std::string got;
    while (got.size() < lines.size() && peer::read_some(busy.fd, got)) {
    }
    busy.send("t\n");
    got += busy.rest();
    CHECK(got.substr(got.size() - 15) == "LINE 3999\nLAST\n");
    CHECK(got.size() == lines.size() + 5);
    CHECK(server.of().wait() == 0);
}

TEST_CASE("event-loop server: a client that does not read delays neither other clients nor the exit") {
    own_server server({{"OJS_SERVER_SHUTDOWN_TIMEOUT", "200ms"}}, "event_loop_drain");
    peer::client greedy(server.port());
    const std::string lines(65536, '\n');
    pollfd room{greedy.fd, POLLOUT, 0};
    while (::poll(&room, 1, 2000) > 0)
        ::send(greedy.fd, lines.data(), lines.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    peer::client other(server.port());
    other.send("one\n");
    CHECK(line_from(other) == "ONE\n");
    server.of().signal(SIGTERM);
    CHECK(server.of().wait() == 1);
    CHECK(server.of().count("cut 1 lines") == 1);
}

TEST_CASE("custom server: no free descriptor -> clients wait until there is one, without a busy loop") {
    for (const char* name : {"http_server_drain", "event_loop_drain"}) {
        own_server server({}, name);
        const std::filesystem::directory_iterator open("/proc/" + std::to_string(server.of().pid()) + "/fd");
        std::optional<limited> none(std::in_place, server.of(), RLIMIT_NOFILE,
                                    std::distance(begin(open), end(open)));
        peer::client waiting(server.port());
        waiting.send(request);
        const milliseconds before = processor_time(server.of());
        const auto end = clock::now() + milliseconds(400);
        CHECK(eventually([&] { return clock::now() >= end; }));
        CHECK(processor_time(server.of()) - before < milliseconds(200));
        none.reset();
        CHECK(line_from(waiting).find("HTTP/1.1") != std::string::npos);
        server.of().signal(SIGTERM);
        CHECK(server.of().wait() == 0);
    }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // their allocators abort without memory
TEST_CASE("custom server: no memory for a thread -> the request gets a 503, and a later one a 200") {
    own_server server;
    {
        const limited none(server.of(), RLIMIT_AS, 1);
        peer::client refused(server.port());
        refused.send(request);
        CHECK(refused.rest().find("HTTP/1.1 503 ") == 0);
    }
    peer::client served(server.port());
    served.send(request);
    CHECK(served.rest().find("HTTP/1.1 200 ") == 0);
}
#endif

// [GS 9.2]
TEST_CASE("custom server: a request that never ends is cut at the timeout or a second signal, and logged") {
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
            CHECK(answered.rest().find("hello") != std::string::npos);
            endless.send("GET / ");
        } else {
            endless.send("a\nb");
            CHECK(line_from(endless) == "A\n");
        }
        server.of().signal(SIGTERM);
        if (is_http && row.signals_again) REQUIRE(server.of().prints("\"stop accepting\""));
        // Signals closer than 250 ms count as one.
        CHECK(eventually([&] {
            if (row.signals_again && server.of().count(row.says.front()) == 0) server.of().signal(SIGTERM);
            return server.of().ended();
        }));
        CHECK(server.of().wait() == 1);
        int said = 0;
        for (const char* text : row.says) said += server.of().count(text);
        CHECK(said == 1);
        CHECK(server.of().count("storage closed") == (is_http ? 1 : 0));
    }
    for (const char* name : {"http_server_drain", "event_loop_drain", "own_loop"}) {
        for (const char* argument : {"--help", "-1", "65536x", ""}) {
            process usage({program(name), argument}, {});
            CHECK(usage.wait() == 64);
            CHECK(usage.count("usage: ") == 1);
        }
    }
    process wrong({program("http_server_drain")}, {{"OJS_SERVER_SHUTDOWN_TIMEOUT", "soon"}});
    CHECK(wrong.wait() == 64);
    CHECK(wrong.count("OJS_SERVER_SHUTDOWN_TIMEOUT='soon' is not a duration") == 1);
}
