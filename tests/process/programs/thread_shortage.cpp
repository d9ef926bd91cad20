// A worker of six slots that gets one of two threads that it starts at once. Exits with 0 as soon as six jobs run, with 1
// if that takes 20 s.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <ojs_memory.hpp>

namespace {
constexpr std::size_t stack_size = std::size_t{3} << 20;  // tells the worker's threads from others
constexpr int slots = 6;

std::mutex mutex;
std::condition_variable changed;
int starts = 0;          // of slots; the third fails while the fourth begins
bool is_logged = false;  // that it failed
int running = 0;         // jobs

template <class Ready>
bool await(Ready ready) {
    std::unique_lock<std::mutex> held(mutex);
    return changed.wait_for(held, std::chrono::seconds(20), ready);
}
template <class Change>
void change(Change made) {
    const std::lock_guard<std::mutex> held(mutex);
    made();
    changed.notify_all();
}
}  // namespace

extern "C" int pthread_create(pthread_t* out, const pthread_attr_t* attributes, void* (*body)(void*),
                              void* argument) noexcept {
    using create = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
    static auto* const original = reinterpret_cast<create*>(::dlsym(RTLD_NEXT, "pthread_create"));
    std::size_t stack = 0;
    if (attributes != nullptr) ::pthread_attr_getstacksize(attributes, &stack);
    sigset_t mask;
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    const bool is_slot = stack == stack_size && sigismember(&mask, SIGUSR2) == 0;  // in others all are blocked
    int number = 0;
    if (is_slot) change([&] { number = ++starts; });
    if (number == 3) return await([] { return starts > 3; }), EAGAIN;
    if (number == 4) await([] { return is_logged; });
    return original(out, attributes, body, argument);
}

int main() {
    ojs::memory_transport queue;
    for (int i = 0; i < 100; ++i) queue.push("test.job");
    ojs::worker_options options;
    options.concurrency = slots;
    options.thread_stack_size = stack_size;
    options.log.hook = [](const ojs::log_record& record) {
        if (record.message == "cannot create threads; concurrency reduced for now") change([] { is_logged = true; });
    };
    ojs::worker worker(options, queue);
    worker.register_handler("test.job", [](ojs::job_context& job) {
        change([] { ++running; });
        static_cast<void>(job.sleep_for(std::chrono::milliseconds(100)));
        change([] { --running; });
    });
    if (!worker.start()) return 64;
    return await([] { return running == slots; }) ? 0 : 1;
}
