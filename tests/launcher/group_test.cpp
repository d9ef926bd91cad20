#include <functional>
#include <new>
#include <thread>

#include "fake_fleet.hpp"
#include "test.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using namespace std::chrono_literals;
using test::fake_fleet;
using test::fake_group;
using test::fate;
using test::kv_group;
using texts = std::vector<std::string>;

namespace {

group_options restarted_at_once(int desired) {
    group_options out = kv_group(desired, 0, 1);
    out.restart.initial_backoff = out.restart.max_backoff = 0ms;
    return out;
}

}  // namespace

TEST_CASE("process_group: starts as many as are desired, and no more") {
    fake_fleet fleet;
    fake_group kv(fleet, kv_group(3, 2, 1));
    CHECK(kv.turn() == time_point::max());
    kv.turn();
    CHECK(fleet.running() == texts{"kv-1", "kv-2", "kv-3"});
    const group_info info = kv.group->info();
    CHECK(info.ready == 3);
    CHECK(info.processes.size() == 3);
    CHECK_FALSE(info.degraded);
}

TEST_CASE("process_group: what crashed is started again under another id, after its pause") {
    fake_fleet fleet;
    group_options options = kv_group(2, 1, 1);
    options.restart.initial_backoff = options.restart.max_backoff = 1min;
    fake_group kv(fleet, options);
    kv.turn();
    fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    const time_point due = kv.turn();
    CHECK(fleet.running() == texts{"kv-2"});
    CHECK(due > steady_clock::now() + 20s);
    CHECK(due <= steady_clock::now() + 1min);
    CHECK(kv.group->reconcile(due) == time_point::max());
    CHECK(fleet.running() == texts{"kv-2", "kv-3"});
    process_info ended;
    REQUIRE(kv.group->find("kv-1", ended));
    CHECK(ended.exit.code == 3);
}

TEST_CASE("process_group: the policy distinguishes exits") {
    fake_fleet fleet;
    group_options options = restarted_at_once(2);
    fake_group kv(fleet, options);
    kv.turn();
    SUBCASE("status 0 by itself") {
        fleet.get("kv-1")->becomes(instance_state::crashed, 0);
        kv.turn();
        CHECK(fleet.running() == texts{"kv-2"});
    }
    SUBCASE("asked for") {
        kv.group->drain({kv.group->members()[0]}, {"operator", {}, {}});
        kv.turn();
        CHECK(fleet.running() == texts{"kv-2"});
    }
    SUBCASE("asked for, and crashes on the way") {
        fleet.drains_at_once = false;
        kv.group->drain({kv.group->members()[0]}, {"operator", {}, {}});
        fleet.get("kv-1")->becomes(instance_state::crashed, 3);
        kv.turn();
        CHECK(fleet.running() == texts{"kv-2"});
        fleet.drains_at_once = true;
    }
}

TEST_CASE("process_group: a slot that fails too often stays empty, the others do not") {
    fake_fleet fleet;
    int starts = 0;
    fleet.decide = [&](const detail::instance_spec& spec) {
        ++starts;
        return spec.id == "kv-1" || starts > 2 ? fate::crashes : fate::ready;
    };
    group_options options = restarted_at_once(2);
    options.restart.max_restarts = 3;
    int reports = 0;
    fake_group kv(fleet, options, [&](const log_record& record) {
        reports += record.message == "group degraded, a slot stays empty" ? 1 : 0;
    });
    while (kv.turn() != time_point::max()) {
    }
    CHECK(starts == 2 + 3);
    CHECK(fleet.running() == texts{"kv-2"});
    CHECK(kv.group->info().degraded);
    CHECK(reports == 1);
    // A replacement that succeeds ends it.
    fleet.decide = [](const detail::instance_spec&) { return fate::ready; };
    REQUIRE(kv.roll(options));
    kv.turn();
    CHECK_FALSE(kv.group->info().degraded);
    CHECK(fleet.ready() == 2);
}

TEST_CASE("process_group: a failed start counts as a restart, and is reported") {
    fake_fleet fleet;
    int starts = 0;
    fleet.decide = [&](const detail::instance_spec&) {
        ++starts;
        return fate::not_started;
    };
    group_options options = restarted_at_once(1);
    options.restart.max_restarts = 2;
    fake_group kv(fleet, options);
    while (kv.turn() != time_point::max()) {
    }
    CHECK(starts == 3);
    const group_info info = kv.group->info();
    CHECK(info.degraded);
    REQUIRE(info.processes.size() == 3);
    CHECK(info.processes[0].message == "no such program");
    CHECK(info.processes[0].state == instance_state::crashed);
}

