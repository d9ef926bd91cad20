// A program that forks after it has installed signals and made its worker: a pre-fork server.
#include "harness.hpp"

using namespace test;

// [WP 3.1 (c)]
TEST_CASE("worker: after fork() each child runs a worker of its own, and all stop with the parent") {
    backend jobs;
    process parent({program("prefork_worker"), "3"}, {{"OJS_URL", jobs.url()},
                                                      {"OJS_CONCURRENCY", "1"},
                                                      {"OJS_POLL_INTERVAL", "10ms"},
                                                      {"OJS_HEARTBEAT_INTERVAL", "100ms"}});
    REQUIRE(parent.prints("forked"));
    std::set<std::string> workers;
    jobs.event([&](const json& event) {
        if (event["event"].is("beat")) workers.insert(event["worker_id"].text);
        return workers.size() == 3;
    });
    CHECK(workers.size() == 3);
    const std::vector<std::string> ids = jobs.push("test.pid", "[]", 30);
    std::set<std::int64_t> pids;
    for (const std::string& id : ids) {
        CHECK(jobs.reaches(id, "completed"));
        CHECK(jobs.count(job_event(id, "ack")) == 1);
        pids.insert(jobs.job(id)["result"].number);
    }
    CHECK(pids.count(parent.pid()) == 0);
    parent.signal(SIGTERM);
    CHECK(parent.wait() == 0);
    CHECK(parent.count(": exit 0") == 3);
}
