#include "fake_fleet.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using namespace std::chrono_literals;
using namespace test;

namespace {

bool all_of_one_generation(const fake_fleet& fleet, std::uint64_t generation) {
    for (const std::uint64_t each : fleet.generations()) {
        if (each != generation) return false;
    }
    return true;
}

std::size_t index_of(const texts& all, const std::string& what) {
    const auto found = std::find(all.begin(), all.end(), what);
    REQUIRE_MESSAGE(found != all.end(), what);
    return static_cast<std::size_t>(found - all.begin());
}

}  // namespace

TEST_CASE("rollout: each new process is routable before the oldest old process drains") {
    fake_fleet fleet;
    fleet.max_running = 3;
    fake_group kv(fleet, kv_group(2, 2, 1));
    kv.with_hooks();
    kv.turn();
    const rollout_report done = kv.rolled(kv_group(2, 2, 1));
    CHECK(done.replaced == 2);
    CHECK(done.total == 2);
    texts calls = fleet.calls();
    CHECK(index_of(calls, "on kv-3") < index_of(calls, "off kv-1"));
    CHECK(index_of(calls, "off kv-1") < index_of(calls, "stop kv-1"));
    CHECK(index_of(calls, "on kv-4") < index_of(calls, "off kv-2"));
    const auto is_hook = [](const std::string& each) { return each[0] == 'o'; };
    calls.erase(std::remove_if(calls.begin(), calls.end(), is_hook), calls.end());
    CHECK(calls == texts{"start kv-1", "start kv-2", "start kv-3", "stop kv-1", "start kv-4", "stop kv-2"});
    CHECK(fleet.running() == texts{"kv-3", "kv-4"});
    CHECK(kv.group->info().generation == 2);
    CHECK(kv.group->info().message == "replaced 2 of 2");
}

TEST_CASE("rollout: the next new process starts only after the old process has drained") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    fleet.max_running = 3;
    running_group kv(fleet, kv_group(2, 1, 1));
    std::thread roller([&] { CHECK(kv.roll(kv_group(2, 1, 1))); });
    REQUIRE(fleet.notes().wait_for(4));
    CHECK(fleet.calls() == texts{"start kv-1", "start kv-2", "start kv-3", "stop kv-1"});
    fleet.get("kv-1")->becomes(instance_state::draining);
    CHECK(fleet.running().size() == 3);
    fleet.get("kv-1")->becomes(instance_state::complete);
    REQUIRE(fleet.notes().wait_for(6));
    fleet.get("kv-2")->becomes(instance_state::complete);
    roller.join();
    CHECK(fleet.broken() == texts{});
}

TEST_CASE("rollout: as many new processes start at once as max_surge allows, and never more") {
    for (const int surge : {0, 1, 2, 3, 8}) {
        CAPTURE(surge);
        fake_fleet fleet;
        fleet.max_running = 5 + (surge == 0 ? 1 : surge);
        fleet.min_ready = 5;
        running_group kv(fleet, kv_group(5, 5, surge));
        REQUIRE(kv.roll(kv_group(5, 5, surge)));
        CHECK(fleet.broken() == texts{});
        CHECK(fleet.running().size() == 5);
        // The first batch is as large as it may be.
        const int batch = surge == 0 ? 1 : surge < 5 ? surge : 5;
        CHECK(index_of(fleet.calls(), "stop kv-1") == static_cast<std::size_t>(5 + batch));
    }
}

TEST_CASE("rollout: a new process that exits within min_ready_time is never routable and fails the rollout") {
    fake_fleet fleet;
    fleet.min_ready = 2;
    fake_group kv(fleet, kv_group(2, 2, 1));
    kv.with_hooks();
    kv.turn();
    CHECK(fleet.notes().wait_for(4));  // two are started and routable
    group_options target = kv_group(2, 2, 1);
    target.min_ready_time = 1h;
    std::thread crash([&] {
        CHECK(fleet.notes().wait_for(5));  // kv-3 is ready
        fleet.get("kv-3")->becomes(instance_state::crashed, 0);
    });
    const result<rollout_report> done = kv.roll(target);
    crash.join();
    REQUIRE(done);
    CHECK(done->rolled_back);
    CHECK(done->failed_id == "kv-3");
    CHECK(done->error == "exited with status 0 after it was ready");
    CHECK(fleet.calls().back() == "start kv-3");  // it was given no work
    CHECK(fleet.running() == texts{"kv-1", "kv-2"});
    CHECK(fleet.broken() == texts{});
}

