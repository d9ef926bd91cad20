// A worker that counts what operator new gives out, and at its end prints "peak BYTES": the most it ever held at once beyond
// what it held when it began. Configured from the environment, as every worker.
//
// Jobs: test.keep [...]  reads its first argument
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <ojs_shutdown.hpp>

namespace {

std::atomic<std::size_t> held{0};
std::atomic<std::size_t> peak{0};

// In front of each block, with room for any alignment that plain new promises.
constexpr std::size_t front = alignof(std::max_align_t) > sizeof(std::size_t) ? alignof(std::max_align_t)
                                                                              : sizeof(std::size_t);

void* take(std::size_t size) {
    void* const block = std::malloc(front + size);
    if (block == nullptr) std::abort();
    *static_cast<std::size_t*>(block) = size;
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

int main() {
    const auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_usage(options.error());
    ojs::worker worker(*options);
    worker.register_handler("test.keep", [](ojs::job_context& job) {
        return job.arg<bool>(0).value_or(false) ? "true" : "false";
    });
    const std::size_t before = held.load();
    peak = before;
    const int status = worker.run();
    return std::printf("peak %zu\n", peak.load() - before) < 0 ? 99 : status;
}
