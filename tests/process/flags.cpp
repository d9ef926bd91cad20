// The flags of tools/worker: their output, exit status, and effect on real processes.
#include "harness.hpp"

TEST_CASE("flags: wrong usage of a tool prints one error line, or the usage, and exits with 64") {
    const struct {
        const char* name;
        std::vector<const char*> wrong;
        const char* says;
    } programs[] = {
        {"worker",
         {"--nonsense", "quiet", "--signal stop 99999999999", "--help me", "--enqueue", "--enqueue noop"},  // memory:
         "error: "},
        {"shutdown-probe", {"", "--", "--scenario", "--scenario none -- true", "true"}, "; see --help"},
        {"controller",
         {"--config a --config a", "--config a more", "--config", "--unknown", "--reclaim --mark-normal", "--reclaim 0",
          "--reclaim 1x"},
         "error: "},
        {"ojs",
         {"", "pull", "show", "queues all", "push", "push a --quiet 1", "push a --queue", "push a --priority 101",
          "push a --meta =v"},
         "; see ojs --help"},
        {"demo", {"--nonsense", "--svg", "picture.svg"}, "error: "},
        {"lifecycle_runner",
         {"--nonsense", "--port", "--behavior odd", "--initial-work -1x", "--drain-duration 1y", "clean"},
         "error: "},
        {"river_stages", {"bad", "good 10y", "good 1s x"}, "usage: river_stages"},
        {"own_loop", {"soon", "--help"}, "usage: own_loop [TIME]"},
        {"http_server_drain", {"--help", "65536x"}, "usage: "},
        {"event_loop_drain", {"--help", "65536x"}, "usage: "},
        {"dev_backend",
         {"--store same --ledger same", "--port 0 --ledger /no/such/folder/l", "--port 65536"},
         "error: "},
    };
    for (const auto& each : programs) {
        CAPTURE(each.name);
        for (const char* flags : each.wrong) {
            CAPTURE(flags);
            process run(words(program(each.name) + " " + flags), {{"OJS_URL", "memory:"}});
            CHECK(run.wait() == 64);
            CHECK(run.count(each.says) == 1);
            if (each.says == std::string("error: ")) CHECK(run.count("\n") == 1);
        }
    }
}

TEST_CASE("flags: --signal quiet --wait returns after OJS_PRESTOP_DELAY, or once the worker has ended") {
    process worker({program("worker")}, {{"OJS_URL", "memory:"}});
    REQUIRE(worker.prints("worker started"));
    const auto hook = [&](const char* delay) {
        return process({program("worker"), "--signal", "quiet", std::to_string(worker.pid()), "--wait"},
                       {{"OJS_PRESTOP_DELAY", delay}});
    };
    const std::int64_t began = monotonic_ns();
    CHECK(hook("300ms").wait() == 0);
    CHECK(monotonic_ns() - began >= 300000000);
    process longer = hook("1h");
    REQUIRE(longer.prints("sent quiet"));
    CHECK(worker.end_by(SIGTERM) == 0);
    worker = process();  // reaped
    CHECK(longer.wait() == 0);
}

#if OJS_SHUTDOWN_USE_PROC
// [GS 4.3 (b)] [GS 4.3 (c)]
TEST_CASE("flags: start-up and --doctor warn of a PID 1 that forwards no SIGTERM, and not of one replaced by exec") {
    const std::vector<std::string> container = pid_namespace();
    if (container.empty()) return;
    const auto started_by = [&](const std::vector<std::string>& parent, const environment& settings) {
        std::vector<std::string> command = container;
        command.insert(command.end(), parent.begin(), parent.end());
        return process(command, settings);
    };
    for (const char* before : {"", "exec "}) {
        process doctor = started_by({"sh", "-c", before + program("worker") + " --doctor; true"},
                                    {{"OJS_URL", "memory:"}, {"container", "docker"}});
        CHECK(doctor.wait() == 0);
        INFO(doctor.output());
        CHECK(doctor.count("warning  pid1-wrapper") == (*before == '\0' ? 1 : 0));
    }
    process outside =
        started_by({"python3", "-c", "import subprocess, sys; subprocess.call(sys.argv[1])", program("worker")},
                   settings_from("OJS_URL=memory: OJS_LOG_FORMAT=logfmt OJS_HEALTH_ADDR=127.0.0.1:0 "
                                 "KUBERNETES_SERVICE_HOST=10.0.0.1"));
    CHECK(outside.prints("grace_period=25s grace_from=kubernetes"));
    CHECK(outside.prints("starts the worker by 'python3', which may not pass signals on"));
    CHECK(outside.prints("which is loopback\" worker_id="));
}
#endif
