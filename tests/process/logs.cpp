// What a worker writes: every line is a record, and no argument and no token is in it.
#include <signal.h>

#include <algorithm>

#include "harness.hpp"

using namespace test;

namespace {

// The lines on standard error that are records; those on standard output are the test worker's own.
std::vector<json> records_of(process& worker) {
    std::vector<json> out;
    const std::string& all = worker.output();
    for (std::size_t at = 0; at < all.size();) {
        const std::size_t end = std::min(all.find('\n', at), all.size());
        const std::string line = all.substr(at, end - at);
        at = end + 1;
        const bool own =
            line.rfind("start ", 0) == 0 || line.rfind("phase ", 0) == 0 || line.rfind("cancelled ", 0) == 0;
        if (own) continue;
        out.push_back(json::parse(line));
        REQUIRE_MESSAGE(out.back().what == json::kind::object, "not a JSON object: " << line);
    }
    return out;
}

json with_message(const std::vector<json>& records, const char* message) {
    for (const json& each : records) {
        if (each["message"].is(message)) return each;
    }
    return {};
}

}  // namespace

TEST_CASE("logs: every line of a run is JSON with the specified fields, and names no argument and no token") {
    const std::string canary = "canary-4711";
    backend jobs({"--faults", "e500:100,lose:50,reset:50", "--seed", "7"});
    process worker = start_worker(jobs.url(), "w1",
                                  {{"OJS_LOG_FORMAT", "json"},
                                   {"OJS_LOG_LEVEL", "debug"},
                                   {"OJS_LOG_ERROR_MESSAGES", "0"},
                                   {"OJS_AUTH_TOKEN", "token-" + canary},
                                   {"OJS_VISIBILITY_TIMEOUT", "1s"},
                                   {"OJS_PROGRESS_INTERVAL", "20ms"},
                                   {"OJS_SHUTDOWN_GRACE_PERIOD", "300ms"}});
    const std::string arguments = "[\"" + canary + "\"]";
    for (const char* type : {"test.result", "test.throw_argument", "test.not_json", "no.such.type"})
        jobs.push(type, arguments, 10, ",\"max_attempts\":1");
    const std::string done = jobs.push_one("test.result", arguments);
    REQUIRE(jobs.reaches(done, "completed"));
    const std::string stuck = jobs.push_one("test.sleep", "[60000,\"" + canary + "\"]");
    REQUIRE(worker.prints("start " + stuck));
    worker.signal(SIGTERM);
    REQUIRE(worker.wait() == 0);

    INFO(worker.output());
    CHECK(worker.count(canary) == 0);
    const std::vector<json> records = records_of(worker);
    for (const json& each : records) {
        for (const char* key : {"timestamp", "severity", "message", "category"})
            CHECK(each[key].what == json::kind::string);
        CHECK(each["severity_number"].what == json::kind::number);
        CHECK(each["component"].is("worker"));
        CHECK(each["ojs"]["worker_id"].is("w1"));
    }
    CHECK(with_message(records, "draining")["attributes"]["jobs"].text.find(stuck) != std::string::npos);
    const json end = with_message(records, "worker stopped")["attributes"];
    CHECK(end["cause"].is("SIGTERM"));
    CHECK(end["interrupted"].number >= 1);
    CHECK(end["stop_ms"].number >= 300);
    CHECK(end["uptime_ms"].number >= end["stop_ms"].number);
    const std::int64_t settled =
        end["completed"].number + end["failed"].number + end["requeued"].number + end["gone"].number;
    CHECK(end["claimed"].number == settled + end["unreported"].number);
}
