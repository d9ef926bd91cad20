// The child's end of the launcher's protocol in a real process, tools/lifecycle_runner, as curl and signals drive it. Its
// behaviours are seen in rfc_041.cpp.
#include <signal.h>

#include <mutex>
#include <string>
#include <vector>

#include "files.hpp"
#include "harness.hpp"
#include "text.hpp"

using namespace test;

namespace {

using flags = std::vector<std::string>;

process start_runner(const flags& more, const environment& extra = {}) {
    flags command = {program("lifecycle_runner")};
    command.insert(command.end(), more.begin(), more.end());
    return process(command, extra);
}

}  // namespace

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
    const auto shut_down = [](const std::string& socket, const std::string& body) {
        process curl({"curl", "-sS", "--unix-socket", socket, "-H", "Content-Type: application/json", "-d",
                      body, "http://x/prism.interfaces.ProcessLifecycleInterface/Shutdown"},
                     {});
        CHECK(curl.wait() == 0);
        return curl.output();
    };
    const std::string answer =
        shut_down(path, R"({"process_id":"kv-1","reason":"by hand","max_shutdown_seconds":"9"})");
    CHECK(holds(answer, R"({"acknowledged":true,"estimatedSeconds":1,"message":"shutting down"})"));
    CHECK(one.wait() == 0);
    {
        const std::lock_guard<std::mutex> held(mutex);
        REQUIRE(told.size() == 2);
    }
    CHECK(holds(told[0], "/NotifyReady {\"processId\":\"kv-1\"}"));
    CHECK(holds(told[1], "/NotifyShutdownComplete {\"processId\":\"kv-1\",\"message\":\"drained\""));

    // SIGTERM drains as a Shutdown does, and a Shutdown that follows sets the times.
    const std::string other = folder.file("slow.sock");
    process slow = start_runner({"--behavior", "slow-drain", "--drain-duration", "1h", "--socket", other});
    REQUIRE(slow.prints("ready"));
    slow.signal(SIGTERM);
    REQUIRE(slow.prints("draining"));
    shut_down(other, R"({"max_shutdown_seconds":"1"})");
    CHECK(slow.wait() == 1);
    CHECK(slow.count("draining") == 1);
    CHECK(slow.prints("drain timeout with 5 in-flight"));
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
