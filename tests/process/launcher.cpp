// A launcher and the real processes it keeps: tools/lifecycle_runner, by the whole path from exec to the last exit.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "events.hpp"
#include "harness.hpp"

using namespace test;
using namespace std::chrono_literals;

namespace {

ojs::group_options group_of(int desired, std::vector<std::string> flags = {}) {
    ojs::group_options out;
    out.name = "kv";
    out.desired = out.min_healthy = desired;
    out.process.child.command = {program("lifecycle_runner"), "--work-duration", "1ms"};
    for (std::string& each : flags) out.process.child.command.push_back(std::move(each));
    out.min_ready_time = 50ms;
    out.process.readiness_interval = 20ms;
    out.process.shutdown.poll_interval = 20ms;
    return out;
}

ojs::launcher_options options_for(ojs::group_options group, counter& ready) {
    ojs::launcher_options out;
    out.groups = {std::move(group)};
    out.log.level = ojs::log_level::off;
    out.on_routable = [&ready](const ojs::process_info&) { ready.add(); };
    return out;
}

std::vector<ojs::process_info> processes(const ojs::launcher& of) {
    return of.group("kv")->processes;
}

// A launcher in a process of its own, with a state file.
struct apart {
    std::string config;  // of one or more groups
    std::string state = scratch_file("launcher.state");

    process start() const {
        const std::string file = scratch_file("launcher.json");
        std::ofstream(file) << "{\"state_file\":\"" << state << "\",\"orphan_grace_period\":\"200ms\","
                            << "\"process_groups\":[" << config << "]}";
        return process({program("config_launcher"), file}, {});
    }
    // The same with nothing to run: it ends what is left, and then itself.
    int clean_up() const {
        const apart empty{R"({"name":"none","command":["none"],"desired_instances":0})", state};
        process successor = empty.start();
        CHECK(successor.prints("launcher started"));
        successor.signal(SIGTERM);
        return successor.wait();
    }
};

std::string runners(const std::string& name, int count, const std::string& flags) {
    return "{\"name\":\"" + name + "\",\"desired_instances\":" + std::to_string(count) +
           R"(,"environment":{"OJS_TEST_MARK":"runner"},"command":[")" + program("lifecycle_runner") + "\"" +
           flags + "]}";
}

// The process groups of the processes that became ready.
std::vector<pid_t> groups_of(process& launcher) {
    std::vector<pid_t> out;
    std::istringstream text(launcher.output());
    for (std::string line; std::getline(text, line);) {
        char id[64];
        long pid = 0;
        if (std::sscanf(line.c_str(), "ready %63s %ld", id, &pid) == 2)
            out.push_back(static_cast<pid_t>(pid));
    }
    return out;
}

bool is_there(pid_t pid) {
    return ::kill(pid, 0) == 0;
}

}  // namespace

TEST_CASE("launcher: real processes become ready, are replaced one by one, and end when asked") {
    counter ready;
    ojs::launcher of(options_for(group_of(3), ready));
    REQUIRE(of.start());
    REQUIRE(ready.wait_for(3));
    const std::vector<ojs::process_info> old = processes(of);
    REQUIRE(old.size() == 3);

    const ojs::result<ojs::rolling_report> replaced = of.rolling_replace("kv", group_of(3));
    REQUIRE(replaced);
    CHECK_MESSAGE(replaced->replaced == 3, replaced->error);
    CHECK_FALSE(replaced->rolled_back);
    for (const ojs::process_info& each : old) {
        CHECK_FALSE(is_there(each.pid));
        const ojs::result<ojs::process_info> ended = of.process(each.id);
        REQUIRE(ended);
        CHECK_MESSAGE(ended->state == ojs::instance_state::complete, ended->message);
    }

    CHECK(of.group("kv")->ready == 3);
    of.request_stop();
    REQUIRE(of.wait(ojs::deadline_after(hang_guard)));
    CHECK(of.exit_code() == 0);
    for (const ojs::process_info& each : processes(of)) {
        CHECK_MESSAGE(each.state == ojs::instance_state::complete, each.message);
        CHECK_FALSE(each.killed);
        CHECK_FALSE(is_there(each.pid));
    }
}

TEST_CASE("launcher: a replacement that never becomes ready is taken back, and the old one serves on") {
    counter ready;
    ojs::launcher of(options_for(group_of(1), ready));
    REQUIRE(of.start());
    REQUIRE(ready.wait_for(1));
    const ojs::process_info old = processes(of).front();

    ojs::group_options never = group_of(1, {"--never-ready"});
    never.health_check_timeout = 300ms;
    const ojs::result<ojs::rolling_report> replaced = of.rolling_replace("kv", never);
    REQUIRE(replaced);
    CHECK(replaced->rolled_back);
    CHECK(replaced->replaced == 0);
    const ojs::result<ojs::process_info> still = of.process(old.id);
    REQUIRE(still);
    CHECK(still->state == ojs::instance_state::ready);
    CHECK(still->pid == old.pid);

    of.request_stop();
    REQUIRE(of.wait(ojs::deadline_after(hang_guard)));
    CHECK(of.exit_code() == 0);
}

