// A launcher and the real processes it keeps: examples/lifecycle_runner, by the whole path from exec to the last exit.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
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

bool is_there(pid_t pid) {
    return ::kill(pid, 0) == 0;
}

// What was killed may wait for init to reap it for a while, and is still in the group then.
bool runs_in_group(pid_t group) {
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
        std::ifstream file(entry.path() / "stat");
        std::string stat;
        if (!std::getline(file, stat)) continue;
        char state = 0;
        int parent = 0;
        int its_group = 0;
        const std::size_t name_end = stat.rfind(')');
        if (name_end != std::string::npos &&
            std::sscanf(stat.c_str() + name_end + 1, " %c %d %d", &state, &parent, &its_group) == 3 &&
            its_group == group && state != 'Z' && state != 'X')
            return true;
    }
    return false;
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
    CHECK_MESSAGE(replaced->replaced == 3, replaced->why);
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
