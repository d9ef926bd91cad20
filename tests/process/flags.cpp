// The flags of tools/worker: their output, exit status, and effect on real processes.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "harness.hpp"

using namespace test;

namespace {

process run(std::vector<std::string> flags, const environment& extra = {{"OJS_URL", "memory:"}}) {
    flags.insert(flags.begin(), program("worker"));
    return process(flags, extra);
}

// Copies of the worker, so that no other process runs the same program.
std::string own_worker() {
    const std::string path = scratch_file("worker");
    std::filesystem::copy_file(program("worker"), path);
    return path;
}

bool has_namespaces() {
    process probe({"unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "true"}, {});
    return probe.wait() == 0;
}

const environment quick = {{"OJS_URL", "http://127.0.0.1:1"}, {"OJS_LOG_LEVEL", "debug"}};

}  // namespace

TEST_CASE("flags: invalid ones print one line of error and exit with 64") {
    const std::vector<std::vector<std::string>> wrong = {{"--nonsense"},
                                                         {""},
                                                         {"quiet"},
                                                         {"--signal"},
                                                         {"--signal", "pause"},
                                                         {"--signal", "stop", "x"},
                                                         {"--signal", "stop", "-1"},
                                                         {"--signal", "stop", "0"},
                                                         {"--signal", "stop", "1", "2"},
                                                         {"--signal", "stop", "99999999999"},
                                                         {"--doctor", "now"},
                                                         {"--init", "now"},
                                                         {"--help", "me"}};
    for (const std::vector<std::string>& flags : wrong) {
        process worker = run(flags);
        CAPTURE(flags.front());
        CHECK(worker.wait() == 64);
        CHECK(worker.output().compare(0, 7, "error: ") == 0);
        CHECK(worker.count("\n") == 1);
    }
}

TEST_CASE("flags: --help names every flag") {
    process worker = run({"--help"});
    CHECK(worker.wait() == 0);
    for (const char* flag : {"--doctor", "--signal", "--init", "--help"}) CHECK(worker.count(flag) > 0);
}

TEST_CASE("flags: --doctor exits 0 where there is no error, and 1 where there is one") {
    process well = run({"--doctor"});
    CHECK(well.wait() == 0);
    CHECK(well.prints("0 errors, "));
    process tight = run({"--doctor"}, {{"OJS_URL", "memory:"}, {"OJS_CONTAINER_GRACE_PERIOD", "31s"}});
    CHECK(tight.wait() == 0);
    CHECK(tight.prints("warning  budget-tight: "));
    process over = run({"--doctor"}, {{"OJS_URL", "memory:"}, {"OJS_CONTAINER_GRACE_PERIOD", "30s"}});
    CHECK(over.wait() == 1);
    CHECK(over.prints("error    budget-exceeded: "));
    CHECK(over.prints(" grant 40s ("));
    process unreadable = run({"--doctor"}, {{"OJS_CONCURRENCY", "many"}});
    CHECK(unreadable.wait() == 1);
    CHECK(unreadable.prints("error    options: OJS_CONCURRENCY='many'"));
}

TEST_CASE("flags: --doctor asks the backend, and shows no token") {
    backend jobs;
    process there = run({"--doctor"}, {{"OJS_URL", jobs.url()}, {"OJS_AUTH_TOKEN", "canary"}});
    CHECK(there.wait() == 0);
    process gone = run({"--doctor"}, {{"OJS_URL", "http://127.0.0.1:1"}, {"OJS_AUTH_TOKEN", "canary"}});
    CHECK(gone.wait() == 1);
    CHECK(gone.prints("backend-unreachable"));
    CHECK(there.count("canary") + gone.count("canary") == 0);
}

TEST_CASE("flags: --doctor sees the signals that were ignored from the start") {
    process worker(
        {program("test_worker"), "sh", "-c", "trap '' TERM; exec \"$0\" --doctor", program("worker")},
        {{"OJS_URL", "memory:"}});
    CHECK(worker.wait() == 1);
    CHECK(worker.prints("error    signal-ignored: SIGTERM"));
}

TEST_CASE("flags: --signal PID sends the signal and prints it") {
    backend jobs;
    process worker =
        run({}, {{"OJS_URL", jobs.url()}, {"OJS_WORKER_ID", "w"}, {"OJS_HEARTBEAT_INTERVAL", "100ms"}});
    REQUIRE(jobs.event(worker_event("w", "beat")).what == json::kind::object);
    const std::string pid = std::to_string(worker.pid());
    process quiet = run({"--signal", "quiet", pid});
    CHECK(quiet.wait() == 0);
    CHECK(quiet.prints("sent quiet to process " + pid));
    CHECK(jobs.event(beat_in_state("w", "quiet")).what == json::kind::object);
    CHECK(run({"--signal", "resume", pid}).wait() == 0);
    CHECK(run({"--signal", "stop", pid}).wait() == 0);
    CHECK(worker.wait() == 0);
}

TEST_CASE("flags: --signal without a PID finds one worker, reports none, and lists several") {
    const std::string path = own_worker();
    process none({path, "--signal", "stop"}, {});
    CHECK(none.wait() == 1);
#if OJS_SHUTDOWN_USE_PROC
    CHECK(none.prints("error: no other process runs this program"));
    process one({path}, quick);
    REQUIRE(one.prints("FETCH failed"));
    process other({path}, quick);
    REQUIRE(other.prints("FETCH failed"));
    process several({path, "--signal", "stop"}, {});
    CHECK(several.wait() == 1);
    CHECK(several.prints(std::to_string(one.pid())));
    CHECK(several.prints(std::to_string(other.pid())));
    other.signal(SIGTERM);
    REQUIRE(other.wait() == 0);  // it stays a zombie, which runs no program
    CHECK(process({path, "--signal", "stop"}, {}).wait() == 0);
    CHECK(one.wait() == 0);
#endif
}

TEST_CASE("flags: --init runs a plain worker if it is not PID 1") {
    process worker = run({"--init"}, quick);
    REQUIRE(worker.prints("FETCH failed"));
    worker.signal(SIGTERM);
    CHECK(worker.wait() == 0);
}

#if OJS_SHUTDOWN_USE_PROC
TEST_CASE("flags: --doctor under real wrappers and inits") {
    if (!has_namespaces()) {
        MESSAGE("skipped: no PID namespaces here");
        return;
    }
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
        std::vector<std::string> command = {"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"};
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

TEST_CASE("flags: --init as PID 1 forwards signals, and --signal finds it") {
    if (!has_namespaces()) {
        MESSAGE("skipped: no PID namespaces here");
        return;
    }
    const std::string path = own_worker();
    std::string word;
    SUBCASE("stop") {
        word = "stop";
    }
    SUBCASE("reclaim, for which a worker is prepared by its dialect") {
        word = "reclaim";
    }
    environment settings = quick;
    if (word == "reclaim") settings.insert({"OJS_DIALECT", "spot_controller"});
    process outside({"unshare", "--pid", "--fork", "--mount-proc", "--kill-child", path, "--init"}, settings);
    REQUIRE(outside.prints("FETCH failed"));
    // Seen from outside, PID 1 is the child of unshare.
    std::string init;
    REQUIRE(eventually([&] {
        for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
            char comm[64] = "";
            char target[4096] = "";
            const std::string folder = entry.path().string();
            std::FILE* file = std::fopen((folder + "/comm").c_str(), "r");
            if (file == nullptr) continue;
            const bool read = std::fgets(comm, sizeof comm, file) != nullptr;
            std::fclose(file);
            const ssize_t length = ::readlink((folder + "/exe").c_str(), target, sizeof target - 1);
            if (read && length > 0 && std::string(comm) == "ojs-init\n" && target == path)
                init = entry.path().filename().string();
        }
        return !init.empty();
    }));
    process joined({"nsenter", "--target", init, "--pid", "--mount", path, "--signal", word}, {});
    // The namespace may end before it has exited.
    const int status = joined.wait();
    CHECK((status == 0 || status == 128 + SIGKILL || status == -SIGKILL));
    if (status == 0) CHECK(joined.prints("sent " + word + " to process 1\n"));
    CHECK(outside.wait() == 0);
}
#endif