TEST_CASE("launcher: a process says when it is ready, and is not asked again and again") {
    counter ready;
    ojs::group_options group = group_of(1, {"--ready-after", "100ms"});
    group.process.readiness_interval = 1h;  // the first look finds it warming
    ojs::launcher of(options_for(group, ready));
    REQUIRE(of.start());
    REQUIRE(ready.wait_for(1));
    CHECK(processes(of).front().startup_duration >= 100ms);
    of.request_stop();
    REQUIRE(of.wait(ojs::deadline_after(hang_guard)));
    CHECK(of.exit_code() == 0);
}

TEST_CASE("launcher: a process that hangs, and what it started, are killed when they do not end") {
    counter ready;
    ojs::group_options group = group_of(1, {"--behavior", "hang", "--ignore-sigterm", "--spawn-grandchild"});
    group.process.shutdown.grace_period = 100ms;
    group.process.shutdown.max_duration = 200ms;
    group.process.shutdown.kill_delay = 100ms;
    ojs::launcher of(options_for(group, ready));
    REQUIRE(of.start());
    REQUIRE(ready.wait_for(1));
    const pid_t pid = processes(of).front().pid;
    of.request_stop();
    REQUIRE(of.wait(ojs::deadline_after(hang_guard)));
    CHECK(of.exit_code() == 0);
    const ojs::process_info ended = processes(of).front();
    CHECK(ended.state == ojs::instance_state::forced);
    CHECK(ended.killed);
    CHECK(eventually([&] { return !runs_in_group(pid); }));
}

#ifdef __linux__  // elsewhere there is no /proc to find them by
TEST_CASE("launcher: of one that is killed some die along, and its successor ends all the rest") {
    const apart first{runners("along", 2, "") + "," +
                      runners("deaf", 2, R"(,"--behavior","hang","--ignore-sigterm")") + "," +
                      runners("parent", 2, R"(,"--spawn-grandchild")") + "," +
                      runners("both", 2, R"(,"--behavior","hang","--ignore-sigterm","--spawn-grandchild")")};
    process launcher = first.start();
    REQUIRE(eventually([&] { return groups_of(launcher).size() == 8; }));
    const std::vector<pid_t> groups = groups_of(launcher);
    launcher.signal(SIGKILL);
    REQUIRE(launcher.wait() == -SIGKILL);
    const auto left = [&] {
        return std::count_if(groups.begin(), groups.end(), [](pid_t each) { return runs_in_group(each); });
    };
    CHECK(eventually([&] { return left() == 6; }));  // all but two have someone who does not die along
    CHECK(first.clean_up() == 0);
    CHECK(left() == 0);
}

TEST_CASE("launcher: a third stop signal ends it at once, and its successor ends what it leaves") {
    std::string deaf = runners("deaf", 2, R"(,"--behavior","hang","--ignore-sigterm")");
    deaf.insert(deaf.size() - 1,
                R"(,"shutdown":{"grace_period":"1h","max_duration":"1h","kill_delay":"1h"})");
    const apart first{deaf};
    process launcher = first.start();
    REQUIRE(eventually([&] { return groups_of(launcher).size() == 2; }));
    const std::vector<pid_t> groups = groups_of(launcher);
    constexpr auto gap = 300ms;  // two stop signals closer together are one
    launcher.signal(SIGTERM);
    REQUIRE(launcher.prints("launcher draining"));
    std::this_thread::sleep_for(gap);
    launcher.signal(SIGTERM);
    REQUIRE(launcher.prints("launcher forces its processes"));
    std::this_thread::sleep_for(gap);
    CHECK_FALSE(launcher.ended());
    launcher.signal(SIGTERM);
    CHECK(launcher.wait() == 128 + SIGTERM);
    CHECK(launcher.prints("launcher exits at once"));
    CHECK(runs_in_group(groups[0]));
    CHECK(first.clean_up() == 0);
    for (const pid_t each : groups) CHECK_FALSE(runs_in_group(each));
}

TEST_CASE("launcher: killed at any point of its start, it leaves none that its successor does not end") {
    const std::string mark = scratch_file("mark");
    std::string deaf = runners("deaf", 8, R"(,"--behavior","hang","--ignore-sigterm")");
    deaf.replace(deaf.find("\"runner\""), 8, "\"" + mark + "\"");
    const apart first{deaf};
    for (int spawned = 0; spawned <= 8; ++spawned) {
        INFO(spawned);
        process launcher = first.start();
        REQUIRE(eventually([&] { return launcher.count("process spawned") >= spawned; }));
        launcher.signal(SIGKILL);
        REQUIRE(launcher.wait() == -SIGKILL);
        CHECK(first.clean_up() == 0);
        CHECK(count_marked(mark) == 0);
    }
}
#endif
