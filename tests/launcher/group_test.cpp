#include "fake_fleet.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using namespace std::chrono_literals;
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

TEST_CASE("process_group: a crashed process is restarted with a new id after its back-off") {
    fake_fleet fleet;
    group_options options = kv_group(2, 1, 1);
    options.restart.initial_backoff = options.restart.max_backoff = 1min;
    running_group kv(fleet, options);
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

TEST_CASE(
    "process_group: with on_failure, a process that exits with 0 or was asked to end is not restarted") {
    fake_fleet fleet;
    running_group kv(fleet, restarted_at_once(2));
    const auto ask = [&] { kv.group->drain({kv.group->members()[0]}, {"operator", {}, {}}); };
    SUBCASE("status 0 by itself") {
        fleet.get("kv-1")->becomes(instance_state::crashed, 0);
    }
    SUBCASE("asked for") {
        ask();
    }
    SUBCASE("asked for, and crashes on the way") {
        fleet.drains_at_once = false;
        ask();
        fleet.get("kv-1")->becomes(instance_state::crashed, 3);
    }
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
        reports +=
            record.message == "group degraded: too many restarts; a slot stays empty until the next rollout"
                ? 1
                : 0;
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

TEST_CASE(
    "process_group: a failed start is retried but is no restart in the metrics; with policy never it is not "
    "retried") {
    for (const bool out_of_memory : {false, true}) {
        fake_fleet fleet;
        int starts = 0;
        bool was_degraded = false;
        fleet.decide = [&](const detail::instance_spec&) {
            if (++starts == 10) return fate::ready;
            if (out_of_memory) throw std::bad_alloc();
            return fate::not_started;
        };
        group_options options = restarted_at_once(1);
        options.restart.max_restarts = 2;
        fake_group kv(fleet, options);
        for (time_point now = steady_clock::now(); starts < 10; now += 1s) {
            kv.group->reconcile(now);
            was_degraded = was_degraded || kv.group->info().degraded;
        }
        const group_info info = kv.group->info();
        CHECK(was_degraded);
        CHECK(fleet.ready() == 1);
        CHECK_FALSE(info.degraded);
        CHECK(info.processes[1].message == (out_of_memory ? "out of memory" : "no such program"));
        CHECK(info.processes[1].state == instance_state::crashed);
        CHECK(kv.group->metrics().restarts == 0);
    }
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec&) { return fate::not_started; };
    group_options options = restarted_at_once(1);
    options.restart.policy = restart_policy::never;
    fake_group kv(fleet, options);
    while (kv.turn() != time_point::max()) {
    }
    CHECK(kv.group->info().degraded);
    CHECK(kv.group->info().processes.size() == 1);
}

TEST_CASE(
    "process_group: a process is unhealthy before it was ready -> force() ends it, and a new process "
    "starts") {
    fake_fleet fleet;
    fleet.decide = [](const detail::instance_spec& spec) {
        return spec.id == "kv-1" ? fate::unhealthy : fate::ready;
    };
    running_group kv(fleet, restarted_at_once(1));
    kv.turn();
    CHECK(fleet.calls() == texts{"start kv-1", "force kv-1"});
    kv.turn();
    CHECK(fleet.running() == texts{"kv-2"});
}

TEST_CASE(
    "process_group: fewer than min_healthy are ready -> force() ends unhealthy processes one at a time") {
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

TEST_CASE(
    "process_group: a quiet group restarts no crashed and ends no unhealthy process, and refuses a rollout") {
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

TEST_CASE("process_group: with 100 starts due, fewer than 20 are in progress at a time") {
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

TEST_CASE("process_group: slots are restarted in the order in which their back-off ends") {
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
}

TEST_CASE("process_group: stop_starting() cancels a rollout, and no process is started after it") {
    fake_fleet fleet;
    fleet.decide_new(fate::late);
    running_group kv(fleet, restarted_at_once(2));
    std::thread roller([&] { CHECK(kv.rolled(restarted_at_once(2)).cancelled); });
    REQUIRE(fleet.notes().wait_for(3));
    CHECK(kv.group->info().rollout.phase == rollout_phase::starting);
    kv.group->stop_starting();
    roller.join();
    kv.group->drain(kv.group->members(), {"stop", {}, {}});
    CHECK(kv.group->members().empty());
    CHECK(kv.turn() == time_point::max());
    CHECK(fleet.running() == texts{});
    CHECK(kv.roll(restarted_at_once(2)).error().code == errc::busy);
}

TEST_CASE(
    "process_group: a stop, shutdown, quiet or rollout during a start applies to processes not started yet") {
    fake_fleet fleet;
    fake_group kv(fleet, kv_group(2, 0, 1));
    std::function<void()> meanwhile;
    fleet.decide = [&](const detail::instance_spec& spec) {
        if (spec.id == "kv-1") meanwhile();
        return fate::late;
    };
    texts calls{"start kv-1", "stop kv-1"};
    SUBCASE("nothing: the launcher stops") {
        meanwhile = [&] { kv.group->stop_starting(); };
    }
    SUBCASE("nothing: it is shut down") {
        meanwhile = [&] { CHECK(kv.group->shut_down({"operator", {}, {}})); };
    }
    SUBCASE("nothing for now: it is held") {
        meanwhile = [&] { kv.group->set_quiet(true); };
        calls = {"start kv-1"};
    }
    SUBCASE("another configuration: it is replaced") {
        meanwhile = [&] { CHECK(kv.group->begin_rollout(kv_group(2, 0, 1), {})); };
        kv.turn();
        CHECK(fleet.generations() == std::vector<std::uint64_t>{1, 2});
        return;
    }
    kv.turn();
    kv.turn();
    CHECK(fleet.calls() == calls);
    CHECK(kv.group->members().size() == 2 - calls.size());
}

TEST_CASE("process_group: on_unroutable hangs -> drain() waits for a second, then stops the process") {
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

#ifdef __GLIBC__  // where the default size of a stack can be more than there is
TEST_CASE(
    "routing_hooks: the thread that calls the hooks cannot be created -> start() fails with errc::system") {
    detail::routing_hooks hooks([](const process_info&) {}, nullptr, nullptr, detail::logger());
    pthread_attr_t before;
    pthread_attr_t too_large;
    REQUIRE(::pthread_getattr_default_np(&before) == 0);
    ::pthread_attr_init(&too_large);
    ::pthread_attr_setstacksize(&too_large, SIZE_MAX / 4);
    REQUIRE(::pthread_setattr_default_np(&too_large) == 0);
    const result<void> started = hooks.start();
    REQUIRE(::pthread_setattr_default_np(&before) == 0);
    CHECK(code_of(started) == errc::system);
}
#endif

TEST_CASE("restart_policy: the policy and the kind of exit decide whether a process is restarted") {
    for (const restart_policy each :
         {restart_policy::never, restart_policy::on_failure, restart_policy::always}) {
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

TEST_CASE(
    "restart_policy: the group is degraded after max_restarts, unless a process runs for stable_after") {
    restart_options options;
    options.max_restarts = 3;
    options.stable_after = 60s;
    restart_history history(options);
    time_point now = steady_clock::now();
    history.started_at = now;
    for (int i = 0; i < 3; ++i)
        CHECK(plan_restart(options, true, history, now).restart_at != time_point::max());
    const restart_decision last = plan_restart(options, true, history, now + 59s);
    CHECK(last.degraded);
    CHECK(last.restart_at == time_point::max());
    const restart_decision later = plan_restart(options, true, history, now + 60s);
    CHECK(later.restart_at <= now + 61s);  // the first pause again
    CHECK(history.restarts == 1);
}

#endif
