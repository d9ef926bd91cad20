// The child's end of the launcher's protocol in a real process, tools/lifecycle_runner: every behaviour, driven by bytes
// on a socket and by curl, with signals beside it, and with requests that are none.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "files.hpp"
#include "harness.hpp"
#include "raw_peer.hpp"
#include "text.hpp"

using namespace test;

namespace {

using flags = std::vector<std::string>;

process start_runner(flags more, const environment& extra = {}) {
    flags command = {program("lifecycle_runner")};
    command.insert(command.end(), more.begin(), more.end());
    return process(command, extra);
}

struct answer {
    int status = 0;
    json body;
};

// A runner on a port of its own.
class runner {
  public:
    explicit runner(flags more, const environment& extra = {}) : self(start(std::move(more), extra)) {
        REQUIRE_MESSAGE(self.prints("listening on 127.0.0.1:"), self.output());
        const std::string& text = self.output();
        port = static_cast<std::uint16_t>(std::stoi(text.substr(text.find("127.0.0.1:") + 10)));
    }
    answer call(const std::string& method, const std::string& body = "{}") const {
        peer::client one(port);
        one.send("POST /prism.interfaces.ProcessLifecycleInterface/" + method +
                 " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + body);
        const std::string text = one.answer();
        REQUIRE(text.size() > 12);
        return {std::stoi(text.substr(9, 3)), json::parse(text.substr(text.find("\r\n\r\n") + 4))};
    }
    json status() const { return call("GetShutdownStatus").body; }
    bool says(const char* state) const {
        return eventually([&] { return status()["state"].is(state); });
    }
    bool is(const char* readiness) const {
        return eventually([&] { return call("GetReadinessStatus").body["state"].is(readiness); });
    }
    void shut_down(const std::string& body = "{}") const {
        const answer ack = call("Shutdown", body);
        CHECK(ack.status == 200);
        CHECK(ack.body["acknowledged"].flag);
    }

    process self;
    std::uint16_t port = 0;

  private:
    static process start(flags more, const environment& extra) {
        more.insert(more.begin(), {"--process-id", "test-1", "--port", "0"});
        return start_runner(std::move(more), extra);
    }
};

}  // namespace

TEST_CASE("lifecycle: clean drains all work within the grace period, and ends with 0") {
    runner one({"--behavior", "clean", "--work-duration", "20ms", "--initial-work", "5"});
    CHECK(one.is("READY"));
    CHECK(one.status()["metrics"]["inFlightRequests"].number == 5);
    CHECK_FALSE(one.status().has("state"));  // RUNNING, the default
    const auto asked = clock::now();
    one.shut_down("{\"processId\":\"test-1\",\"reason\":\"test\"}");
    CHECK(one.self.wait() == 0);
    CHECK(clock::now() - asked >= milliseconds(100));
    CHECK(one.self.prints("drained"));
}

TEST_CASE(
    "lifecycle: slow-drain takes its time, says how far it is, and a repeated Shutdown changes nothing") {
    runner timed({"--behavior", "slow-drain", "--drain-duration", "1s", "--initial-work", "3"});
    const auto asked = clock::now();
    timed.shut_down("{\"maxShutdownSeconds\":3600}");
    CHECK(timed.self.wait() == 0);
    CHECK(clock::now() - asked >= seconds(1));

    runner one({"--behavior", "slow-drain", "--drain-duration", "1h", "--initial-work", "3"});
    one.shut_down("{\"maxShutdownSeconds\":3600}");
    CHECK(one.says("SHUTDOWN_DRAINING"));
    CHECK(one.call("GetReadinessStatus").body["state"].is("DRAINING"));
    CHECK(one.status()["metrics"]["inFlightRequests"].number == 3);
    one.shut_down("{\"maxShutdownSeconds\":1}");
    one.shut_down("{\"maxShutdownSeconds\":1}");
    // Told later, and by its first Shutdown, another one is at the end of that second: so is this one, and goes on.
    runner other({"--behavior", "slow-drain", "--drain-duration", "1h"});
    other.shut_down("{\"maxShutdownSeconds\":1}");
    CHECK(other.self.wait() == 1);
    CHECK_FALSE(one.self.ended());
    CHECK(one.says("SHUTDOWN_DRAINING"));
    CHECK(one.self.count("draining") == 1);
}

TEST_CASE("lifecycle: request-more asks for five seconds, and uses less") {
    runner asks({"--behavior", "request-more", "--drain-duration", "1h"});
    asks.shut_down("{\"maxShutdownSeconds\":3600}");
    REQUIRE(eventually([&] { return asks.status()["needMoreTime"].flag; }));
    CHECK(asks.status()["additionalSeconds"].number == 5);

    runner one({"--behavior", "request-more", "--drain-duration", "1500ms"});
    const auto asked = clock::now();
    one.shut_down("{\"gracePeriodSeconds\":1,\"maxShutdownSeconds\":3600}");
    CHECK(one.self.wait() == 0);
    CHECK(clock::now() - asked >= milliseconds(1500));
}

TEST_CASE("lifecycle: hang is BLOCKED, and goes only by SIGKILL") {
    runner one({"--behavior", "hang"});
    one.shut_down("{\"maxShutdownSeconds\":1}");
    CHECK(one.says("SHUTDOWN_BLOCKED"));
    one.self.signal(SIGTERM);
    const json status = one.status();
    CHECK(status["state"].is("SHUTDOWN_BLOCKED"));
    CHECK(status["metrics"]["blockingOperations"].holds("waiting for nothing"));
    CHECK(status["metrics"]["inFlightRequests"].number == 5);
    CHECK_FALSE(one.self.ended());
    one.self.signal(SIGKILL);
    CHECK(one.self.wait() == -SIGKILL);
}

TEST_CASE("lifecycle: crash leaves with status 2 in the middle of the drain") {
    runner one({"--behavior", "crash"});
    one.shut_down();
    CHECK(one.self.wait() == 2);
    CHECK(one.self.count("draining") == 1);
    CHECK(one.self.count("drained") == 0);
}

TEST_CASE("lifecycle: what is not drained before the maximum is given up with status 1") {
    runner one({"--behavior", "slow-drain", "--drain-duration", "1h"});
    const auto asked = clock::now();
    one.shut_down("{\"maxShutdownSeconds\":1}");
    CHECK(one.self.wait() == 1);
    CHECK(clock::now() - asked >= milliseconds(500));
    CHECK(one.self.prints("drain timeout with 5 in-flight"));
}

TEST_CASE("lifecycle: SIGTERM does the same as a Shutdown, whichever comes first") {
    for (const bool by_signal : {true, false}) {
        runner one({"--behavior", "slow-drain", "--drain-duration", "50ms"});
        if (by_signal) {
            one.self.signal(SIGTERM);
        } else {
            one.shut_down("{\"maxShutdownSeconds\":3600}");
        }
        CHECK(one.self.wait() == 0);
        CHECK(one.self.count("draining") == 1);
    }
    // A Shutdown that comes second sets the times, and is no second request to stop.
    runner timed({"--behavior", "slow-drain", "--drain-duration", "1h"});
    timed.self.signal(SIGTERM);
    CHECK(timed.says("SHUTDOWN_DRAINING"));
    const auto asked = clock::now();
    timed.shut_down("{\"maxShutdownSeconds\":1}");
    CHECK(timed.self.wait() == 1);
    CHECK(clock::now() - asked >= milliseconds(500));
    CHECK(timed.self.count("draining") == 1);
    CHECK(timed.self.prints("drain timeout with 5 in-flight"));

    runner forced({"--behavior", "slow-drain", "--drain-duration", "1h"});
    forced.shut_down("{\"maxShutdownSeconds\":3600}");
    CHECK(forced.says("SHUTDOWN_DRAINING"));
    forced.self.signal(SIGTERM);  // the second request to stop, and the first signal: it hastens
    CHECK(forced.self.wait() == 1);
}

TEST_CASE("lifecycle: the runner's readiness, and a SIGTERM that it does not hear") {
    const auto started = clock::now();
    runner late({"--ready-after", "300ms"});
    CHECK(late.is("READY"));
    CHECK(clock::now() - started >= milliseconds(300));
    runner never({"--never-ready", "--ignore-sigterm", "--initial-work", "0"});
    CHECK(never.is("WARMING"));
    never.self.signal(SIGTERM);
    CHECK_FALSE(never.status().has("state"));
    never.shut_down();
    CHECK(never.self.wait() == 0);
}

TEST_CASE("lifecycle: a grandchild stays in the group of its process") {
    runner one({"--spawn-grandchild", "--initial-work", "0"});
    REQUIRE(one.self.prints("grandchild "));
    const std::string& text = one.self.output();
    const pid_t grandchild = std::stoi(text.substr(text.find("grandchild ") + 11));
    CHECK(::getpgid(grandchild) == ::getpgid(one.self.pid()));
    one.shut_down();
    CHECK(one.self.wait() == 0);
    CHECK(::kill(grandchild, 0) == 0);  // left for whoever started the group; here `process` ends it
}

TEST_CASE("lifecycle: garbage changes nothing, and costs no one else his answer") {
    runner one({"--initial-work", "0"});
    const std::string path = "POST /prism.interfaces.ProcessLifecycleInterface/Shutdown HTTP/1.1\r\n";
    const std::string nested(60000, '[');
    const std::vector<std::string> requests = {
        "\r\n\r\n\r\n",
        std::string(4000, '\0'),
        std::string(20000, 'A') + "\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        path + "Content-Length: 99999999999999999999\r\n\r\n",
        path + "Content-Length: -1\r\n\r\n",
        path + "Content-Length: 70000\r\nContent-Type: application/json\r\n\r\n" + std::string(70000, 'x'),
        path + "Content-Type: application/json\r\nContent-Length: 60000\r\n\r\n" + nested,
        path + "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        path + "Content-Type: application/grpc\r\nContent-Length: 5\r\n\r\n" + std::string(5, '\0'),
        path + "Content-Type: application/json\r\nOrigin: http://x\r\nContent-Length: 2\r\n\r\n{}",
        "POST /prism.interfaces.ProcessLifecycleInterface/Shutdown HTTP/1.1\r\nHost: rebound.example\r\n"
        "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        "GET /prism.interfaces.ProcessLifecycleInterface/Shutdown HTTP/1.1\r\n\r\n",
    };
    std::vector<std::unique_ptr<peer::client>> halves;  // more than the server has places for
    for (int i = 0; i < 12; ++i) {
        halves.push_back(std::make_unique<peer::client>(one.port));
        halves.back()->send(i % 2 == 0 ? path.substr(0, 20) : std::string());
    }
    halves.clear();
    for (const std::string& request : requests) {
        peer::client stranger(one.port);
        peer::send_text(stranger.fd, request);
        ::shutdown(stranger.fd, SHUT_WR);
        const std::string said = stranger.rest();
        CHECK_MESSAGE(!holds(said, " 200 "), said);
        CHECK_FALSE(one.status().has("state"));
    }
    CHECK(one.call("Shutdown", "{\"processId\":\"somebody\"}").status == 404);
    CHECK_FALSE(one.self.ended());
    one.shut_down();
    CHECK(one.self.wait() == 0);
}

TEST_CASE("lifecycle: a socket's path that is taken, stale, or a file") {
    const temporary_folder folder;
    const std::string path = folder.file("child.sock");
    process first = start_runner({"--socket", path});
    REQUIRE(first.prints("listening on unix:" + path));
    struct stat found {};
    REQUIRE(::stat(path.c_str(), &found) == 0);
    CHECK((found.st_mode & 0777) == 0600);

    process second = start_runner({"--socket", path});
    CHECK(second.wait() == 1);
    CHECK(second.prints("cannot listen on unix:" + path));
    CHECK_FALSE(first.ended());

    first.signal(SIGKILL);
    CHECK(first.wait() == -SIGKILL);
    CHECK(::stat(path.c_str(), &found) == 0);  // the stale one
    process third = start_runner({"--socket", path, "--initial-work", "0"});
    REQUIRE(third.prints("listening on unix:" + path));
    third.signal(SIGTERM);
    CHECK(third.wait() == 0);
    CHECK(::stat(path.c_str(), &found) != 0);

    write_file(path, "mine");
    process fourth = start_runner({"--socket", path});
    CHECK(fourth.wait() == 1);
    CHECK(read_file(path) == "mine");
}

TEST_CASE("lifecycle: the environment tells a child where to listen and whom to tell, and curl drives it") {
    process probe({"curl", "--version"}, {});
    if (probe.wait() != 0) {
        MESSAGE("skipped: no curl");
        return;
    }
    std::mutex mutex;
    std::vector<std::string> told;
    auto launcher = ojs::http_server::start("127.0.0.1:0", [&](const ojs::http_request& request) {
        const std::lock_guard<std::mutex> held(mutex);
        told.push_back(request.target + " " + request.body);
        ojs::http_response out;
        out.body = "{\"acknowledged\":true}";
        return out;
    });
    REQUIRE(launcher);
    const temporary_folder folder;
    const std::string path = folder.file("kv-1.sock");
    process one = start_runner({"--initial-work", "0"}, {{"OJS_LIFECYCLE_ADDR", "unix:" + path},
                                                         {"OJS_PROCESS_ID", "kv-1"},
                                                         {"OJS_LAUNCHER_ADDR", launcher->address()}});
    REQUIRE(one.prints("ready"));
    REQUIRE(eventually([&] {
        const std::lock_guard<std::mutex> held(mutex);
        return told.size() == 1;
    }));
    process curl({"curl", "-sS", "--unix-socket", path, "-H", "Content-Type: application/json", "-d",
                  "{\"process_id\":\"kv-1\",\"reason\":\"by hand\",\"max_shutdown_seconds\":\"9\"}",
                  "http://x/prism.interfaces.ProcessLifecycleInterface/Shutdown"},
                 {});
    CHECK(curl.wait() == 0);
    CHECK_MESSAGE(curl.prints("{\"acknowledged\":true,\"estimatedSeconds\":1,\"message\":\"shutting down\"}"),
                  curl.output());
    CHECK(one.wait() == 0);
    const std::lock_guard<std::mutex> held(mutex);
    REQUIRE(told.size() == 2);
    CHECK(holds(told[0], "/NotifyReady {\"processId\":\"kv-1\"}"));
    CHECK(holds(told[1], "/NotifyShutdownComplete {\"processId\":\"kv-1\",\"message\":\"drained\""));
}

TEST_CASE("lifecycle: wrong options of the runner, and a wrong environment, are status 64") {
    const std::vector<flags> wrong = {{"--nonsense"},
                                      {"--port"},
                                      {"--behavior", "odd"},
                                      {"--initial-work", "-1x"},
                                      {"--drain-duration", "1 s"},
                                      {"clean"}};
    for (const flags& each : wrong) {
        process one = start_runner(each);
        CAPTURE(each.front());
        CHECK(one.wait() == 64);
        CHECK(one.output().compare(0, 7, "error: ") == 0);
    }
    process odd = start_runner({}, {{"OJS_LIFECYCLE_ADDR", "nowhere"}});
    CHECK(odd.wait() == 64);
    CHECK(odd.prints("OJS_LIFECYCLE_ADDR"));
}
