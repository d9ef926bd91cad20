// Under a service manager: a fake notify socket hears what systemd would.
#include <filesystem>
#include <fstream>

#include "harness.hpp"
#include "notify_socket.hpp"

namespace {
// Messages in the order they came.
class manager_end {
  public:
    const std::string& path() const { return socket_.name(); }
    int count(const std::string& text) {
        for (std::string next; (next = socket_.receive()) != "(nothing)";) messages_.push_back(next);
        int found = 0;
        for (const std::string& each : messages_) found += each.find(text) != std::string::npos ? 1 : 0;
        return found;
    }
    bool hears(const std::string& text) {
        return eventually([&] { return count(text) > 0; });
    }

  private:
    const notify_socket socket_{scratch_file("notify")};
    std::vector<std::string> messages_;
};
}  // namespace

// [River stuck programs (b)]
TEST_CASE("service manager: a worker sends READY, STATUS, STOPPING, time extensions and watchdog messages") {
    backend jobs;
    manager_end manager;
    process worker =
        start_worker(jobs.url(), "w",
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
    CHECK(worker.end_by(SIGTERM) == 0);
    CHECK(manager.hears("STATUS=terminated, "));
    CHECK(manager.count("READY=1") == 1);
    CHECK(manager.count("STOPPING=1") == 1);
    CHECK(jobs.state_of(id) == "available");
    CHECK(jobs.state_of(deaf) == "available");
}

TEST_CASE("service manager: a launcher sends READY=1, RELOADING=1 in a rollout, and extends its stop") {
    manager_end manager;
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
