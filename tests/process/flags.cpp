// The flags of tools/worker: their output, exit status, and effect on real processes.
#include "harness.hpp"
#include "text.hpp"

using namespace test;

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

TEST_CASE("flags: --doctor exits with 1 only if it finds an error, and --help lists every flag") {
    backend jobs;
    const struct {
        const char* flag;
        environment settings;
        int status;
        const char* says;
    } rows[] = {
        {"--help", {}, 0, "[--init | --doctor | --help]"},
        {"--doctor", {{"OJS_URL", jobs.url()}}, 0, "0 errors, "},
        {"--doctor", {{"OJS_URL", jobs.url() + "/jobs"}}, 1, "error    backend-answer: the backend answers 404"},
        {"--doctor", {{"OJS_CONCURRENCY", "many"}}, 1, "error    options: OJS_CONCURRENCY='many'"}};
    for (const auto& row : rows) {
        environment settings = row.settings;
        settings.emplace("OJS_URL", "memory:");
        process run({program("worker"), row.flag}, settings);
        CHECK(run.wait() == row.status);
        CHECK_MESSAGE(run.count(row.says) == 1, run.output());
    }
}

#if OJS_SHUTDOWN_USE_PROC
// [GS 4.3 (b)] [GS 4.3 (c)]
TEST_CASE("flags: --doctor warns of a shell as PID 1 that forwards no SIGTERM, but not after its exec") {
    const std::vector<std::string> container = pid_namespace();
    if (container.empty()) return;
    for (const bool is_shell : {true, false}) {
        std::vector<std::string> command = container;
        const std::string doctor = program("worker") + " --doctor";
        command.insert(command.end(), {"sh", "-c", is_shell ? doctor + "; true" : "exec " + doctor});
        process worker(command, {{"OJS_URL", "memory:"}, {"container", "docker"}});
        CHECK(worker.wait() == 0);
        INFO(worker.output());
        CHECK(worker.count("warning  pid1-wrapper") == (is_shell ? 1 : 0));
    }
}
#endif
