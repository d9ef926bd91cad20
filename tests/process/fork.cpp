// Programs that fork after they have installed signals and made their worker: pre-fork servers and daemons.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <set>

#include "harness.hpp"

using namespace test;

namespace {

process start_forking(const backend& jobs, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), program("prefork_worker"));
    return process(arguments, {{"OJS_URL", jobs.url()},
                               {"OJS_CONCURRENCY", "1"},
                               {"OJS_POLL_INTERVAL", "10ms"},
                               {"OJS_HEARTBEAT_INTERVAL", "100ms"}});
}

}  // namespace

TEST_CASE("fork: each child runs its parent's worker as a separate worker, and all stop with it") {
    backend jobs;
    process parent = start_forking(jobs, {"fork", "3"});
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

TEST_CASE("fork: a daemon runs the worker and gets the signals set up before it forked") {
    backend jobs;
    process starter = start_forking(jobs, {"daemon"});
    REQUIRE(starter.prints("daemon "));
    CHECK(starter.wait() == 0);
    const std::string& log = starter.output();
    const auto pid = static_cast<pid_t>(std::strtol(log.c_str() + log.find("daemon ") + 7, nullptr, 10));
    REQUIRE(pid > 1);
    pid_t left = pid;  // no child of ours
    const std::shared_ptr<void> guard(nullptr, [&](void*) { left > 1 ? ::kill(left, SIGKILL) : 0; });
    const std::string id = jobs.push_one("test.pid", "[]");
    CHECK(jobs.reaches(id, "completed"));
    CHECK(jobs.job(id)["result"].number == pid);
#ifndef __SANITIZE_THREAD__  // it forbids threads in the child of a multithreaded process
    // The parent's run() does not belong to its child: the child ends, although it abandons a handler.
    const std::string forked = jobs.push_one("test.child", "[]");
    CHECK(jobs.reaches(forked, "completed"));
    CHECK(jobs.job(forked)["result"].is("exit 0"));
#endif
    REQUIRE(::kill(pid, SIGTERM) == 0);
    REQUIRE(starter.prints("status "));
    left = 0;
    CHECK(starter.prints("status 0"));
}
