// The flags of tools/worker: their output, exit status, and effect on real processes.
#include <sstream>

#include "files.hpp"
#include "harness.hpp"

using namespace test;
namespace fs = std::filesystem;

namespace {

const environment quick = {{"OJS_URL", "http://127.0.0.1:1"}, {"OJS_LOG_LEVEL", "debug"}};

}  // namespace

TEST_CASE("flags: wrong usage of a tool prints one error line, or the usage, and exits with 64") {
    const struct {
        const char* name;
        std::vector<std::vector<std::string>> wrong;
        const char* says;
    } programs[] = {
        {"worker",
         {{"--nonsense"},
          {""},
          {"quiet"},
          {"--signal"},
          {"--signal", "pause"},
          {"--signal", "stop", "x"},
          {"--signal", "stop", "-1"},
          {"--signal", "stop", "0"},
          {"--signal", "stop", "1", "2"},
          {"--signal", "stop", "1", "2", "--wait"},
          {"--signal", "--wait"},
          {"--signal", "stop", "99999999999"},
          {"--doctor", "now"},
          {"--init", "now"},
          {"--help", "me"},
          {"--enqueue"},
          {"--enqueue", ""},
          {"--enqueue", "noop"}},  // into memory:
         "error: "},
        {"shutdown-probe",
         {{}, {"--"}, {"--scenario"}, {"--scenario", "none", "--", "true"}, {"true"}},
         "; see --help"},
        {"demo", {{"--nonsense"}, {"--svg"}, {"--svg", ""}, {"--svg", "a", "b"}, {"picture.svg"}}, "error: "},
        {"lifecycle_runner",
         {{"--nonsense"},
          {"--port"},
          {"--behavior", "odd"},
          {"--initial-work", "-1x"},
          {"--drain-duration", "1 s"},
          {"clean"}},
         "error: "},
        {"river_stages", {{"bad"}, {"good", "10 s"}, {"good", "1s", "x"}}, "usage: river_stages"},
        {"own_loop", {{"soon"}}, "usage: own_loop [TIME]"},
        {"dev_backend",
         {{"--store", "same", "--ledger", "same"},
          {"--port", "0", "--ledger", "/no/such/folder/l"},
          {"--port", "65536"}},
         "error: "},
    };
    for (const auto& program : programs) {
        CAPTURE(program.name);
        for (std::vector<std::string> command : program.wrong) {
            command.insert(command.begin(), test::program(program.name));
            process run(command, {{"OJS_URL", "memory:"}});
            CAPTURE(command.back());
            CHECK(run.wait() == 64);
            CHECK(run.count(program.says) == 1);
            if (program.says == std::string("error: ")) CHECK(run.count("\n") == 1);
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
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
    worker = process();  // reaped
    CHECK(longer.wait() == 0);
}

TEST_CASE("flags: --help of every tool fits 80 columns and has each exit status on its own line") {
    for (const char* name : {"worker", "launcher", "controller", "dev_backend", "shutdown-probe", "demo",
                             "fleet", "keyvalue_runner", "lifecycle_runner"}) {
        CAPTURE(name);
        process help({program(name), "--help"}, {});
        CHECK(help.wait() == 0);
        CHECK(help.prints("usage: " + std::string(name)));
        std::istringstream lines(help.output());
        for (std::string line; std::getline(lines, line);) {
            CAPTURE(line);
            CHECK(line.size() <= 80);
            const std::size_t second = line.find("; 64 ");
            CHECK(second == std::string::npos);
        }
    }
}

TEST_CASE("flags: --doctor exits with 1 only if it finds an error, and --help lists every flag") {
    backend jobs;
    const struct {
        const char* flag;
        environment settings;
        int status;
        std::vector<std::string> says;
    } rows[] = {
        {"--help", {}, 0, {"--doctor", "--signal", "--init", "--help"}},
        {"--doctor", {{"OJS_URL", jobs.url()}}, 0, {"0 errors, "}},
        {"--doctor", {{"OJS_URL", "http://127.0.0.1:1"}}, 1, {"backend-unreachable"}},
        {"--doctor", {{"OJS_CONTAINER_GRACE_PERIOD", "31s"}}, 0, {"warning  budget-tight: "}},
        {"--doctor",
         {{"OJS_CONTAINER_GRACE_PERIOD", "30s"}},
         1,
         {"error    budget-exceeded: ", " to 40s and "}},
        {"--doctor", {{"OJS_CONCURRENCY", "many"}}, 1, {"error    options: OJS_CONCURRENCY='many'"}},
    };
    for (const auto& row : rows) {
        CAPTURE(row.says.front());
        environment settings = row.settings;
        settings.insert({{"OJS_URL", "memory:"}, {"OJS_AUTH_TOKEN", "canary"}});
        process run({program("worker"), row.flag}, settings);
        CHECK(run.wait() == row.status);
        INFO(run.output());
        for (const std::string& text : row.says) CHECK_MESSAGE(run.count(text) > 0, text);
        CHECK(run.count("canary") == 0);
    }
}

#if OJS_SHUTDOWN_USE_PROC
// [GS 4.3 (b)] [GS 4.3 (c)]
TEST_CASE(
    "flags: --doctor warns about a PID 1 that does not forward SIGTERM or SIGTSTP, and about no other") {
    const std::vector<std::string> container = pid_namespace();
    if (container.empty()) return;
    const std::string doctor = program("worker") + " --doctor";
    const struct {
        std::vector<std::string> under;
        const char* found;  // null: neither of the two
    } cases[] = {
        {{"sh", "-c", doctor + "; true"}, "pid1-wrapper"},
        {{"tini", "--", "sh", "-c", doctor + "; true"}, "pid1-wrapper"},
        {{"sh", "-c", "exec " + doctor}, nullptr},
        {{"tini", "--", program("worker"), "--doctor"}, nullptr},
        {{"catatonit", "--", program("worker"), "--doctor"}, nullptr},
        {{"dumb-init", "--", program("worker"), "--doctor"}, "pid1-sigtstp"},
        {{"dumb-init", "-c", "--", program("worker"), "--doctor"}, nullptr},
        {{program("worker"), "--doctor"}, nullptr},
    };
    for (const auto& each : cases) {
        CAPTURE(each.under.front());
        process probe({"sh", "-c", "command -v " + each.under.front()}, {});
        if (probe.wait() != 0) {
            MESSAGE("not installed here: " << each.under.front());
            continue;
        }
        std::vector<std::string> command = container;
        command.insert(command.end(), each.under.begin(), each.under.end());
        process worker(command, {{"OJS_URL", "memory:"}, {"container", "docker"}});
        CHECK(worker.wait() == 0);
        INFO(worker.output());
        for (const char* id : {"pid1-wrapper", "pid1-sigtstp"}) {
            const bool expected = each.found != nullptr && std::string(id) == each.found;
            CHECK((worker.count(std::string("warning  ") + id) == 1) == expected);
        }
    }
}

TEST_CASE("flags: --signal reaches a worker that runs under --init as PID 1") {
    const std::vector<std::string> container = pid_namespace();
    if (container.empty() || !fs::exists("/proc/thread-self/children")) return;
    const std::string path = scratch_file("worker");  // a program that no other process runs
    fs::copy_file(program("worker"), path);
    for (const std::string word :
         {"stop", "reclaim"}) {  // for the latter a worker is prepared by its dialect
        CAPTURE(word);
        environment settings = quick;
        if (word == "reclaim") settings.insert({"OJS_DIALECT", "spot_controller"});
        std::vector<std::string> command = container;
        command.insert(command.end(), {path, "--init"});
        process outside(command, settings);
        REQUIRE(outside.prints("FETCH failed"));
        const std::string init = init_of(outside);
        REQUIRE_FALSE(init.empty());
        process joined({"nsenter", "--target", init, "--pid", "--mount", path, "--signal", word}, {});
        // The namespace may end before it has exited.
        const int status = joined.wait();
        CHECK((status == 0 || status == 128 + SIGKILL || status == -SIGKILL));
        if (status == 0) CHECK(joined.prints("sent " + word + " to process 1\n"));
        CHECK(outside.wait() == 0);
    }
}
#endif