TEST_CASE(
    "rollout: min_ready_time is 5s by default, 1s without a coordinator; pre_shutdown extends stop_time()") {
    group_options options;
    CHECK(detail::min_ready_time(options) == 5s);
    options.process.has_coordinator = false;  // it is ready once it runs
    CHECK(detail::min_ready_time(options) == 1s);
    options.min_ready_time = 0s;
    CHECK(detail::min_ready_time(options) == 0s);
    CHECK(detail::stop_time(options.process) == 19s);
    options.process.pre_shutdown = {"deregister"};
    CHECK(detail::stop_time(options.process) == 24s);
    options.process.shutdown.max_duration = options.process.shutdown.kill_delay = no_limit;
    CHECK(deadline_after(detail::stop_time(options.process)) == time_point::max());
}

TEST_CASE("rollout: after a failure all processes have one configuration, or the report says mixed") {
    const auto each_new = [](fate ends) {
        return [ends](std::uint64_t generation, int) { return generation == 1 ? fate::ready : ends; };
    };
    using decision = std::function<fate(std::uint64_t generation, int started)>;
    const decision last_one = [](std::uint64_t, int started) {
        return started == 6 ? fate::crashes : fate::ready;
    };
    const decision rollback_too = [](std::uint64_t, int started) {
        return started >= 4 ? fate::crashes : fate::ready;
    };
    const decision old_ones = [](std::uint64_t generation, int) {
        return generation == 1 ? fate::late : fate::ready;
    };
    const struct {
        const char* name;
        int desired;
        decision decide;
        bool rolled_back, mixed;
        int replaced;
        const char* failed_id;
        texts running;
    } rows[] = {{"late", 2, each_new(fate::late), true, false, 0, "kv-3", {"kv-1", "kv-2"}},
                {"unhealthy", 2, each_new(fate::unhealthy), true, false, 0, "kv-3", {"kv-1", "kv-2"}},
                {"crashes", 2, each_new(fate::crashes), true, false, 0, "kv-3", {"kv-1", "kv-2"}},
                {"not started", 2, each_new(fate::not_started), true, false, 0, "kv-3", {"kv-1", "kv-2"}},
                {"the last one", 3, last_one, true, false, 0, "kv-6", {"kv-3", "kv-7", "kv-8"}},
                {"a rollback that fails too", 2, rollback_too, true, true, 1, "kv-4", {"kv-2", "kv-3"}},
                {"none of the old was ready", 2, old_ones, false, false, 2, "", {"kv-3", "kv-4"}}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        fake_fleet fleet;
        int started = 0;
        fleet.decide = [&](const detail::instance_spec& spec) {
            return row.decide(spec.generation, ++started);
        };
        fleet.max_running = row.desired + 1;
        group_options options = kv_group(row.desired, row.desired, 1);
        options.health_check_timeout = 30ms;
        running_group kv(fleet, options);
        fleet.min_ready = fleet.ready();
        const rollout_report done = kv.rolled(options);
        CHECK(done.rolled_back == row.rolled_back);
        CHECK(done.mixed == row.mixed);
        CHECK(done.replaced == row.replaced);
        CHECK(done.error.empty() != row.rolled_back);
        CHECK(done.failed_id == row.failed_id);
        CHECK(fleet.running() == row.running);
        CHECK(fleet.broken() == texts{});
        const std::uint64_t generation = row.rolled_back ? 1 : 2;
        CHECK(kv.group->info().generation == generation);
        if (!row.mixed) CHECK(all_of_one_generation(fleet, generation));
        if (row.mixed) continue;
        kv.turn();
        CHECK(fleet.running() == row.running);
    }
}

TEST_CASE("rollout: a new process past health_check_timeout is polled once more and can become ready") {
    fake_fleet fleet;
    fleet.ready_if_asked = true;
    fleet.decide_new(fate::late);
    running_group kv(fleet, kv_group(2, 1, 1));
    group_options target = kv_group(2, 1, 1);
    target.health_check_timeout = 1ms;
    const rollout_report done = kv.rolled(target);
    CHECK_FALSE(done.rolled_back);
    CHECK(done.replaced == 2);
}

