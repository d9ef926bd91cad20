// Under a service manager: a fake notify socket hears what systemd would.
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "harness.hpp"

using namespace test;

namespace {

// The manager's end. Messages in the order they came.
class notify_socket {
  public:
    notify_socket() : path_(scratch_file("notify")), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un where{};
        where.sun_family = AF_UNIX;
        REQUIRE(path_.size() < sizeof where.sun_path);
        std::memcpy(where.sun_path, path_.c_str(), path_.size());
        REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&where), sizeof where) == 0);
    }
    ~notify_socket() { ::close(fd_); }

    const std::string& path() const { return path_; }
    const std::vector<std::string>& messages() {
        char text[4096];
        for (ssize_t n = 0; (n = ::recv(fd_, text, sizeof text, MSG_DONTWAIT)) > 0;)
            messages_.emplace_back(text, static_cast<std::size_t>(n));
        return messages_;
    }
    int count(const std::string& text) {
        int found = 0;
        for (const std::string& each : messages()) found += each.find(text) != std::string::npos ? 1 : 0;
        return found;
    }
    bool hears(const std::string& text) {
        return eventually([&] { return count(text) > 0; });
    }

  private:
    const std::string path_;
    const int fd_;
    std::vector<std::string> messages_;
};

}  // namespace

// [River stuck programs (b)]
TEST_CASE("service manager: a worker sends READY, STATUS, STOPPING, time extensions and watchdog messages") {
    backend jobs;
    notify_socket manager;
    process worker = start_worker(
        jobs.url(), "w",
        {{"NOTIFY_SOCKET", manager.path()}, {"WATCHDOG_USEC", "100000"}, {"OJS_SIGNAL_DEBOUNCE", "0s"}});
    const auto is_fed = [&] {
        const int before = manager.count("WATCHDOG=1");
        return eventually([&] { return manager.count("WATCHDOG=1") >= before + 4; });
    };
    REQUIRE(manager.hears("READY=1"));
    REQUIRE(is_fed());
    const std::string id = jobs.push_one("test.sleep", "[60000]");
    const std::string deaf = jobs.push_one("test.deaf", "[60000]");
    REQUIRE(worker.prints("start " + id));
    REQUIRE(worker.prints("start " + deaf));
    worker.signal(SIGTSTP);
    REQUIRE(manager.hears("STATUS=quiet, 2 jobs in flight"));
    CHECK(manager.count("STOPPING=1") == 0);
    CHECK(manager.count("EXTEND_TIMEOUT_USEC") == 0);
    worker.signal(SIGTERM);
    REQUIRE(manager.hears("STOPPING=1"));
    REQUIRE(is_fed());
    // Renewed, each for longer than until the next.
    REQUIRE(eventually([&] { return manager.count("EXTEND_TIMEOUT_USEC=5000000") >= 2; }));
    CHECK(manager.hears("STATUS=draining, 2 jobs in flight"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(manager.hears("STATUS=terminated, "));
    CHECK(manager.count("READY=1") == 1);
    CHECK(manager.count("STOPPING=1") == 1);
    CHECK(jobs.state_of(id) == "available");
    CHECK(jobs.state_of(deaf) == "available");
}

TEST_CASE(
    "service manager: a launcher sends READY=1 when each group has min_healthy, RELOADING=1 in a rollout, "
    "and "
    "EXTEND_TIMEOUT_USEC in its stop") {
    notify_socket manager;
    const std::string gate = scratch_file("gate");
    const std::string config = scratch_file("launcher.json");
    const std::string admin = "unix:" + scratch_file("sock");
    const std::string runner = program("lifecycle_runner");
    std::ofstream(config)
        << R"({"process_groups":[{"name":"first","min_healthy_instances":1,"min_ready_time":"50ms","command":[")"
        << runner << R"(","--behavior","slow-drain","--drain-duration","500ms"]},)"
        << R"({"name":"second","min_healthy_instances":1,"command":["sh","-c","while [ ! -e )" << gate
        << R"( ]; do sleep 0.01; done; exec )" << runner << R"("]}]})";
    process launcher({program("launcher"), "run", "--config", config, "--admin", admin},
                     {{"NOTIFY_SOCKET", manager.path()}, {"WATCHDOG_USEC", "100000"}});
    REQUIRE(launcher.prints("process ready  process_id=first-1"));
    const int fed = manager.count("WATCHDOG=1");
    REQUIRE(eventually([&] { return manager.count("WATCHDOG=1") >= fed + 3; }));
    CHECK(manager.count("READY=1") == 0);
    std::ofstream(gate) << "open";
    REQUIRE(manager.hears("READY=1\nSTATUS=running, 2 processes ready"));
    CHECK(manager.count("RELOADING=1") == 0);
    const process roll({program("launcher"), "roll", "first", "--admin", admin}, {});
    REQUIRE(manager.hears("RELOADING=1\nMONOTONIC_USEC="));
    CHECK(roll.wait() == 0);
    CHECK(eventually([&] { return manager.count("READY=1") == 2; }));
    CHECK(manager.count("EXTEND_TIMEOUT_USEC") == 0);
    std::filesystem::remove(gate);  // its new process does not become ready
    const process again({program("launcher"), "roll", "second", "--admin", admin}, {});
    REQUIRE(eventually([&] { return manager.count("RELOADING=1") == 2; }));
    launcher.signal(SIGTERM);
    REQUIRE(manager.hears("STOPPING=1"));
    CHECK(manager.hears("EXTEND_TIMEOUT_USEC=5000000"));
    CHECK(launcher.wait() == 0);
    CHECK(manager.count("STOPPING=1") == 1);
    CHECK(manager.count("READY=1") == 2);  // none for the second rollout
}

TEST_CASE("service manager: a worker that may not change priority, policy or limits still runs and drains") {
    const std::string runner = program("restricted");
    process probe({runner, "/bin/true"}, {});
    if (probe.wait() == 77) {
        MESSAGE("skipped: no seccomp here");
        return;
    }
    CHECK(process({runner, "/usr/bin/env", "nice", "true"}, {}).wait() == -SIGSYS);  // the filter is in force
    backend jobs;
    process worker({runner, program("test_worker")},
                   {{"OJS_URL", jobs.url()}, {"OJS_SIGNAL_DEBOUNCE", "0s"}});
    REQUIRE(jobs.reaches(jobs.push_one("test.sleep", "[10]"), "completed"));
    const std::string deaf = jobs.push_one("test.deaf", "[60000]");
    REQUIRE(worker.prints("start " + deaf));
    worker.signal(SIGTERM);
    REQUIRE(worker.prints("phase=draining"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    CHECK(jobs.state_of(deaf) == "available");
}
