// footprint core|loop|worker SLOTS: counts what the library takes, in the file $TEST_COUNTS, which holds `taken` and is
// current at any time. Then prints "ended", waits for a SIGUSR2, and exits with the status of run(). Of the jobs
// test.count, number 1,200 prints what each of the last thousand took.
#include "footprint.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <ojs_shutdown.hpp>

namespace {
test::taken uncounted;  // until the file is there
test::taken* counts = &uncounted;
constexpr std::size_t front = alignof(std::max_align_t);  // of each block: its size

template <class Value>
void raise_to(std::atomic<Value>& most, Value value) {
    for (Value before = most.load(); before < value && !most.compare_exchange_weak(before, value);) {
    }
}

template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}
}  // namespace

void* operator new(std::size_t size) {
    void* const block = std::malloc(front + size);
    if (block == nullptr) std::abort();
    *static_cast<std::size_t*>(block) = size;
    counts->allocations += 1;
    raise_to(counts->peak, counts->heap += static_cast<long>(size));
    return static_cast<char*>(block) + front;
}
void operator delete(void* given) noexcept {
    if (given == nullptr) return;
    void* const block = static_cast<char*>(given) - front;
    counts->heap -= static_cast<long>(*static_cast<std::size_t*>(block));
    std::free(block);
}
void operator delete(void* given, std::size_t) noexcept { operator delete(given); }

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
    static auto* const original = next<int(pthread_mutex_t*)>("pthread_mutex_lock");
    counts->locks += 1;
    return original(mutex);
}
extern "C" int clock_gettime(clockid_t clock, timespec* out) noexcept {
    static auto* const original = next<int(clockid_t, timespec*)>("clock_gettime");
    counts->clock_reads += 1;
    return original(clock, out);
}
extern "C" int pthread_create(pthread_t* out, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
    static auto* const original =
        next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
    std::size_t stack = 0;
    if (attributes != nullptr) ::pthread_attr_getstacksize(attributes, &stack);
    if (stack == test::stack_size) counts->stacks += 1;
    return original(out, attributes, body, argument);
}

namespace {
bool share_counts() {
    const int file = ::open(::getenv("TEST_COUNTS"), O_RDWR | O_CLOEXEC);
    void* const shared = ::mmap(nullptr, sizeof(test::taken), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    if (shared == MAP_FAILED) return false;
    counts = static_cast<test::taken*>(shared);
    return true;
}

int run_core() {
    ojs::lifecycle lifecycle;
    auto installed = ojs::signals::install(lifecycle);
    if (!installed) return 98;
    ojs::drain_barrier barrier;
    while (lifecycle.phase() == ojs::phase::running) static_cast<void>(installed->wait());
    barrier.close();
    return barrier.wait_until(ojs::deadline_after(std::chrono::seconds(1))) == 0 ? 0 : 75;
}

int run_loop(std::size_t slots) {
    ojs::loop_options options;
    options.thread_stack_size = test::stack_size;
    ojs::loop loop(options);
    loop.add_consumers(slots, [](ojs::consumer& consumer) {
        while (consumer.next()) static_cast<void>(consumer.intake_token().sleep_for(std::chrono::hours(1)));
    });
    return loop.run();
}

// Called by each job.
void count_job() {
    constexpr long first = 200;
    constexpr long measured = 1000;
    static std::atomic<long> jobs{0};
    static std::atomic<long> before[3];
    const long now = jobs.fetch_add(1);
    const long taken[3] = {counts->allocations, counts->locks, counts->clock_reads};
    for (int i = 0; i < 3 && now == first; ++i) before[i] = taken[i];
    if (now != first + measured) return;
    const auto each = [&](int i) { return static_cast<double>(taken[i] - before[i]) / measured; };
    std::printf("a job: %.2f allocations, %.2f locks, %.2f clock reads\n", each(0), each(1), each(2));
    std::fflush(stdout);
}

int run_worker() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    options->thread_stack_size = test::stack_size;
    ojs::worker worker(*options);
    worker.register_handler("test.gate", [](ojs::job_context& job) {
        const auto path = job.arg<std::string>(0);
        while (::access(path->c_str(), F_OK) != 0) {
            if (!job.sleep_for(std::chrono::milliseconds(2))) return;
        }
    });
    worker.register_handler("test.keep",
                            [](ojs::job_context& job) { return job.arg<bool>(0).value_or(false) ? "true" : "false"; });
    worker.register_handler("test.count", [](ojs::job_context&) { count_job(); });
    return worker.run();
}
}  // namespace

int main(int argc, char** argv) {
    for (int number = 3; number < 1024; ++number) ::close(number);  // not ours
    if (argc != 3 || !share_counts()) return 64;
    const std::string what = argv[1];
    const auto slots = static_cast<std::size_t>(std::atoi(argv[2]));
    const int status = what == "core" ? run_core() : what == "loop" ? run_loop(slots) : run_worker();
    sigset_t go;
    sigemptyset(&go);
    sigaddset(&go, SIGUSR2);
    ::sigprocmask(SIG_BLOCK, &go, nullptr);  // before the line that the test answers with it
    std::puts("ended");
    std::fflush(stdout);
    int number = 0;
    ::sigwait(&go, &number);
    return status;
}