TEST_CASE("process_group: a process that is unhealthy before ready is forced and restarted") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec& spec) {
        return spec.id == "kv-1" ? fate::unhealthy : fate::ready;
    };
    fake_group kv(fleet, restarted_at_once(1));
    kv.turn();
    kv.turn();
    CHECK(fleet.calls() == texts{"start kv-1", "force kv-1"});
    kv.turn();
    CHECK(fleet.running() == texts{"kv-2"});
}

TEST_CASE("process_group: unhealthy processes are forced one at a time while too few are ready") {
    fake_fleet fleet;
    group_options options = restarted_at_once(3);
    options.min_healthy = 2;
    fake_group kv(fleet, options);
    kv.turn();
    fleet.decide = [](const detail::instance_spec&) { return fate::late; };
    for (const char* id : {"kv-1", "kv-2", "kv-3"}) fleet.get(id)->becomes(instance_state::unhealthy);
    kv.turn();
    CHECK(fleet.calls().back() == "force kv-1");
    kv.turn();
    kv.turn();
    CHECK(fleet.running() == texts{"kv-2", "kv-3", "kv-4"});  // kv-4 is not ready yet
    fleet.get("kv-4")->becomes(instance_state::ready);
    kv.turn();
    CHECK(fleet.running() == texts{"kv-3", "kv-4"});
    fleet.get("kv-3")->becomes(instance_state::ready);  // got well by itself
    kv.turn();
    fleet.get("kv-5")->becomes(instance_state::ready);
    kv.turn();
    CHECK(fleet.running() == texts{"kv-3", "kv-4", "kv-5"});
}

TEST_CASE("process_group: while quiet nothing is restarted") {
    fake_fleet fleet;
    fake_group kv(fleet, restarted_at_once(2));
    kv.turn();
    kv.group->set_quiet(true);
    fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    CHECK(kv.turn() == time_point::max());
    CHECK(fleet.running() == texts{"kv-2"});
    kv.group->set_quiet(false);
    kv.turn();
    CHECK(fleet.running() == texts{"kv-2", "kv-3"});
}

TEST_CASE("process_group: while quiet nothing is forced or replaced, and the status shows it") {
    fake_fleet fleet;
    fake_group kv(fleet, restarted_at_once(2));
    kv.turn();
    kv.group->set_quiet(true);
    CHECK(kv.group->info().quiet);
    for (const char* id : {"kv-1", "kv-2"}) fleet.get(id)->becomes(instance_state::unhealthy);
    kv.turn();
    CHECK(fleet.calls() == texts{"start kv-1", "start kv-2"});
    const error refused = kv.roll(restarted_at_once(2)).error();
    CHECK(refused.code == errc::busy);
    CHECK(refused.text == "the launcher is quiet: SIGCONT or resume() ends that");
    kv.group->set_quiet(false);
    CHECK_FALSE(kv.group->info().quiet);
    kv.turn();
    CHECK(fleet.calls().back() == "force kv-1");
}

TEST_CASE("process_group: of many that are due, a few start at a time, and the rest as those run") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec&) { return fate::hangs; };
    fake_group kv(fleet, restarted_at_once(100));
    CHECK(kv.turn() == time_point::max());
    CHECK(kv.turn() == time_point::max());
    const std::size_t at_once = fleet.running().size();
    CHECK(at_once < 20);
    fleet.get("kv-1")->becomes(instance_state::starting);
    fleet.get("kv-2")->becomes(instance_state::crashed, 3);
    kv.turn();
    CHECK(fleet.running().size() == at_once + 1);
    kv.group->stop_starting();
    kv.group->drain(kv.group->members(), {"stop", {}, {}});
    CHECK(kv.turn() == time_point::max());
    CHECK(kv.group->members().empty());
    CHECK(fleet.running() == texts{});
}

TEST_CASE("process_group: places are filled in the order in which they are due") {
    fake_fleet fleet;
    group_options options = kv_group(3, 0, 1);
    options.restart.initial_backoff = 1min;
    options.restart.max_backoff = 100min;
    options.restart.max_restarts = 0;
    fake_group kv(fleet, options);
    kv.turn();
    fleet.decide = [](const detail::instance_spec&) { return fate::crashes; };
    fleet.get("kv-2")->becomes(instance_state::crashed, 3);
    const time_point first = kv.turn();
    CHECK(kv.group->reconcile(first) == first);            // it fails at once
    const time_point second = kv.group->reconcile(first);  // the same place, after a longer pause
    CHECK(second > first);
    fleet.decide = [](const detail::instance_spec&) { return fate::ready; };
    fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    const time_point third = kv.turn();
    CHECK(third < second);
    CHECK(kv.group->reconcile(third) == second);
    CHECK(kv.group->reconcile(second) == time_point::max());
    CHECK(fleet.running() == texts{"kv-3", "kv-5", "kv-6"});
}

