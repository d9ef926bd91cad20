// The health server of a real worker and the example backend: a preStop hook, a unix socket.
#include "harness.hpp"

using namespace test;

namespace {
// A worker with its health server, on a free port unless `extra` says where.
struct served {
    explicit served(const std::string& url, environment extra = {}) {
        extra.emplace("OJS_HEALTH_ADDR", "127.0.0.1:0");
        worker = start_worker(url, "w", extra);
        REQUIRE(worker.prints("health server listening"));
        const std::string& all = worker.output();
        const std::size_t at = all.find("address=", all.find("health server listening")) + 8;
        address = all.substr(at, all.find_first_of(" \n", at) - at);
        if (address.compare(0, 5, "unix:") != 0) address.insert(0, "http://");
    }
    ojs::http_response call(const char* method, const std::string& target,
                            const ojs::http_headers& headers = {}) const {
        const auto answer = ask(address, method, target, "", headers);
        REQUIRE_MESSAGE(answer, target << ": " << answer.error().text);
        return *answer;
    }
    void stop() const { CHECK(worker.end_by(SIGTERM) == 0); }
    process worker;
    std::string address;
};

bool becomes_quiet(backend& jobs) { return jobs.event(beat_in_state("w", "quiet")).what == json::kind::object; }
}  // namespace

// [GS 5.1 (c)]
TEST_CASE("health: GET /quiet?wait= as the preStop hook lets the running job complete before SIGTERM") {
    backend jobs;
    served tested(jobs.url(), {{"OJS_HEALTH_CONTROL", "on"}, {"OJS_HEALTH_TOKEN", "s"}});
    const ojs::http_headers token{{"Authorization", "Bearer s"}};
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(tested.worker.prints("start " + id));
    const ojs::http_response early = tested.call("GET", "/quiet?wait=0", token);
    CHECK(early.status == 503);
    CHECK(json::parse(early.body)["active_jobs"].number == 1);
    REQUIRE(becomes_quiet(jobs));  // from here on the backend returns no job, not even to a FETCH in flight
    const std::string late = jobs.push_one("test.sleep", "[1]");
    end.open();
    CHECK(tested.call("GET", "/quiet?wait=30s", token).status == 200);
    CHECK(jobs.state_of(id) == "completed");
    tested.stop();
    CHECK(jobs.state_of(late) == "available");
    CHECK(tested.worker.prints("cause=rpc"));
}

TEST_CASE("health: the unix socket is removed even if the worker exits while a handler still runs") {
    backend jobs;
    const std::string path = scratch_file("health.sock");
    served tested(
        jobs.url(),
        {{"OJS_HEALTH_ADDR", "unix:" + path}, {"OJS_HEALTH_CONTROL", "on"}, {"OJS_SHUTDOWN_GRACE_PERIOD", "50ms"}});
    REQUIRE(tested.worker.prints("start " + jobs.push_one("test.deaf", "[]")));
    CHECK(tested.call("POST", "/stop").status == 202);
    CHECK(tested.worker.wait() == 0);
    CHECK(::access(path.c_str(), F_OK) != 0);
}
