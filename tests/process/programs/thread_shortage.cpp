// A worker of six slots that gets one of two threads that it starts at once. Exits with 0 as soon as six jobs run, with 1
// if that takes 20 s.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>

#include <ojs_memory.hpp>

#include "../../support/events.hpp"

namespace {
constexpr std::size_t stack_size = std::size_t{3} << 20;  // tells the worker's threads from others
constexpr int slots = 6;

test::counter starts;   // of slots; the third fails while the fourth begins
test::event is_logged;  // that it failed
test::counter running;  // jobs

ojs::time_point soon() { return ojs::deadline_after(std::chrono::seconds(20)); }
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
    const int number = is_slot ? starts.add() : 0;
    if (number == 3) return starts.wait_until(4, soon()), EAGAIN;
    if (number == 4) is_logged.wait_until(soon());
    return original(out, attributes, body, argument);
}

int main() {
    ojs::memory_transport queue;
    for (int i = 0; i < 100; ++i) queue.push("test.job");
    ojs::worker_options options;
    options.concurrency = slots;
    options.thread_stack_size = stack_size;
    options.log.hook = [](const ojs::log_record& record) {
        if (record.message == "cannot create threads; concurrency reduced for now") is_logged.set();
    };
    ojs::worker worker(options, queue);
    worker.register_handler("test.job", [](ojs::job_context& job) {
        running.add();
        static_cast<void>(job.sleep_for(std::chrono::milliseconds(100)));
        running.add(-1);
    });
    if (!worker.start()) return 64;
    return running.wait_until(slots, soon()) ? 0 : 1;
}
