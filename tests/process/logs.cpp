// What a worker writes: every line is a record, and no argument and no token is in it.
#include <sstream>

#include "harness.hpp"

TEST_CASE("logs: every line of a JSON log has the specified fields and contains no argument or token") {
    const std::string canary = "canary-4711";
    backend jobs({"--faults", "e500:100,lose:50,reset:50", "--seed", "7"});
    process worker = start_worker(
        jobs.url(), "w1",
        settings_from("OJS_LOG_FORMAT=json OJS_LOG_LEVEL=debug OJS_LOG_ERROR_MESSAGES=0 OJS_VISIBILITY_TIMEOUT=1s "
                      "OJS_PROGRESS_INTERVAL=20ms OJS_SHUTDOWN_GRACE_PERIOD=300ms OJS_AUTH_TOKEN=token-" +
                      canary));
    const std::string arguments = "[\"" + canary + "\"]";
    for (const char* type : {"test.result", "test.throw_argument", "test.not_json", "no.such.type"})
        jobs.push(type, arguments, 10, R"(,"retry":{"max_attempts":1})");
    const std::string done = jobs.push_one("test.result", arguments);
    REQUIRE(jobs.reaches(done, "completed"));
    const std::string stuck = jobs.push_one("test.sleep", "[60000,\"" + canary + "\"]");
    REQUIRE(worker.prints("start " + stuck));
    REQUIRE(worker.end_by(SIGTERM) == 0);

    INFO(worker.output());
    CHECK(worker.count(canary) == 0);
    std::istringstream lines(worker.output());
    for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        // Those on standard output are the test worker's own.
        if (line.rfind("start ", 0) == 0 || line.rfind("phase ", 0) == 0 || line.rfind("cancelled ", 0) == 0) continue;
        const json record = json::parse(line);
        REQUIRE(record.what == json::kind::object);
        for (const char* key : {"timestamp", "severity", "message", "category"})
            CHECK(record[key].what == json::kind::string);
        CHECK(record["severity_number"].what == json::kind::number);
        CHECK(record["component"].is("worker"));
        CHECK(record["ojs"]["worker_id"].is("w1"));
    }
    CHECK(worker.count("\"message\":\"worker stopped\"") == 1);
}

TEST_CASE("logs: a handler calls exit() -> one line lists the jobs in flight") {
    backend jobs;
    process worker = start_worker(jobs.url(), "w");
    const std::string sleeping = jobs.push_one("test.sleep", "[60000]");
    REQUIRE(worker.prints("start " + sleeping));
    const std::string exiting = jobs.push_one("test.exit", "[]");
    CHECK(worker.wait() == 3);
    const std::string& all = worker.output();
    const std::size_t at = all.find("exit() was called");
    REQUIRE(at != std::string::npos);
    CHECK(worker.count("exit() was called") == 1);
    const std::string notice = all.substr(at, all.find('\n', at) - at);
    CAPTURE(notice);
    CHECK(notice.find("active_jobs=2") != std::string::npos);
    CHECK(notice.find(sleeping + ":test.sleep") != std::string::npos);
    CHECK(notice.find(exiting + ":test.exit") != std::string::npos);
}
