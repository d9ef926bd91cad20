// What the library takes from a process that uses it, at rest and at work, and that it gives all of it back.
#if defined(__linux__) && \
    !defined(__SANITIZE_THREAD__)  // there the programs are those of another configuration
#include <signal.h>

#include <cstdlib>

#include "harness.hpp"

using namespace test;

namespace {

// The bytes of operator new in the last line that begins with `start`.
std::size_t heap_of(process& program, const std::string& start) {
    const std::string& output = program.output();
    const std::size_t line = output.rfind(start);
    REQUIRE_MESSAGE(line != std::string::npos, output);
    return std::strtoull(output.c_str() + output.find("heap ", line) + 5, nullptr, 10);
}

process start_footprint(const char* what, int slots, const environment& extra) {
    environment all{{"OJS_LOG_LEVEL", "off"}, {"OJS_CONCURRENCY", std::to_string(slots)}};
    all.insert(extra.begin(), extra.end());
    return process({program("footprint"), what, std::to_string(slots)}, all);
}

// All is given back; but a stop signal stays handled, as signals.hpp says.
void check_stopped(process& program, const std::string& stop_signals) {
    program.signal(SIGTERM);
    CHECK(program.wait() == 0);
    INFO(program.output());
    CHECK(program.count("\nafter: threads; descriptors; signals" + stop_signals + "; blocked 0; heap ") == 1);
}

}  // namespace

TEST_CASE("footprint: signals, lifecycle and barrier take no thread, a pipe, five handlers and 100 bytes") {
    process core = start_footprint("core", 0, {});
    CHECK(core.prints("runs: threads; descriptors pipe*2; signals 15 18 2 20 21;"));
    CHECK(heap_of(core, "runs: threads; ") < 100);
    check_stopped(core, " 15 2");
    CHECK(heap_of(core, "after: ") == 0);
}
TEST_CASE(
    "footprint: a loop takes one thread a consumer, an eventfd, a pipe and 10 kB, and gives all of it back") {
    for (const int slots : {1, 10, 64}) {
        CAPTURE(slots);
        process loop = start_footprint("loop", slots, {});
        const std::string count = slots == 1 ? "" : "*" + std::to_string(slots);
        CHECK(loop.prints("runs: threads ojs-consumer/1024" + count + "; "));
        CHECK(loop.prints("; descriptors [eventfd] pipe*2; signals 1 15 18 2 20 21;"));
        CHECK(heap_of(loop, "runs: threads ojs-consumer") < 10000);
        check_stopped(loop, " 1 15 2");
        CHECK(heap_of(loop, "after: ") == 0);
    }
}

TEST_CASE(
    "footprint: a worker takes 4 threads and 16 kB, and at most a thread, a socket and 4 kB a job; all is "
    "freed") {
    const std::string service = "runs: threads ojs-beat-helper/1024 ojs-call/1024 ojs-heartbeat/1024 ";
    const std::string descriptors = "; descriptors [eventfd] pipe*2 ";
    backend jobs;
    for (const int slots : {1, 10, 64}) {
        CAPTURE(slots);
        process worker =
            start_footprint("worker", slots, {{"OJS_URL", jobs.url()}, {"OJS_POLL_INTERVAL", "20ms"}});
        // At rest one thread waits for jobs. FETCH and heartbeats share a connection unless they meet.
        CHECK(worker.prints(service + "ojs-job/1024" + descriptors + "socket"));
        CHECK(heap_of(worker, service) < 16000);
        const gate held;
        jobs.push("test.gate", held.args(), slots);
        const std::string count = slots == 1 ? "" : "*" + std::to_string(slots);
        CHECK(worker.prints(service + "ojs-job/1024" + count + descriptors));
        CHECK(heap_of(worker, service) < 16000 + 4000 * static_cast<std::size_t>(slots));
        held.open();
        CHECK(eventually([&] { return jobs.summary()["completed"].number >= slots; }));
        CHECK(worker.count("; signals 1 15 18 2 20 21;") > 0);
        check_stopped(worker, " 1 15 2");
        for (int sockets = slots + 2; sockets < slots + 8; ++sockets)
            CHECK(worker.count("socket*" + std::to_string(sockets) + ";") == 0);
        CHECK(heap_of(worker, "after: ") == 0);
    }
}
#endif
