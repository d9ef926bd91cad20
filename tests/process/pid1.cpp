// The worker as PID 1 of a PID namespace, alone in an empty root, as in an image made FROM scratch. The kernel drops
// a signal to PID 1 that is neither handled nor blocked at that moment.
#ifdef __linux__
#include <sys/ptrace.h>
#endif

#include <filesystem>
#include <fstream>

#include "contract/relay.hpp"
#include "harness.hpp"

namespace {
bool is_built() { return ::access(program("static_worker").c_str(), X_OK) == 0; }

// What becomes it: first of all `before` runs, by a shell with this process id.
std::vector<std::string> in_empty_root(std::vector<std::string> pid_namespace, const std::string& before) {
    const std::string root = scratch_file("root");
    std::filesystem::create_directories(root + "/proc");
    std::filesystem::copy_file(program("static_worker"), root + "/worker");
    pid_namespace.insert(pid_namespace.end(), {"sh", "-c", before + "exec chroot \"$0\" /worker", root});
    return pid_namespace;
}

environment settings_for(const std::string& url) {
    return settings_from("OJS_WORKER_ID=w OJS_HEARTBEAT_INTERVAL=100ms OJS_POLL_INTERVAL=20ms OJS_URL=" + url);
}

// Whether a SIGTERM would be kept now: blocked or handled.
bool keeps_term(pid_t pid) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(status, line);) {
        const bool counts = line.compare(0, 7, "SigBlk:") == 0 || line.compare(0, 7, "SigCgt:") == 0;
        if (counts && (std::stoull(line.substr(8), nullptr, 16) >> (SIGTERM - 1) & 1U) != 0) return true;
    }
    return false;
}
}  // namespace

TEST_CASE("static_worker: the build contains the static worker on Linux x86_64 and aarch64") {
#if defined(__linux__) && (defined(__x86_64__) || defined(__aarch64__))
    CHECK(is_built());  // though a machine may refuse namespaces
#endif
}

TEST_CASE("static_worker: as PID 1 in an empty root, with or without /proc, it serves, drains and exits with 0") {
    const std::vector<std::string> container = pid_namespace();
    if (container.empty() || !is_built()) return;
    for (const std::string& before : {std::string(), std::string("mount -t proc none \"$0/proc\" && ")}) {
        CAPTURE(before);
        backend jobs;
        test::event held;  // the ACK: until it is passed on the job is in flight
        test::event going;
        const transport_contract::relay between(jobs.port(), [&](const std::string& sent) {
            if (sent.find("POST /ojs/v1/workers/ack") == sent.npos) return false;
            held.set();
            return !going.wait();
        });
        environment settings = settings_for("http://127.0.0.1:" + std::to_string(between.port()));
        settings["OJS_REQUEST_TIMEOUT"] = "1m";
        process outside(in_empty_root(container, before), settings);
        REQUIRE(jobs.event(beat_in_state("w", "running")).what == json::kind::object);
        const pid_t worker = std::stoi(init_of(outside));
        ::kill(worker, SIGTSTP);
        REQUIRE(jobs.event(beat_in_state("w", "quiet")).what == json::kind::object);
        const std::string id = jobs.push_one("noop", "[]");
        ::kill(worker, SIGCONT);
        REQUIRE(held.wait());
        ::kill(worker, SIGTERM);
        const auto drains = [&](const json& event) {
            return beat_in_state("w", "quiet")(event) && event["active"].holds(id);
        };
        REQUIRE(jobs.event(drains).what == json::kind::object);
        going.set();
        CHECK(outside.wait() == 0);
        INFO(outside.output());
        CHECK(outside.prints("pid=1 "));
        CHECK(jobs.state_of(id) == "completed");
        CHECK(jobs.count(beat_in_state("w", "terminate")) == 1);
        CHECK(jobs.count(job_event(id, "nack")) == 0);
    }
}

TEST_CASE("static_worker: as PID 1, a SIGTERM pending before exec -> it exits with 0, without a FETCH") {
    std::vector<std::string> container = pid_namespace();
    if (container.empty() || !is_built()) return;
    container.insert(container.end(), {"env", "--block-signal=TERM"});
    backend jobs;
    process outside(in_empty_root(container, "kill -TERM $$; "), settings_for(jobs.url()));
    REQUIRE_MESSAGE(outside.wait() == 0, outside.output());
    CHECK(outside.prints("pid=1 "));
    CHECK(jobs.count(worker_event("w", "fetch")) == 0);
}

#ifdef __linux__
// With the case before, a SIGTERM at any moment from there on is honoured: it stays pending until it is handled.
TEST_CASE("static_worker: the first system call blocks SIGTERM") {
    if (!is_built()) return;
    const std::string path = program("static_worker");
    const pid_t child = ::fork();
    if (child == 0) {
        char* const none[] = {nullptr};
        if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0) ::execve(path.c_str(), none, none);
        ::_exit(126);
    }
    const process worker(child, "");
    // It stops at the end of its exec, then at each entry to and exit from a system call.
    int status = 0;
    for (const char* stop : {"exec", "into the first call", "out of the first call"}) {
        CAPTURE(stop);
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(WIFSTOPPED(status));
        CHECK(WSTOPSIG(status) == SIGTRAP);
        if (std::strcmp(stop, "out of the first call") == 0) break;
        CHECK_FALSE(keeps_term(child));
        REQUIRE(::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) == 0);
    }
    CHECK(keeps_term(child));
    ::kill(child, SIGKILL);
}
#endif
