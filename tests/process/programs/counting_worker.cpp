// A worker that counts what operator new gives out, and at its end prints "peak BYTES": the most it ever held at once beyond
// what it held when it began. On Linux it also counts locks and looks at the clock, and prints with job 1,200 what each of
// the last thousand took: "a job: N allocations, N locks, N clock reads". Configured from the environment, as every worker.
//
// Jobs: test.keep [...]  reads its first argument
//       test.count []    does nothing
#include <dlfcn.h>
#include <pthread.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <ojs_shutdown.hpp>

namespace {

std::atomic<std::size_t> held{0};
std::atomic<std::size_t> peak{0};
std::atomic<long> allocations{0};
std::atomic<long> locks{0};
std::atomic<long> clock_reads{0};

// In front of each block, with room for any alignment that plain new promises.
constexpr std::size_t front = alignof(std::max_align_t) > sizeof(std::size_t) ? alignof(std::max_align_t)
                                                                              : sizeof(std::size_t);

void* take(std::size_t size) {
    void* const block = std::malloc(front + size);
    if (block == nullptr) std::abort();
    *static_cast<std::size_t*>(block) = size;
    allocations.fetch_add(1);
    const std::size_t now = held.fetch_add(size) + size;
    std::size_t most = peak.load();
    while (most < now && !peak.compare_exchange_weak(most, now)) {
    }
    return static_cast<char*>(block) + front;
}

void give_back(void* given) noexcept {
    if (given == nullptr) return;
    void* const block = static_cast<char*>(given) - front;
    held.fetch_sub(*static_cast<std::size_t*>(block));
    std::free(block);
}

}  // namespace

void* operator new(std::size_t size) {
    return take(size);
}
void operator delete(void* given) noexcept {
    give_back(given);
}
void operator delete(void* given, std::size_t) noexcept {
    give_back(given);
}

#ifdef __linux__
namespace {

template <class Function>
Function* next(const char* name) {
    return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
    static auto* const original = next<int(pthread_mutex_t*)>("pthread_mutex_lock");
    locks.fetch_add(1);
    return original(mutex);
}
extern "C" int clock_gettime(clockid_t clock, timespec* out) noexcept {
    static auto* const original = next<int(clockid_t, timespec*)>("clock_gettime");
    clock_reads.fetch_add(1);
    return original(clock, out);
}
#endif

namespace {

// Called by each job.
void count_job() {
    constexpr long first = 200;
    constexpr long measured = 1000;
    static std::atomic<long> jobs{0};
    static std::atomic<long> before[3];
    const long now = jobs.fetch_add(1);
    const long counts[3] = {allocations, locks, clock_reads};
    for (int i = 0; i < 3 && now == first; ++i) before[i] = counts[i];
    if (now != first + measured) return;
    const auto each = [&](int i) { return static_cast<double>(counts[i] - before[i]) / measured; };
    std::printf("a job: %.2f allocations, %.2f locks, %.2f clock reads\n", each(0), each(1), each(2));
    std::fflush(stdout);
}

}  // namespace

int main() {
    const auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    ojs::worker worker(*options);
    worker.register_handler("test.keep", [](ojs::job_context& job) {
        return job.arg<bool>(0).value_or(false) ? "true" : "false";
    });
    worker.register_handler("test.count", [](ojs::job_context&) { count_job(); });
    const std::size_t before = held.load();
    peak = before;
    const int status = worker.run();
    return std::printf("peak %zu\n", peak.load() - before) < 0 ? 99 : status;
}