TEST_CASE(
    "rollout: canaries stay ready for canary_wait and pass canary_check before processes are replaced") {
    const struct {
        const char* name;
        int before, after, canary;
        bool emptied;         // shut down before
        std::size_t running;  // while they are checked
        texts checked;
    } rows[] = {{"all the old ones are there still", 4, 4, 1, false, 5, {"kv-5"}},
                {"fewer are wanted than canaries: all of them", 3, 1, 2, false, 4, {"kv-4"}},
                {"an empty group has canaries too", 2, 2, 1, true, 1, {"kv-3"}}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        fake_fleet fleet;
        const int healthy = std::min(row.before, row.after);
        fleet.max_running = row.before + 2;
        running_group kv(fleet, kv_group(row.before, healthy, 2));
        if (row.emptied) REQUIRE(kv.group->shut_down({"over for today", {}, {}}));
        fleet.min_ready = row.emptied ? 0 : healthy;
        rollout_options how;
        how.canary = row.canary;
        how.canary_wait = 20ms;
        texts checked;
        how.canary_check = [&](const std::vector<process_info>& canaries) -> result<void> {
            for (const process_info& each : canaries) checked.push_back(each.id);
            CHECK(fleet.running().size() == row.running);
            return {};
        };
        const time_point begun = steady_clock::now();
        CHECK(kv.rolled(kv_group(row.after, healthy, 2), how).replaced == (row.emptied ? 0 : row.before));
        CHECK(checked == row.checked);
        CHECK(steady_clock::now() - begun >= 20ms);
        CHECK(fleet.ready() == row.after);
        CHECK(fleet.broken() == texts{});
    }
}

TEST_CASE("rollout: failed canaries are rolled back") {
    const struct {
        result<void> (*check)(const std::vector<process_info>&);
        const char* failed_id;
        std::string error;
    } rows[] = {{[](const auto&) -> result<void> {
                     return error{errc::rejected, 0, "too many errors"};
                 },
                 "", "canary check failed: too many errors"},
                {[](const auto&) -> result<void> { throw 1; }, "",
                 "canary check failed: canary_check threw an exception"},
                {nullptr, "kv-5", "became unhealthy"}};
    for (const auto& row : rows) {
        CAPTURE(row.error);
        fake_fleet fleet;
        fleet.max_running = 6;
        fleet.min_ready = 4;
        running_group kv(fleet, kv_group(4, 4, 2));
        rollout_options how;
        how.canary = 1;
        how.canary_wait = row.check == nullptr ? 1min : 0ms;
        if (row.check != nullptr) how.canary_check = row.check;
        std::thread ill([&] {
            CHECK(fleet.notes().wait_for(5));
            if (row.check == nullptr) fleet.get("kv-5")->becomes(instance_state::unhealthy);
        });
        const rollout_report done = kv.rolled(kv_group(4, 4, 2), how);
        ill.join();
        CHECK(done.rolled_back);
        CHECK(done.error == row.error);
        CHECK(done.failed_id == row.failed_id);
        CHECK(fleet.running() == texts{"kv-1", "kv-2", "kv-3", "kv-4"});
        CHECK_FALSE(kv.group->info().replacing);
        CHECK(fleet.broken() == texts{});
    }
}

TEST_CASE("rollout: an empty group whose rollout fails stays empty") {
    fake_fleet fleet;
    running_group kv(fleet, kv_group(2, 2, 1));
    REQUIRE(kv.group->shut_down({"over for today", {}, {}}));
    fleet.decide_new(fate::crashes);
    CHECK(kv.rolled(kv_group(2, 2, 1)).rolled_back);
    kv.turn();
    CHECK(fleet.running() == texts{});
}

TEST_CASE("rollout: a rollback restores the configuration that the group had when the rollout began") {
    fake_fleet fleet;
    const auto named = [](const char* command) {
        group_options out = kv_group(2, 0, 1);
        out.process.child.command = {command};
        return out;
    };
    texts started;
    fleet.decide = [&](const detail::instance_spec& spec) {
        started.push_back(spec.options.child.command[0]);
        return started.size() == 6 ? fate::crashes : fate::ready;
    };
    running_group kv(fleet, named("first"));
    const rollout_report second = kv.rolled(named("second"));
    CHECK(second.replaced == 2);
    const rollout_report done = kv.rolled(named("third"));
    CHECK(done.rolled_back);
    CHECK(started == texts{"first", "first", "second", "second", "third", "third", "second"});
    CHECK(all_of_one_generation(fleet, 2));
}

