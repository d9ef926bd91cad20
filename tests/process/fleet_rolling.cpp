// Groups are replaced while they have work: no job is lost or done twice, no request fails, never are fewer ready than
// promised, and a rollout that fails half-way leaves the group serving as it was. Setting from the environment:
//
//   OJS_TEST_ROLLS   how often a group is replaced in each case; default 2
#include <fstream>
#include <iterator>

#include "harness.hpp"
#include "router.hpp"

using namespace test;
using namespace std::chrono_literals;

namespace {

constexpr int group_size = 8;

ojs::group_options group_of(std::vector<std::string> command) {
    ojs::group_options out;
    out.name = "group";
    out.desired = out.min_healthy = group_size;
    out.min_ready_time = 50ms;
    out.process.child.command = std::move(command);
    out.process.child.output = ojs::child_stream::null();
    out.process.child.errors = ojs::child_stream::null();
    return out;
}

ojs::launcher_options options_for(ojs::group_options group, counter& ready) {
    ojs::launcher_options out;
    out.groups = {std::move(group)};
    out.log.level = ojs::log_level::off;
    out.on_routable = [&ready](const ojs::process_info&) { ready.add(); };
    return out;
}

int rolls() {
    return static_cast<int>(number_from("OJS_TEST_ROLLS", 2));
}
// One by one, and three at a time.
int surge_of(int roll) {
    return roll % 2 == 0 ? 1 : 3;
}

void replace(ojs::launcher& of, ojs::group_options to, int surge) {
    to.max_surge = surge;
    const auto report = of.rollout("group", to);
    REQUIRE(report);
    CHECK_MESSAGE(report->replaced == group_size, report->failed_id << " " << report->error);
}

// The number at the end of an id, group-N.
int number_of(const ojs::process_info& of) {
    return std::atoi(of.id.c_str() + of.id.rfind('-') + 1);
}

// A rollout whose fifth new process does not become ready.
void fail_half_way(ojs::launcher& servers, ojs::group_options faulty, const std::string& end) {
    int newest = 0;
    const auto before = servers.group("group");
    for (const ojs::process_info& each : before->processes) newest = std::max(newest, number_of(each));
    const std::string fifth = std::to_string(newest + 5);
    std::vector<std::string>& command = faulty.process.child.command;
    command.insert(command.begin(),
                   {"/bin/sh", "-c",
                    "test \"${OJS_PROCESS_ID#group-}\" -ne " + fifth + " && exec \"$0\" \"$@\"; " + end});
    const auto report = servers.rollout("group", faulty);
    REQUIRE(report);
    CHECK(report->rolled_back);
    CHECK_FALSE(report->mixed);
    CHECK(report->replaced == 0);
    CHECK(report->failed_id == "group-" + fifth);
}

void stop(ojs::launcher& of) {
    of.request_stop();
    REQUIRE(of.wait(ojs::deadline_after(hang_guard)));
    CHECK(of.exit_code() == 0);
}

}  // namespace

TEST_CASE("rollout: workers are replaced under load, and every job runs exactly once") {
    if (!may_have_many_children()) return;
    backend jobs;
    const std::string done = scratch_file("done");
    ojs::group_options group = group_of({program("fleet"), "--worker", done});
    group.process.child.environment = {"OJS_URL=" + jobs.url(), "OJS_CONCURRENCY=4",
                                       "OJS_POLL_INTERVAL=20ms"};
    counter ready;
    ojs::launcher workers(options_for(group, ready));
    REQUIRE(workers.start());
    REQUIRE(ready.wait_for(group_size));
    // About as fast as they can be done.
    std::atomic<bool> enough{false};
    std::vector<std::string> pushed;
    std::thread load([&] {
        while (!enough) {
            for (std::string& id : jobs.push("fleet.job", "[]", 3)) pushed.push_back(std::move(id));
            std::this_thread::sleep_for(15ms);
        }
    });
    {
        const std::shared_ptr<void> ends(nullptr, [&](void*) { enough = true, load.join(); });
        for (int roll = 0; roll < rolls(); ++roll) replace(workers, group, surge_of(roll));
    }
    const auto all = static_cast<std::int64_t>(pushed.size());
    CHECK(eventually([&] { return jobs.summary()["completed"].number >= all; }));
    stop(workers);
    MESSAGE(rolls() << " rollouts, " << all << " jobs");
    std::ifstream file(done);
    std::vector<std::string> ended{std::istream_iterator<std::string>(file), {}};  // by their handlers
    std::sort(ended.begin(), ended.end());
    std::sort(pushed.begin(), pushed.end());
    CHECK(ended == pushed);
}

TEST_CASE("rollout: servers replaced or rolled back under load -> no request fails, min_healthy stay ready") {
    if (!may_have_many_children()) return;
    const ojs::group_options group = group_of({program("keyvalue_runner"), "--work-duration", "2ms"});
    router through(10ms);
    counter ready;
    ojs::launcher_options options = options_for(group, ready);
    options.on_routable = [&](const ojs::process_info& of) {
        through.add(of);
        ready.add();
    };
    options.on_unroutable = [&](const ojs::process_info& of) { through.remove(of); };
    ojs::launcher servers(options);
    REQUIRE(servers.start());
    REQUIRE(ready.wait_for(group_size));
    requests clients(through, 4);
    for (int roll = 0; roll < rolls(); ++roll) {
        replace(servers, group, surge_of(roll));
        fail_half_way(servers, group, roll % 2 == 0 ? "exit 3" : "kill -9 $$");
    }
    const int target = clients.sent() + 100;
    CHECK(eventually([&] { return clients.sent() >= target; }));  // requests still succeed
    clients.stop();

    MESSAGE(rolls() << " rollouts, " << clients.sent() << " requests");
    CHECK_MESSAGE(clients.failed() == 0, clients.failure());
    CHECK(through.fewest() >= group_size);
    // A second is how long the launcher waits for the hooks of three that are taken off together.
    CHECK((through.passed_on() == 0 || through.slowest_removal() > 300ms));
    const auto now = servers.group("group");
    REQUIRE(now);
    CHECK(now->ready == group_size);
    for (const ojs::process_info& each : now->processes) {
        if (ojs::is_final(each.state)) continue;
        CHECK_MESSAGE(each.generation == now->generation, each.id);
    }
    stop(servers);
}
