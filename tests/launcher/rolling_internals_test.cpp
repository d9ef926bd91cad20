#include "fake_fleet.hpp"

using namespace test;

namespace {
std::size_t index_of(const texts& all, const std::string& what) {
    const auto found = std::find(all.begin(), all.end(), what);
    REQUIRE_MESSAGE(found != all.end(), what);
    return static_cast<std::size_t>(found - all.begin());
}
}  // namespace

TEST_CASE("rollout: up to max_surge processes are started, and are routable before old ones drain") {
    const texts singly{"start kv-3", "stop kv-1", "start kv-4", "stop kv-2"};
    const texts together{"start kv-3", "start kv-4", "stop kv-1", "stop kv-2"};
    for (const int surge : {0, 1, 2, 8}) {
        CAPTURE(surge);
        fake_fleet fleet;
        fleet.min_ready = 2;
        fake_group kv(fleet, kv_group(2, 2, surge));
        kv.with_hooks();
        kv.turn();
        const rollout_report done = kv.rolled(kv_group(2, 2, surge));
        CHECK(done.replaced == 2);
        CHECK(done.total == 2);
        texts calls = fleet.calls();
        CHECK(index_of(calls, "on kv-3") < index_of(calls, "off kv-1"));
        CHECK(index_of(calls, "off kv-1") < index_of(calls, "stop kv-1"));
        CHECK(index_of(calls, "on kv-4") < index_of(calls, "off kv-2"));
        const auto is_hook = [](const std::string& each) { return each[0] == 'o'; };
        calls.erase(std::remove_if(calls.begin(), calls.end(), is_hook), calls.end());
        CHECK(texts(calls.begin() + 2, calls.end()) == (surge < 2 ? singly : together));
        CHECK(fleet.running() == texts{"kv-3", "kv-4"});
        CHECK(kv.group->info().generation == 2);
        CHECK(kv.group->info().message == "replaced 2 of 2");
        CHECK(fleet.broken() == texts{});
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
    REQUIRE(kv.group->begin_rollout(target, {}));
    kv.turn_until([&] { return fleet.calls().back() == "start kv-3"; });
    fleet.get("kv-3")->becomes(instance_state::crashed, 0);
    kv.turn_until([&] { return !kv.group->info().replacing; });
    CHECK(kv.group->info().message == "rolled back: kv-3 exited with status 0 after it was ready");
    CHECK(fleet.calls().back() == "start kv-3");  // it was given no work
    CHECK(fleet.running() == texts{"kv-1", "kv-2"});
    CHECK(fleet.broken() == texts{});
}

TEST_CASE("rollout: relative paths are those of the launcher's working directory at that time") {
    const std::string here = std::filesystem::current_path().string() + "/";
    group_options given = kv_group(1, 1, 1);
    given.process.child.command = {"./kv", "data"};
    given.process.child.errors = child_stream::file("kv.log");
    CHECK(detail::as_kept(given).process.child.command == texts{here + "./kv", "data"});
    CHECK(detail::as_kept(given).process.child.errors.path == here + "kv.log");
    given.process.child.working_directory = "run";
    CHECK(detail::as_kept(given).process.child.working_directory == here + "run");
    CHECK(detail::as_kept(given).process.child.command[0] == "./kv");  // below that
}

TEST_CASE("rollout: min_ready_time is 5s by default, or 1s without a coordinator") {
    group_options options;
    CHECK(detail::min_ready_time(options) == 5s);
    options.process.has_coordinator = false;  // it is ready once it runs
    CHECK(detail::min_ready_time(options) == 1s);
    options.min_ready_time = 0s;
    CHECK(detail::min_ready_time(options) == 0s);
    CHECK(detail::stop_time(options.process) == 19s);
    options.process.pre_shutdown = {"deregister"};
    CHECK(detail::stop_time(options.process) == 24s);
}

TEST_CASE("rollout: a new process fails -> all processes get one configuration, or the report says mixed, and why") {
    using decision = std::function<fate(std::uint64_t generation, int started)>;
    const auto each_new = [](fate ends) -> decision {
        return [ends](std::uint64_t generation, int) { return generation == 1 ? fate::ready : ends; };
    };
    const decision second_one = [](std::uint64_t, int started) { return started == 4 ? fate::crashes : fate::ready; };
    const decision rollback_too = [](std::uint64_t, int started) { return started >= 4 ? fate::crashes : fate::ready; };
    const decision old_ones = [](std::uint64_t generation, int) { return generation == 1 ? fate::late : fate::ready; };
    const char* const crashed = "exited with status 3 before it was ready";
    const char* const unhealthy = "was unhealthy before it was ready";
    const char* const missing = "could not be started: no such program";
    const texts old{"kv-1", "kv-2"}, replaced{"kv-3", "kv-4"};
    enum special { nothing, is_late, is_mixed, ready_if_asked, emptied_before };
    const struct {
        const char* name;
        decision decide;
        int replaced;
        const char* failed_id;
        const char* error;
        texts running;
        special is = nothing;
    } rows[] = {{"late", each_new(fate::late), 0, "kv-3", "was not ready within 30ms", old, is_late},
                {"unhealthy", each_new(fate::unhealthy), 0, "kv-3", unhealthy, old},
                {"crashes", each_new(fate::crashes), 0, "kv-3", crashed, old},
                {"not started", each_new(fate::not_started), 0, "kv-3", missing, old},
                {"the second one", second_one, 0, "kv-4", crashed, {"kv-2", "kv-5"}},
                {"the rollback fails too", rollback_too, 1, "kv-4", crashed, {"kv-2", "kv-3"}, is_mixed},
                {"none of the old was ready", old_ones, 2, "", "", replaced},
                {"ready at the last poll", each_new(fate::late), 2, "", "", replaced, ready_if_asked},
                {"an empty group", each_new(fate::crashes), 0, "kv-4", crashed, {}, emptied_before}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        fake_fleet fleet;
        std::map<std::string, std::string> programs;
        fleet.decide = [&, started = 0](const detail::instance_spec& spec) mutable {
            programs[spec.id] = spec.options.child.command[0];
            return row.decide(spec.generation, ++started);
        };
        fleet.max_running = 3;
        fleet.ready_if_asked = row.is == ready_if_asked;
        std::string logged;
        fake_group kv(fleet, kv_group(2, 2, 1), [&](const log_record& record) {
            for (const log_field& each : record.fields)
                if (each.name == "new_instance") logged = each.value;
        });
        kv.turn();
        if (row.is == emptied_before) REQUIRE(kv.group->shut_down({"over for today", {}, {}}));
        fleet.min_ready = fleet.ready();
        group_options target = kv_group(2, 2, 1);
        target.process.child.command = {"new"};
        target.health_check_timeout = row.is == is_late || row.is == ready_if_asked ? 30ms : 1h;
        const rollout_report done = kv.rolled(target);
        const bool fails = *row.error != 0;
        CHECK(done.rolled_back == fails);
        CHECK(done.mixed == (row.is == is_mixed));
        CHECK(done.replaced == row.replaced);
        CHECK(done.failed_id == row.failed_id);
        CHECK(done.error == row.error);
        CHECK(logged == row.failed_id);
        const std::string how = row.is == is_mixed ? "rolled back in part: " : "rolled back: ";
        if (fails) CHECK(kv.group->info().message == how + row.failed_id + " " + row.error);
        CHECK(fleet.running() == row.running);
        CHECK(fleet.broken() == texts{});
        CHECK(kv.group->info().generation == (fails ? 1 : 2));
        if (row.is == is_mixed) continue;
        for (const std::string& id : row.running) CHECK(programs[id] == (fails ? "kv" : "new"));
        kv.turn();
        CHECK(fleet.running() == row.running);
    }
}

TEST_CASE("rollout: canaries stay ready and pass canary_check first, or are rolled back") {
    using verdict = result<void> (*)(fake_fleet & fleet);
    const verdict passes = [](fake_fleet&) { return result<void>(); };
    const verdict fails = [](fake_fleet&) -> result<void> { return error{errc::rejected, 0, "too many errors"}; };
    const verdict throws = [](fake_fleet&) -> result<void> { throw std::runtime_error("no data"); };
    const verdict is_late = [](fake_fleet& fleet) {
        fleet.get("kv-5")->becomes(instance_state::unhealthy);
        return result<void>();
    };
    const struct {
        const char* name;
        int before, after, canary;
        texts checked;
        verdict check;
        std::string error;
        bool emptied = false;
    } rows[] = {{"the old ones are still there", 4, 4, 1, {"kv-5"}, passes, ""},
                {"fewer are wanted than canaries", 3, 1, 2, {"kv-4"}, passes, ""},
                {"an empty group", 2, 2, 1, {"kv-3"}, passes, "", true},
                {"the check fails", 4, 4, 1, {"kv-5"}, fails, "canary check failed: too many errors"},
                {"it throws", 4, 4, 1, {"kv-5"}, throws, "canary check failed: canary_check threw: no data"},
                {"a canary does not stay ready", 4, 4, 1, {"kv-5"}, is_late, "became unhealthy"}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        fake_fleet fleet;
        const int healthy = std::min(row.before, row.after);
        fleet.max_running = row.before + 2;
        running_group kv(fleet, kv_group(row.before, healthy, 2));
        if (row.emptied) REQUIRE(kv.group->shut_down({"over for today", {}, {}}));
        fleet.min_ready = row.emptied ? 0 : healthy;
        const std::size_t running = fleet.running().size() + 1;
        rollout_options how;
        how.canary = row.canary;
        how.canary_time = 20ms;
        texts checked;
        how.canary_check = [&](const std::vector<process_info>& canaries) {
            for (const process_info& each : canaries) checked.push_back(each.id);
            CHECK(fleet.running().size() == running);
            return row.check(fleet);
        };
        const time_point begun = steady_clock::now();
        const rollout_report done = kv.rolled(kv_group(row.after, healthy, 2), how);
        CHECK(steady_clock::now() - begun >= 20ms);
        CHECK(checked == row.checked);
        CHECK(done.error == row.error);
        CHECK(done.rolled_back != row.error.empty());
        CHECK(done.failed_id == (row.check == is_late ? "kv-5" : ""));
        CHECK(done.replaced == (row.emptied || done.rolled_back ? 0 : row.before));
        CHECK(fleet.ready() == (done.rolled_back ? row.before : row.after));
        CHECK(fleet.broken() == texts{});
    }
}

TEST_CASE("rollout: a cancellation ends new processes that are not yet available, and keeps those that are") {
    const struct {
        const char* name;
        rollout_phase phase;
        const char* last_call;  // before the cancellation
        fate ends;              // of the new processes, from the second one on
        int canary, replaced;
        texts running;
    } rows[] = {{"a process starts", rollout_phase::starting, "start kv-4", fate::late, 0, 1, {"kv-2", "kv-3"}},
                {"a retry is due later", rollout_phase::pausing, "start kv-4", fate::crashes, 0, 1, {"kv-2", "kv-3"}},
                {"canaries are watched", rollout_phase::canaries, "start kv-3", fate::ready, 1, 0, {"kv-1", "kv-2"}}};
    for (const auto& row : rows) {
        CAPTURE(row.name);
        fake_fleet fleet;
        fleet.min_ready = 2;
        fleet.decide_new([&](int made) { return made == 1 ? fate::ready : row.ends; });
        running_group kv(fleet, kv_group(2, 2, 1));
        rollout_options how;
        how.canary = row.canary;
        how.max_retries = 1;
        how.canary_time = how.initial_backoff = how.max_backoff = 1h;
        const auto begun = kv.group->begin_rollout(kv_group(2, 2, 1), how);
        REQUIRE(begun);
        kv.turn_until(
            [&] { return fleet.calls().back() == row.last_call && kv.group->info().rollout.phase == row.phase; });
        cancel_source source;
        source.cancel(cancel_reason::cancelled);
        rollout_report done;
        {
            const fake_group::supervisor turning(kv);
            done = kv.group->await_rollout(*begun, source.token());
        }
        CHECK(done.cancelled);
        CHECK_FALSE(done.rolled_back);
        CHECK(done.replaced == row.replaced);
        CHECK(done.mixed == (row.replaced > 0));
        CHECK(fleet.running() == row.running);
        CHECK(kv.group->info().rollout.phase == rollout_phase::cancelled);
        CHECK(kv.group->metrics().rollouts[2] == 1);  // cancelled
        CHECK(fleet.broken() == texts{});
        fleet.decide_new([](int) { return fate::ready; });  // the next one brings them together again
        REQUIRE(kv.roll(kv_group(2, 2, 1)));
        CHECK(fleet.generations() == std::vector<std::uint64_t>{3, 3});
    }
}

TEST_CASE("rollout: a rollback cannot be cancelled, and is counted") {
    fake_fleet fleet;
    fleet.drains_at_once = false;
    fleet.decide_new([](int made) { return made == 2 ? fate::unhealthy : fate::ready; });
    running_group kv(fleet, kv_group(2, 1, 1));
    CHECK(holds(kv.group->cancel_rollout("test").error().text, "no rollout is in progress"));
    REQUIRE(kv.group->begin_rollout(kv_group(2, 1, 1), {}));
    const auto turn_until = [&](const char* call) { kv.turn_until([&] { return fleet.calls().back() == call; }); };
    turn_until("stop kv-1");
    CHECK(test::code_of(kv.group->shut_down({"test", {}, {}})) == errc::busy);
    fleet.get("kv-1")->becomes(instance_state::complete);
    turn_until("stop kv-3");  // kv-4 was unhealthy
    CHECK(kv.group->info().rollout.phase == rollout_phase::rolling_back);
    CHECK(holds(kv.group->cancel_rollout("test").error().text, "already being rolled back"));
    fleet.get("kv-3")->becomes(instance_state::complete);
    kv.turn_until([&] { return !kv.group->info().replacing; });
    CHECK(kv.group->info().rollout.phase == rollout_phase::rolled_back);
    CHECK(fleet.generations() == std::vector<std::uint64_t>{1, 1});
    const detail::group_metrics& counted = kv.group->metrics();
    CHECK(counted.readiness_failures == 1);
    CHECK(counted.terminated == 1);
    CHECK(counted.crashes == 0);
}

TEST_CASE("rollout: a hook that hangs or a process that does not exit delays the rollout only until a deadline") {
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
        for (int turns = 0; turns < 1000 && due <= now; ++turns) due = kv.group->reconcile(now);
        return due;
    };
    CHECK(due_after(0s) == begin + detail::hook_timeout);
    CHECK(fleet.calls().back() == "start kv-3");
    CHECK(due_after(1s) == begin + 19s);  // stop_time()
    let_go.set();
    CHECK(fleet.calls().back() == "stop kv-1");
    CHECK(due_after(19s) == time_point::max());
    CHECK(kv.group->info().rollout.error == "old processes did not exit in time");
    CHECK_FALSE(kv.group->info().replacing);
}