TEST_CASE(
    "rollout: a cancellation ends the new process that is starting; processes already replaced stay "
    "replaced") {
    fake_fleet fleet;
    fleet.min_ready = 3;
    cancel_source source;
    int started = 0;
    fleet.decide = [&](const detail::instance_spec&) { return ++started == 5 ? fate::late : fate::ready; };
    running_group kv(fleet, kv_group(3, 3, 1));
    std::thread canceller([&] {
        CHECK(fleet.notes().wait_for(6));  // start x4, stop kv-1, start kv-5
        source.cancel(cancel_reason::cancelled);
    });
    const result<rollout_report> done = kv.roll(kv_group(3, 3, 1), {}, source.token());
    canceller.join();
    REQUIRE(done);
    CHECK(done->cancelled);
    CHECK_FALSE(done->rolled_back);
    CHECK(done->mixed);
    CHECK(done->replaced == 1);
    CHECK(fleet.running() == texts{"kv-2", "kv-3", "kv-4"});
    CHECK(fleet.calls().back() == "force kv-5");
    CHECK(fleet.broken() == texts{});
    // The next one brings them together again.
    REQUIRE(kv.roll(kv_group(3, 3, 1)));
    CHECK(all_of_one_generation(fleet, kv.group->info().generation));
}

TEST_CASE("rollout: processes that still drain after a group shutdown count towards the limit of max_surge") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    fleet.max_running = 3;
    running_group kv(fleet, kv_group(2, 2, 1));
    REQUIRE(kv.group->shut_down({"over for today", {}, {}}));
    std::thread roller([&] { CHECK(kv.roll(kv_group(2, 2, 1))); });
    REQUIRE(fleet.notes().wait_for(5));  // two started and stopped, and one more started
    CHECK(kv.group->info().rollout.phase == rollout_phase::draining);
    CHECK(fleet.running() == texts{"kv-1", "kv-2", "kv-3"});
    fleet.get("kv-1")->becomes(instance_state::complete);  // two would be more than three with the other
    fleet.get("kv-2")->becomes(instance_state::complete);
    roller.join();
    kv.turn();
    CHECK(fleet.running() == texts{"kv-3", "kv-4"});
    CHECK(fleet.broken() == texts{});
}

TEST_CASE("rollout: a hook that hangs and a process that does not exit are waited for until a deadline") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    test::event let_go;
    fake_group kv(fleet, kv_group(2, 1, 1));
    kv.context->routing = detail::make_ref<detail::routing_hooks>(
        nullptr, [&](const process_info&) { static_cast<void>(let_go.wait()); }, nullptr, kv.context->log);
    kv.with_hooks();
    kv.turn();
    REQUIRE(kv.group->begin_rollout(kv_group(2, 1, 1), {}));
    const time_point begin = steady_clock::now();
    const auto due_after = [&](std::chrono::seconds passed) {
        const time_point now = begin + passed;
        time_point due = now;
        while (due <= now) due = kv.group->reconcile(now);
        return due;
    };
    const time_point hook_due = due_after(0s);
    const texts before = fleet.calls();
    const time_point exit_due = due_after(1s);
    let_go.set();
    CHECK(hook_due == begin + detail::hook_timeout);
    CHECK(before.back() == "start kv-3");
    CHECK(exit_due == begin + 19s);  // stop_time()
    CHECK(fleet.calls().back() == "stop kv-1");
    CHECK(due_after(19s) == time_point::max());
    CHECK(kv.group->info().rollout.error == "old processes did not exit in time");
    CHECK_FALSE(kv.group->info().replacing);
}

TEST_CASE(
    "rollout: after a cancellation, max_stop_time() still covers the processes that the rollout started") {
    fake_fleet fleet;
    fake_group kv(fleet, kv_group(2, 1, 1));
    group_options slow = kv_group(2, 1, 1);
    slow.process.shutdown.max_duration = 1h;
    kv.turn();
    CHECK(kv.group->max_stop_time() < 1h);
    REQUIRE(kv.group->begin_rollout(slow, {}));
    while (fleet.calls().back() != "stop kv-1") kv.turn();
    REQUIRE(kv.group->cancel_rollout("test"));
    while (kv.group->info().replacing) kv.turn();
    CHECK(kv.group->options().process.shutdown.max_duration < 1h);
    CHECK(fleet.generations() == std::vector<std::uint64_t>{1, 2});
    CHECK(kv.group->max_stop_time() > 1h);
}

