// Costs within one process: a signal until the phase it leads to, and a drain_barrier.
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <ojs_shutdown.hpp>
#include <thread>

#include "roles.hpp"

namespace bench {
namespace {

std::atomic<int> last_number{0};
int woken_fd = -1;

// Microseconds from SIGTSTP, SIGCONT, ... to this thread until `last()` is that signal; the median of 400.
template <class Last>
double time_signals(Last last) {
    std::vector<double> out;
    for (int i = 0; i < 400; ++i) {
        const int number = i % 2 == 0 ? SIGTSTP : SIGCONT;
        const double sent = monotonic_ns();
        ::pthread_kill(::pthread_self(), number);
        while (last() != number) {
        }
        out.push_back((monotonic_ns() - sent) / 1000);
    }
    std::sort(out.begin(), out.end());
    return out[out.size() / 2];
}

double time_to_phase() {
    ojs::lifecycle life;
    const auto installed = ojs::signals::install(life);
    must(installed.has_value(), "signals");
    return time_signals([&] { return life.phase() == ojs::phase::quiet ? SIGTSTP : SIGCONT; });
}

double time_to_bare_handler() {
    const int fd = install_bare_handler({SIGTSTP, SIGCONT});
    const double out = time_signals(last_bare_signal);
    for (const int number : {SIGTSTP, SIGCONT}) ::signal(number, SIG_DFL);
    ::close(fd);
    return out;
}

int signal_to_phase(const arguments&) {
    return print_pairs(time_to_phase, time_to_bare_handler);
}

// Nanoseconds one of a million passes takes on each of `threads` threads that run at the same time.
template <class Pass>
double time_passes(int threads, Pass pass) {
    constexpr int passes = 1000000;
    std::atomic<int> waiting{threads};
    const auto body = [&] {
        waiting.fetch_sub(1);
        while (waiting.load() != 0) {
        }
        for (int i = 0; i < passes; ++i) pass();
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(body);
    const double began = monotonic_ns();
    body();
    for (std::thread& each : others) each.join();
    return (monotonic_ns() - began) / passes;
}

// Arguments: how many threads.
int barrier(const arguments& given) {
    const int threads = std::stoi(given.at(0));
    ojs::drain_barrier gate;
    std::atomic<std::uint64_t> bare{0};
    return print_pairs([&] { return time_passes(threads, [&] { const auto ticket = gate.enter(); }); },
                       [&] {
                           return time_passes(threads, [&] {
                               bare.fetch_add(1);
                               bare.fetch_sub(1);
                           });
                       });
}

}  // namespace

int install_bare_handler(const std::vector<int>& signals) {
    woken_fd = ::eventfd(0, EFD_CLOEXEC);
    struct sigaction action {};
    action.sa_handler = [](int number) {
        last_number.store(number, std::memory_order_release);
        const std::uint64_t one = 1;
        static_cast<void>(!::write(woken_fd, &one, sizeof one));
    };
    action.sa_flags = SA_RESTART;
    for (const int number : signals) ::sigaction(number, &action, nullptr);
    return woken_fd;
}

int last_bare_signal() {
    return last_number.load(std::memory_order_acquire);
}

const std::vector<role> in_process_roles = {{"signal_to_phase", signal_to_phase}, {"barrier", barrier}};

}  // namespace bench

int main(int argc, char** argv) {
    using namespace bench;
    for (const auto& roles : {in_process_roles, spool_roles, worker_roles, server_roles}) {
        for (const role& each : roles) {
            if (argc > 1 && std::string(argv[1]) == each.name) return each.run({argv + 2, argv + argc});
        }
    }
    std::fputs("started by tests/bench/bench.py\n", stderr);
    return 64;
}