TEST_CASE("rollout: invalid options and a dry run, which lists the processes, change nothing") {
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

TEST_CASE("rollout: a dry run names the group, path and reason of a program that cannot be executed") {
    const temporary_folder folder;
    const std::string place(folder.path());
    std::ofstream(place + "/tool") << "#!/bin/sh\n";
    std::filesystem::permissions(place + "/tool", std::filesystem::perms::owner_all);
    const struct {
        texts command;
        std::string directory;
        std::string fault;  // empty: none
        texts pre_shutdown = {};
    } rows[] = {{{"tool"}, "", ""},
                {{"./tool"}, place, ""},
                {{"no-such-program"}, "", "command: no-such-program: not found in the folders of PATH"},
                {{place + "/gone"}, "", "command: " + place + "/gone: no such file"},
                {{place}, "", "command: " + place + ": not a regular file"},
                {{"tool"}, place + "/gone", "command: working_directory " + place + "/gone: no such folder"},
                {{"tool"}, "", "pre_shutdown: " + place + "/gone: no such file", {place + "/gone"}}};
    fake_fleet fleet;
    running_group kv(fleet, kv_group(2, 1, 1));
    rollout_options how;
    how.dry_run = true;
    for (const auto& row : rows) {
        CAPTURE(row.fault);
        group_options target = kv_group(2, 1, 1);
        target.process.child.command = row.command;
        target.process.child.working_directory = row.directory;
        target.process.child.environment = {"PATH=/nowhere:" + place};
        target.process.pre_shutdown = row.pre_shutdown;
        const result<rollout_report> seen = kv.roll(target, how);
        REQUIRE(seen.has_value() == row.fault.empty());
        if (!seen) CHECK(seen.error().text == "group kv, " + row.fault);
    }
}