TEST_CASE(
    "rollout: invalid options and a dry run change no process, and a dry run lists the processes to drain") {
    fake_fleet fleet;
    running_group kv(fleet, kv_group(2, 1, 1));
    group_options no_time = kv_group(2, 1, 1), renamed = no_time;
    no_time.health_check_timeout = 0ms;  // would be over at once
    renamed.name = "other";
    for (const group_options& target : {kv_group(2, 3, 1), no_time, renamed})
        CHECK(code_of(kv.roll(target)) == errc::invalid_argument);
    rollout_options how;
    how.dry_run = true;
    group_options runnable = kv_group(2, 1, 1);
    runnable.process.child.command = {"true"};
    const rollout_report seen = kv.rolled(runnable, how);
    CHECK(seen.total == 2);
    REQUIRE(seen.would_drain.size() == 2);
    CHECK(seen.would_drain[0].id == "kv-1");
    CHECK(seen.would_drain[0].in_flight.in_flight_requests == 7);
    CHECK(fleet.calls().size() == 2);
    CHECK(kv.group->info().generation == 1);
}

TEST_CASE(
    "rollout: a dry run with a program that cannot be executed -> refused, with group, path and reason") {
    const temporary_folder folder;
    const std::string place(folder.path());
    std::ofstream(place + "/data") << "no program";
    std::ofstream(place + "/tool") << "#!/bin/sh\n";
    std::filesystem::permissions(place + "/tool", std::filesystem::perms::owner_all);
    const struct {
        texts command;
        std::string directory;
        std::string fault;  // empty: none
    } rows[] = {
        {{"true"}, "", ""},
        {{place + "/tool"}, "", ""},
        {{"./tool"}, place, ""},
        {{"no-such-program"}, "", "command: no-such-program: not found in the folders of PATH"},
        {{place + "/gone"}, "", "command: " + place + "/gone: no such file"},
        {{place + "/data"}, "", "command: " + place + "/data: not executable"},
        {{"./data"}, place, "command: " + place + "/./data: not executable"},
        {{place}, "", "command: " + place + ": not a regular file"},
        {{"true"}, place + "/gone", "command: working_directory " + place + "/gone: no such folder"},
    };
    fake_fleet fleet;
    running_group kv(fleet, kv_group(2, 1, 1));
    rollout_options how;
    how.dry_run = true;
    for (const auto& row : rows) {
        CAPTURE(row.fault);
        group_options target = kv_group(2, 1, 1);
        target.process.child.command = row.command;
        target.process.child.working_directory = row.directory;
        target.process.child.environment = {"PATH=/usr/bin:/bin"};  // which anybody may read
        const result<rollout_report> seen = kv.roll(target, how);
        REQUIRE(seen.has_value() == row.fault.empty());
        if (!seen) CHECK(seen.error().text == "group kv, " + row.fault);
    }
    group_options target = kv_group(2, 1, 1);
    target.process.child.command = {"true"};
    target.process.pre_shutdown = {place + "/gone"};
    CHECK(kv.roll(target, how).error().text == "group kv, pre_shutdown: " + place + "/gone: no such file");
    target.process.pre_shutdown.clear();
    target.process.child.command = {"tool"};
    target.process.child.environment = {"PATH=/nowhere:" + place};
    CHECK(kv.roll(target, how));
}

TEST_CASE("rollout: a new process fails -> the report and the status name the reason") {
    const struct {
        fate of;
        const char* error;
    } rows[] = {{fate::crashes, "exited with status 3 before it was ready"},
                {fate::unhealthy, "was unhealthy before it was ready"},
                {fate::not_started, "could not be started: no such program"},
                {fate::hangs, "was not ready within 20ms"}};
    for (const auto& row : rows) {
        CAPTURE(row.error);
        fake_fleet fleet;
        running_group kv(fleet, kv_group(2, 1, 1));
        fleet.decide_new(row.of);
        group_options target = kv_group(2, 1, 1);
        target.health_check_timeout = row.of == fate::hangs ? 20ms : 1h;
        const rollout_report done = kv.rolled(target);
        CHECK(done.rolled_back);
        CHECK(done.failed_id == "kv-3");
        CHECK(done.error == row.error);
        CHECK(kv.group->info().message == std::string("rolled back: kv-3 ") + row.error);
    }
}

TEST_CASE("rollout: a new process fails -> the log names the new process and the old one to be replaced") {
    fake_fleet fleet;
    fleet.decide_new(fate::crashes);
    std::vector<std::string> names;
    fake_group kv(fleet, kv_group(2, 1, 1), [&](const log_record& record) {
        for (const log_field& each : record.fields)
            if (each.name == "old_instance" || each.name == "new_instance")
                names.push_back(each.name + "=" + each.value);
    });
    kv.turn();
    CHECK(kv.rolled(kv_group(2, 1, 1)).rolled_back);
    CHECK(names == std::vector<std::string>{"old_instance=kv-1", "new_instance=kv-3"});
}

#endif
