// out_of_memory: a worker of two jobs in which one allocation fails, once for each that it makes from its start to its end,
// each time in a process of its own. Exit status 0: every time it stopped by itself, and both jobs were reported or named;
// and a completion_ledger committed nothing beyond the position that its allocation failed for.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "ojs_shutdown.hpp"

namespace {

using namespace std::chrono_literals;

constexpr int not_hit = 3;  // all that was allocated was fewer
std::atomic<bool> armed{false};
std::atomic<long> left{0};
std::atomic<bool> hit{false};

void* allocate(std::size_t size) {
    if (armed && --left == 0) {
        hit = true;
        throw std::bad_alloc();
    }
    if (void* const out = std::malloc(size == 0 ? 1 : size)) return out;
    throw std::bad_alloc();
}

struct recording : ojs::memory_transport {
    ojs::result<ojs::settle_result> ack(const ojs::ack_request& request, ojs::time_point deadline) override {
        return counted(memory_transport::ack(request, deadline));
    }
    ojs::result<ojs::settle_result> fail(const ojs::fail_request& request,
                                         ojs::time_point deadline) override {
        return counted(memory_transport::fail(request, deadline));
    }
    // Leaves out the worker's jobs, which it then queries.
    ojs::result<ojs::heartbeat_response> heartbeat(const ojs::heartbeat_request& request,
                                                   ojs::time_point deadline) override {
        ojs::result<ojs::heartbeat_response> answer = memory_transport::heartbeat(request, deadline);
        if (answer) answer->jobs_extended.assign(1, "another");
        return answer;
    }
    ojs::result<ojs::settle_result> counted(ojs::result<ojs::settle_result> answer) {
        if (answer && *answer == ojs::settle_result::accepted) ++settlements;
        return answer;
    }
    std::atomic<int> settlements{0};
};

int stop_worker(long fail_at) {
    ojs::worker_options options;
    options.log.level = ojs::log_level::debug;
    options.log.hook = [](const ojs::log_record&) {};
    options.poll_interval = 10ms;
    options.heartbeat_interval = 30ms;
    options.times.shutdown_grace_period = 60ms;
    options.times.stop_timeout = 5000ms;
    recording transport;
    ojs::worker worker(options, transport);
    std::atomic<int> steps{0};
    worker.register_handler("quick", [](ojs::job_context&) {});
    worker.register_handler("long", [](ojs::job_context& job) { static_cast<void>(job.sleep_for(60s)); });
    static_cast<void>(worker.on_shutdown("step", [&] { ++steps; }));
    transport.push("quick", "[]");
    transport.push("long", "[]");
    left = fail_at;
    armed = true;
    const ojs::result<void> started = worker.start();
    if (!started) return hit ? 0 : 1;
    // Both are claimed however long that takes: the one is settled, the other runs.
    const auto claimed = [&] { return worker.report().claimed == 2; };
    for (bool all = false; !all;) {
        ::usleep(1000);
        try {
            all = claimed();
        } catch (const std::bad_alloc&) {  // the copy of the report is this thread's own
        }
    }
    const ojs::stop_result stopped = worker.stop(20s);
    armed = false;
    const ojs::worker_report report = worker.report();
    const std::size_t accounted = static_cast<std::size_t>(transport.settlements) + report.unreported.size();
    const bool right =
        accounted == 2 && steps == 1 && worker.exit_code() == (report.unreported.empty() ? 0 : 75);
    if (!right || stopped.status == ojs::stop_status::timed_out) {
        std::fprintf(stderr, "allocation %ld: %s, %d settled, %zu unreported, %d steps, status %d\n", fail_at,
                     ojs::to_string(stopped.status), transport.settlements.load(), report.unreported.size(),
                     steps.load(), worker.exit_code());
        return 1;
    }
    return hit ? 0 : not_hit;
}

// The same by run(), from its first line: it returns, or has never begun, and then it may be destroyed.
int run_worker(long fail_at) {
    ojs::worker_options options;
    options.log.level = ojs::log_level::debug;
    options.log.hook = [](const ojs::log_record&) {};
    recording transport;
    ojs::lifecycle shared;
    int status = -1;
    {
        ojs::worker worker(options, transport, shared);
        worker.register_handler("quick", [](ojs::job_context&) {});
        shared.apply(ojs::event::stop_request, {});  // known before it starts
        left = fail_at;
        armed = true;
        status = worker.run();
        armed = false;
    }
    const bool free = static_cast<bool>(ojs::signals::install(shared));
    if (!free || (status != 0 && (status != 64 || !hit))) {
        std::fprintf(stderr, "allocation %ld: run() returned %d, the signals are %s\n", fail_at, status,
                     free ? "free" : "taken");
        return 1;
    }
    return hit ? 0 : not_hit;
}

pid_t begin(int (*use_worker)(long), long fail_at) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::alarm(60);  // only a hang takes so long
    ::_exit(use_worker(fail_at));
}

// Returns how many failed.
int try_each(const char* name, int (*use_worker)(long)) {
    constexpr int side_by_side = 8;
    int failed = 0;
    bool any_hit = true;
    long next = 1;
    while (any_hit) {
        pid_t children[side_by_side];
        for (pid_t& child : children) child = begin(use_worker, next++);
        any_hit = false;
        for (int i = 0; i < side_by_side; ++i) {
            int status = 0;
            ::waitpid(children[i], &status, 0);
            const bool ended = WIFEXITED(status);
            if (!ended)
                std::fprintf(stderr, "allocation %ld: signal %d\n", next - side_by_side + i,
                             WTERMSIG(status));
            const int code = ended ? WEXITSTATUS(status) : 1;
            any_hit = any_hit || code != not_hit;
            if (code != 0 && code != not_hit) ++failed;
        }
    }
    std::fprintf(stderr, "%s: %ld allocations, %d failed\n", name, next - side_by_side - 1, failed);
    return failed;
}

// A completion_ledger stops before the position that it has no memory for. Returns how much was wrong.
int begin_without_memory() {
    ojs::completion_ledger ledger;
    auto first = ledger.begin(1);
    left = 1;
    armed = true;
    const auto second = ledger.begin(2);
    armed = false;
    hit = false;
    ledger.begin(3)->done();
    const bool refused = !second && second.error().code == ojs::errc::unavailable;
    const bool early = ledger.next_position() != 0;
    first->done();
    return refused && !early && ledger.next_position() == 2 && ledger.in_flight() == 0 ? 0 : 1;
}

}  // namespace

void* operator new(std::size_t size) {
    return allocate(size);
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
    try {
        return allocate(size);
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}
void operator delete(void* memory) noexcept {
    std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

int main() {
    const int failed =
        begin_without_memory() + try_each("start()", stop_worker) + try_each("run()", run_worker);
    return failed == 0 ? 0 : 1;
}
