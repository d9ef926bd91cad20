// What a worker makes of a wrong environment, a backend that is absent, and a handler that forks: a clear message,
// the right exit status, nothing lost, no hang. Each bad value, URL and answer is judged by the tests of the library.
#include "harness.hpp"

using namespace test;

// [GS 6.1]
TEST_CASE(
    "worker: an invalid setting in the environment ends start-up with status 64 and an error about it") {
    const struct {
        environment settings;
        std::vector<std::string> texts;
    } rows[] = {
        {{{"OJS_SHUTDOWN_GRACE_PERIOD", "30 s"}}, {"OJS_SHUTDOWN_GRACE_PERIOD", "'30 s'"}},
        {{{"OJS_HEARTBEAT_INTERVAL", "40s"}}, {"heartbeat_interval", "visibility_timeout"}},
        {{{"OJS_URL", "http://user:secret@host"}}, {"password"}},
        {{{"OJS_HEALTH_ADDR", "192.0.2.1:9000"}}, {"OJS_HEALTH_ADDR", "192.0.2.1:9000"}},
        {{{"OJS_HEALTH_CONTROL", "yes"}}, {"OJS_HEALTH_CONTROL='yes'", "off on"}},
        {{{"OJS_HEALTH_CONTROL", "on"}}, {"OJS_HEALTH_CONTROL", "OJS_HEALTH_ADDR"}},
        {{{"OJS_HEALTH_ADDR", "0.0.0.0:0"}, {"OJS_HEALTH_CONTROL", "on"}}, {"OJS_HEALTH_TOKEN", "0.0.0.0:0"}},
    };
    for (const auto& row : rows) {
        process worker = start_worker("http://127.0.0.1:1", "w", row.settings);
        CHECK(worker.wait() == 64);
        INFO(worker.output());
        for (const std::string& text : row.texts) CHECK_MESSAGE(worker.count(text) > 0, text);
        CHECK(worker.count("secret") == 0);
    }
}

// [WP 4.6 (a)]
TEST_CASE(
    "worker: backend unreachable -> FETCH is retried with back-off, and SIGTERM ends the worker with 0") {
    process worker = start_worker("http://127.0.0.1:1", "w");
    REQUIRE(eventually([&] { return worker.count("FETCH failed") >= 4; }));
    CHECK(worker.prints("127.0.0.1:1"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    // 0.1 + 0.2 + 0.4 s less up to half: a fixed pause of the poll interval would have tried 20 times.
    CHECK(worker.count("FETCH failed") <= 8);
}

// [WP 3.1 (a)]
TEST_CASE(
    "worker: registration fails with 500 -> the worker runs, and its final heartbeat is its last request") {
    std::mutex mutex;
    std::vector<std::string> asked;
    auto server = ojs::http_server::start("127.0.0.1:0", [&](const ojs::http_request& request) {
        const std::lock_guard<std::mutex> held(mutex);
        const bool registers = request.target.find("/ojs/v1/workers/register") == 0;
        const bool last = request.body.find("\"state\":\"terminate\"") != std::string::npos;
        asked.push_back(request.method + (registers ? " register" : last ? " last" : " other"));
        ojs::http_response out;
        out.status = registers ? 500 : 200;
        out.body = request.target == "/ojs/v1/workers/fetch" ? "{\"jobs\":[]}" : "{}";
        return out;
    });
    REQUIRE(server);
    process worker =
        start_worker("http://" + server->address(), "w",
                     {{"OJS_REGISTRATION_PATH", "/workers/register"}, {"OJS_HEARTBEAT_INTERVAL", "20ms"}});
    REQUIRE(eventually([&] { return worker.count("registration failed") >= 2; }));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(worker.prints("deregistration failed"));
    CHECK(worker.prints("answered 500"));
    const std::lock_guard<std::mutex> held(mutex);
    REQUIRE(asked.size() > 4);
    CHECK(asked.front() == "POST register");
    CHECK(asked.back() == "POST last");
    CHECK(std::count(asked.begin(), asked.end(), "DELETE register") == 1);
}