TEST_CASE("process_group: where there is no memory a start has failed, and is tried again") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec& spec) {
        if (spec.id == "kv-1") throw std::bad_alloc();
        return fate::ready;
    };
    fake_group kv(fleet, restarted_at_once(2));
    kv.turn();
    process_info ended;
    REQUIRE(kv.group->find("kv-1", ended));
    CHECK(ended.state == instance_state::crashed);
    CHECK(ended.message == "out of memory");
    kv.turn();
    CHECK(fleet.running() == texts{"kv-2", "kv-3"});
}

TEST_CASE("process_group: a stop ends a replacement, and nothing is started any more") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec& spec) {
        return spec.generation == 1 ? fate::ready : fate::late;
    };
    fake_group kv(fleet, restarted_at_once(2));
    kv.turn();
    result<rolling_report> done = error{};
    std::thread roller([&] { done = kv.roll(restarted_at_once(2)); });
    REQUIRE(fleet.notes().wait_for(3));
    kv.group->stop_starting();
    roller.join();
    REQUIRE(done);
    CHECK(done->cancelled);
    kv.group->drain(kv.group->members(), {"stop", {}, {}});
    CHECK(kv.group->members().empty());
    CHECK(kv.turn() == time_point::max());
    CHECK(fleet.running() == texts{});
    CHECK(kv.roll(restarted_at_once(2)).error().code == errc::busy);
}

TEST_CASE("process_group: a shutdown requested during a start reaches the process") {
    fake_fleet fleet;
    fake_group* made = nullptr;
    fleet.decide = [&](const detail::instance_spec&) {
        made->group->stop_starting();
        return fate::late;
    };
    fake_group kv(fleet, kv_group(1, 0, 1));
    made = &kv;
    kv.turn();
    CHECK(fleet.calls() == texts{"start kv-1", "stop kv-1"});
    CHECK(kv.group->members().empty());
}

TEST_CASE(
    "process_group: places that are due wait for their turn, in which the group may want something else") {
    fake_fleet fleet;
    fake_group* made = nullptr;
    std::function<void()> meanwhile;
    fleet.decide = [&](const detail::instance_spec& spec) {
        if (spec.id == "kv-1") meanwhile();
        return fate::late;
    };
    fake_group kv(fleet, kv_group(2, 0, 1));
    made = &kv;
    SUBCASE("nothing: it is shut down") {
        meanwhile = [&] { CHECK(made->group->shut_down({"operator", {}, {}})); };
        kv.turn();
        CHECK(kv.turn() == time_point::max());
        CHECK(fleet.calls() == texts{"start kv-1", "stop kv-1"});
    }
    SUBCASE("nothing for now: it is held") {
        meanwhile = [&] { made->group->set_quiet(true); };
        kv.turn();
        CHECK(fleet.calls() == texts{"start kv-1"});
    }
    SUBCASE("another configuration: it is replaced") {
        meanwhile = [&] { CHECK(made->group->begin_rollout(kv_group(2, 0, 1), {})); };
        kv.turn();
        CHECK(fleet.generations() == std::vector<std::uint64_t>{1, 2});
    }
}

TEST_CASE("process_group: a hook that does not return holds up a shutdown for a second at most") {
    fake_fleet fleet;
    test::event let_go;
    fake_group kv(fleet, kv_group(1, 0, 1));
    kv.context->routing = detail::make_ref<detail::routing_hooks>(
        nullptr, [&](const process_info&) { static_cast<void>(let_go.wait()); }, nullptr, kv.context->log);
    kv.with_hooks();
    kv.turn();
    const time_point begun = steady_clock::now();
    kv.group->drain(kv.group->members(), {"stop", {}, {}});
    CHECK(steady_clock::now() - begun >= 1s);
    CHECK(fleet.calls().back() == "stop kv-1");
    let_go.set();
}

TEST_CASE("process_group: a group that was shut down stays down until it is replaced") {
    fake_fleet fleet;
    fake_group kv(fleet, restarted_at_once(2));
    kv.turn();
    REQUIRE(kv.group->shut_down({"operator", {}, {}}));
    CHECK(kv.turn() == time_point::max());
    CHECK(fleet.running() == texts{});
    REQUIRE(kv.roll(restarted_at_once(2)));
    kv.turn();
    CHECK(fleet.ready() == 2);
}

#endif
