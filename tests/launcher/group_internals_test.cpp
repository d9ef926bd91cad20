// Whole groups under random schedules: tests/sim/group.cpp.
#include "fake_fleet.hpp"

using detail::plan_restart;
using detail::restart_decision;
using detail::restart_history;
using namespace test;

namespace {
group_options restarted_at_once(int desired) {
    group_options out = kv_group(desired, 0, 1);
    out.restart.initial_backoff = out.restart.max_backoff = 0ms;
    return out;
}
}  // namespace

TEST_CASE("process_group: a process that was asked to end is not restarted under any policy") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    group_options options = restarted_at_once(2);
    options.restart.policy = restart_policy::always;
    running_group kv(fleet, options);
    kv.group->drain({kv.group->members()[0]}, {"operator", {}, {}});
    fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    kv.turn();
    CHECK(fleet.running() == texts{"kv-2"});
}

TEST_CASE("process_group: a slot that has used up max_restarts stays empty until a rollout succeeds") {
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
        reports += record.message == "group degraded: too many restarts; a slot stays empty until the next rollout";
    });
    while (kv.turn() != time_point::max()) {
    }
    CHECK(starts == 2 + 3);
    CHECK(fleet.running() == texts{"kv-2"});
    CHECK(kv.group->info().degraded);
    CHECK(reports == 1);
    // A rollout that succeeds ends it.
    fleet.decide = [](const detail::instance_spec&) { return fate::ready; };
    REQUIRE(kv.roll(options));
    kv.turn();
    CHECK_FALSE(kv.group->info().degraded);
    CHECK(fleet.ready() == 2);
}

TEST_CASE("process_group: a failed start is retried unless restart_policy is never, and does not count as a restart") {
    for (const bool retried : {true, false}) {
        fake_fleet fleet;
        int starts = 0;
        fleet.decide = [&](const detail::instance_spec&) {
            if (++starts == 10) return fate::ready;
            return fate::not_started;
        };
        group_options options = restarted_at_once(1);
        options.restart.max_restarts = 2;
        options.restart.policy = retried ? restart_policy::on_failure : restart_policy::never;
        fake_group kv(fleet, options);
        time_point now = steady_clock::now();
        kv.group->reconcile(now);
        kv.group->reconcile(now);
        CHECK(kv.group->info().degraded);
        for (int i = 0; i < 100; ++i) kv.group->reconcile(now += 1s);
        const group_info info = kv.group->info();
        CHECK(starts == (retried ? 10 : 1));
        CHECK(fleet.ready() == (retried ? 1 : 0));
        CHECK(info.degraded != retried);
        CHECK(info.processes.back().message == "no such program");
        CHECK(info.processes.back().state == instance_state::crashed);
        CHECK(kv.group->metrics().restarts == 0);
    }
}

TEST_CASE("process_group: below min_healthy, force() ends unhealthy processes one at a time") {
    fake_fleet fleet;
    group_options options = restarted_at_once(3);
    options.min_healthy = 2;
    running_group kv(fleet, options);
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

TEST_CASE("process_group: a quiet group starts and ends no process, and refuses a rollout") {
    fake_fleet fleet;
    running_group kv(fleet, restarted_at_once(2));
    kv.group->set_quiet(true);
    CHECK(kv.group->info().quiet);
    fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    fleet.get("kv-2")->becomes(instance_state::unhealthy);
    CHECK(kv.turn() == time_point::max());
    CHECK(fleet.calls() == texts{"start kv-1", "start kv-2"});
    const error refused = kv.roll(restarted_at_once(2)).error();
    CHECK(refused.code == errc::busy);
    CHECK(refused.text == "the launcher is quiet; send SIGCONT or call resume() first");
    kv.group->set_quiet(false);
    CHECK_FALSE(kv.group->info().quiet);
    for (int i = 0; i < 4; ++i) kv.turn();
    CHECK(fleet.running() == texts{"kv-3", "kv-4"});
}

TEST_CASE("process_group: with 100 starts due, 8 are in progress at a time") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec&) { return fate::hangs; };
    fake_group kv(fleet, restarted_at_once(100));
    for (int i = 0; i < 2; ++i) CHECK(kv.turn() == time_point::max());
    CHECK(fleet.running().size() == 8);
    fleet.get("kv-1")->becomes(instance_state::starting);
    fleet.get("kv-2")->becomes(instance_state::crashed, 3);
    kv.turn();
    CHECK(fleet.running().size() == 8 + 1);
}

TEST_CASE("process_group: crashed processes are restarted with new ids, in the order of their back-off") {
    fake_fleet fleet;
    group_options options = kv_group(3, 0, 1);
    options.restart.initial_backoff = 1min;
    options.restart.max_backoff = 100min;
    options.restart.max_restarts = 0;
    running_group kv(fleet, options);
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
    process_info ended;
    REQUIRE(kv.group->find("kv-1", ended));
    CHECK(ended.exit.code == 3);
}

TEST_CASE("restart_policy: the policy and the kind of exit decide whether a process is restarted") {
    for (const restart_policy each : {restart_policy::never, restart_policy::on_failure, restart_policy::always}) {
        CAPTURE(to_string(each));
        for (const bool failed : {false, true}) {
            restart_options options;
            options.policy = each;
            restart_history history(options);
            const time_point now = history.started_at = steady_clock::now();
            const bool restarts = plan_restart(options, failed, history, now).restart_at != time_point::max();
            CHECK(restarts == (failed ? each != restart_policy::never : each == restart_policy::always));
            history.restarts = options.max_restarts;
            CHECK(plan_restart(options, failed, history, now).degraded == restarts);
            CHECK(history.restarts == options.max_restarts);
        }
    }
}

TEST_CASE("restart_policy: each delay is at least half of a back-off that doubles up to max_backoff") {
    restart_options options;
    options.initial_backoff = 1000ms;
    options.max_backoff = 5000ms;
    options.max_restarts = 0;
    restart_history history(options);
    const time_point now = steady_clock::now();
    history.started_at = now;
    for (const auto longest : {1000ms, 2000ms, 4000ms, 5000ms, 5000ms}) {
        const restart_decision next = plan_restart(options, true, history, now);
        CHECK(next.restart_at <= now + longest);
        CHECK(next.restart_at >= now + longest / 2);
    }
}

TEST_CASE("restart_policy: max_restarts degrade the group, unless a process runs for stable_after") {
    restart_options options;
    options.max_restarts = 3;
    options.stable_after = 60s;
    restart_history history(options);
    time_point now = steady_clock::now();
    history.started_at = now;
    for (int i = 0; i < 3; ++i) CHECK(plan_restart(options, true, history, now).restart_at != time_point::max());
    const restart_decision last = plan_restart(options, true, history, now + 59s);
    CHECK(last.degraded);
    CHECK(last.restart_at == time_point::max());
    const restart_decision later = plan_restart(options, true, history, now + 60s);
    CHECK(later.restart_at <= now + 61s);  // the first pause again
    CHECK(history.restarts == 1);
}

TEST_CASE("group_plan: a rollout stops old processes that are not ready first") {
    detail::group_goal goal;
    goal.target = goal.max_old = 2;
    goal.replacing = true;
    const detail::group_plan plan =
        detail::plan_group({{false, true, true}, {false, false, false}, {true, true, true}}, goal);
    REQUIRE(plan.stops.size() == 1);
    CHECK(plan.stops[0] == 1);
}
