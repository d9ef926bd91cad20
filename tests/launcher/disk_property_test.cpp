// Whatever the state file's disk does, and in whatever order, a group of real processes returns to its size and can be
// stopped.
#include <random>

#include "fake_fleet.hpp"
#include "faulty_disk.hpp"
#include "files.hpp"

#if !OJS_SHUTDOWN_SEPARATE  // tests internals, which the separate form does not declare

using namespace ojs;
using namespace std::chrono_literals;
using namespace test;

namespace {

group_options sleepers(int desired) {
    group_options out = kv_group(desired, 0, 1);
    out.process.child.command = {"sleep", "1000"};
    out.process.has_coordinator = false;
    out.restart.policy = restart_policy::always;
    out.restart.max_restarts = 0;
    out.restart.initial_backoff = out.restart.max_backoff = 1ms;
    return out;
}

bool within_guard(const std::function<bool()>& holds) {
    const time_point end = steady_clock::now() + hang_guard;
    while (!holds() && steady_clock::now() < end) std::this_thread::sleep_for(1ms);
    return holds();
}

void disturb(std::mt19937& random, faulty_disk& disk, fake_group& kv) {
    static constexpr int faults[] = {0, faulty_disk::hangs, faulty_disk::hangs, ENOSPC, EIO, EROFS};
    const group_info now = kv.group->info();
    switch (random() % 4) {
        case 0: disk.set(faults[random() % 6]); break;
        case 1:
            for (const process_info& each : now.processes)
                if (each.state == instance_state::ready && random() % 2 == 0) ::kill(each.pid, SIGKILL);
            break;
        case 2: static_cast<void>(kv.group->begin_rollout(sleepers(3), {})); break;
        default: std::this_thread::sleep_for(std::chrono::milliseconds(random() % 20));
    }
}

}  // namespace

TEST_CASE(
    "process_group: random faults of the state file's disk -> the group regains its size and can be "
    "stopped") {
    for (unsigned seed = 1; seed <= 25; ++seed) {
        CAPTURE(seed);
        std::mt19937 random(seed);
        const temporary_folder folder;
        faulty_disk disk;
        fake_fleet unused;
        fake_group kv(unused, sleepers(3));
        const auto file = detail::state_file::open(folder.file("state"), {}, faulty_disk::replace);
        REQUIRE(file);
        kv.context->state = *file;
        log_options silent;
        silent.level = log_level::off;
        kv.context->starter = detail::real_process_starter(silent);
        const fake_group::supervisor turning(kv);
        for (int i = 0; i < 20; ++i) disturb(random, disk, kv);
        disk.set(0);
        REQUIRE(within_guard([&] { return !kv.group->info().replacing && kv.group->info().ready == 3; }));
        for (int i = 0; i < 5; ++i) disturb(random, disk, kv);
        if (seed % 2 == 0) disk.set(faulty_disk::hangs);
        const time_point stopped = steady_clock::now();
        kv.group->stop_starting();
        kv.group->drain(kv.group->members(), {"test", {}, {}});
        REQUIRE(within_guard([&] { return kv.group->empty(); }));
        CHECK(steady_clock::now() - stopped < 60s);  // beside busy processes; nothing here waits for a disk
        disk.set(0);
        (*file)->close();
    }
}

#endif
