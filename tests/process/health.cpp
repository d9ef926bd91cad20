// The health server of a real worker and the example backend: probes, drain, a unix socket, metrics.
#include "files.hpp"
#include "harness.hpp"

using namespace test;

namespace {

// The address that the worker logged, with the chosen port.
std::string health_address(process& worker) {
    REQUIRE(worker.prints("health server listening"));
    const std::string& all = worker.output();
    const std::size_t at = all.find("address=", all.find("health server listening"));
    REQUIRE(at != std::string::npos);
    return all.substr(at + 8, all.find_first_of(" \n", at) - at - 8);
}

ojs::http_response call(const std::string& address, const char* method, const std::string& target,
                        const ojs::http_headers& headers = {}) {
    const bool local = address.compare(0, 5, "unix:") == 0;
    const auto answer = ask(local ? address : "http://" + address, method, target, "", headers);
    REQUIRE_MESSAGE(answer, target << ": " << answer.error().text);
    return *answer;
}

int status(const std::string& address, const std::string& target) {
    return call(address, "GET", target).status;
}

// A worker without processor time for a second rightly answers 503 to /livez, for a while.
bool is_alive(const std::string& address) {
    return eventually([&] { return status(address, "/livez") == 200; });
}

json body(const ojs::http_response& answer) {
    return json::parse(answer.body);
}

// A worker with its health server on a free port.
struct served {
    explicit served(const std::string& url, environment extra = {}) {
        extra.emplace("OJS_HEALTH_ADDR", "127.0.0.1:0");
        worker = start_worker(url, "w", extra);
        address = health_address(worker);
    }
    void become_ready() {
        REQUIRE(eventually([&] { return status(address, "/readyz") == 200; }));
    }
    process worker;
    std::string address;
};

// promtool's complaints about a page; empty: none.
std::string lint(const std::string& page) {
    const std::string file = scratch_file("metrics");
    write_file(file, page);
    process linter({"/bin/sh", "-c", "promtool check metrics <\"$0\"", file}, {});
    const int status = linter.wait();
    return status == 0 ? linter.output() : linter.output() + "(status " + std::to_string(status) + ")";
}

}  // namespace

// [GS-R004] [WP 4.6 (b)] [WP 4.6 (c)]
TEST_CASE("health: a worker is ready only while running with a reachable backend, but alive throughout") {
    served lonely("http://127.0.0.1:1");
    REQUIRE(lonely.worker.prints("heartbeat failed"));
    CHECK(status(lonely.address, "/readyz") == 503);
    CHECK(status(lonely.address, "/healthz") == 503);
    CHECK(is_alive(lonely.address));
    lonely.worker.signal(SIGTERM);
    CHECK(lonely.worker.wait() == 0);

    backend jobs;
    served tested(jobs.url());
    tested.become_ready();
    CHECK(status(tested.address, "/healthz") == 200);
    CHECK(body(call(tested.address, "GET", "/healthz"))["phase"].is("running"));
    tested.worker.signal(SIGTSTP);
    REQUIRE(!jobs.event(beat_in_state("w", "quiet"))["event"].text.empty());
    CHECK(status(tested.address, "/readyz") == 503);
    CHECK(status(tested.address, "/healthz") == 503);
    CHECK(is_alive(tested.address));
    CHECK(status(tested.address, "/metrics") == 200);
    tested.worker.signal(SIGCONT);
    tested.become_ready();
    tested.worker.signal(SIGTERM);
    CHECK(tested.worker.wait() == 0);
}

// [GS 5.1 (c)]
TEST_CASE("health: GET /drain as the preStop hook lets the running job complete before SIGTERM") {
    backend jobs;
    served tested(jobs.url(), {{"OJS_HEALTH_CONTROL", "on"}, {"OJS_HEALTH_TOKEN", "s"}});
    const ojs::http_headers token{{"Authorization", "Bearer s"}};
    const gate end;
    const std::string id = jobs.push_one("test.gate", end.args());
    REQUIRE(tested.worker.prints("start " + id));
    const ojs::http_response early = call(tested.address, "GET", "/drain?timeout=0", token);
    CHECK(early.status == 503);
    CHECK(body(early)["active_jobs"].number == 1);
    // From this beat on the backend returns no job, not even to a FETCH in flight.
    const auto quiet_beat = [](const json& event) {
        return event["event"].is("beat") && event["state"].is("quiet");
    };
    REQUIRE(jobs.event(quiet_beat).what == json::kind::object);
    const std::string late = jobs.push_one("test.sleep", "[1]");
    end.open();
    const ojs::http_response answer = call(tested.address, "GET", "/drain?timeout=30s", token);
    CHECK(answer.status == 200);
    CHECK(body(answer)["drained"].flag);
    CHECK(jobs.state_of(id) == "completed");
    CHECK(is_alive(tested.address));
    tested.worker.signal(SIGTERM);
    CHECK(tested.worker.wait() == 0);
    CHECK(jobs.state_of(late) == "available");
    CHECK(tested.worker.prints("cause=rpc"));
}

TEST_CASE("health: the unix socket is removed even if the worker exits while a handler still runs") {
    backend jobs;
    const std::string path = scratch_file("health.sock");
    served tested(jobs.url(), {{"OJS_HEALTH_ADDR", "unix:" + path},
                               {"OJS_HEALTH_CONTROL", "on"},
                               {"OJS_SHUTDOWN_GRACE_PERIOD", "50ms"}});
    tested.become_ready();
    REQUIRE(tested.worker.prints("start " + jobs.push_one("test.deaf", "[]")));
    CHECK(call(tested.address, "POST", "/stop").status == 202);
    CHECK(tested.worker.wait() == 0);
    CHECK(::access(path.c_str(), F_OK) != 0);
}

TEST_CASE("metrics: the page passes promtool's linter while the worker is idle, busy and draining") {
    backend jobs;
    served tested(jobs.url(), {{"OJS_QUEUES", "default,we\"ird\\queue"}});
    tested.become_ready();
    const std::string fresh = call(tested.address, "GET", "/metrics").body;
    for (const std::string& id : jobs.push("test.sleep", "[1]", 5)) REQUIRE(jobs.reaches(id, "completed"));
    REQUIRE(jobs.reaches(jobs.push_one("test.discard", "[]"), "discarded"));
    const std::string slow = jobs.push_one("test.sleep", "[60000]");
    REQUIRE(tested.worker.prints("start " + slow));
    const ojs::http_response busy = call(tested.address, "GET", "/metrics");
    tested.worker.signal(SIGTERM);
    REQUIRE(!jobs.event(beat_in_state("w", "quiet"))["event"].text.empty());
    const std::string draining = call(tested.address, "GET", "/metrics").body;

    CHECK(ojs::find_header(busy.headers, "Content-Type") == "text/plain; version=0.0.4; charset=utf-8");
    if (process({"/bin/sh", "-c", "promtool --version"}, {}).wait() != 0) {
        MESSAGE("promtool is not installed: the linter was not asked");
        return;
    }
    for (const std::string& page : {fresh, busy.body, draining}) CHECK(lint(page) == "");
    CHECK(lint("no metrics at all\n") != "");
    CHECK(lint("# HELP a_total A.\n# TYPE a_total gauge\na_total 1\n") != "");  // the linter finds faults
}
