// signal_to_phase, signal_to_awake, barrier: what happens within one process.
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>

#include "bench.hpp"

namespace bench {
namespace {

constexpr int rounds = 15;
constexpr int signals_a_round = 400;
constexpr double ns_in_us = 1000;

class event_fd {
  public:
    event_fd() : fd_(::eventfd(0, EFD_CLOEXEC)) {
        if (fd_ < 0) throw failure("no eventfd");
    }
    event_fd(const event_fd&) = delete;
    event_fd& operator=(const event_fd&) = delete;
    ~event_fd() { ::close(fd_); }

    int fd() const { return fd_; }
    void post() const {
        const std::uint64_t one = 1;
        if (::write(fd_, &one, sizeof one) < 0) std::abort();
    }
    void take() const {  // waits for a post()
        std::uint64_t count = 0;
        while (::read(fd_, &count, sizeof count) < 0) {
        }
    }

  private:
    int fd_;
};

// The floor: the least a program can do to notice a signal and to wake a thread that polls.
class bare_signals {
  public:
    bare_signals() {
        woken_fd = woken_.fd();
        struct sigaction action {};
        action.sa_handler = on_signal;
        action.sa_flags = SA_RESTART;
        ::sigaction(SIGTSTP, &action, &previous_[0]);
        ::sigaction(SIGCONT, &action, &previous_[1]);
    }
    bare_signals(const bare_signals&) = delete;
    bare_signals& operator=(const bare_signals&) = delete;
    ~bare_signals() {
        ::sigaction(SIGTSTP, &previous_[0], nullptr);
        ::sigaction(SIGCONT, &previous_[1], nullptr);
    }

    int last() const { return last_number.load(std::memory_order_acquire); }
    int fd() const { return woken_.fd(); }
    void clear() const { woken_.take(); }

  private:
    static void on_signal(int number) {
        const int saved = errno;
        last_number.store(number, std::memory_order_release);
        const std::uint64_t one = 1;
        static_cast<void>(!::write(woken_fd, &one, sizeof one));
        errno = saved;
    }
    static inline std::atomic<int> last_number{0};
    static inline int woken_fd = -1;

    event_fd woken_;
    struct sigaction previous_[2]{};
};

class our_signals {
  public:
    our_signals() : signals_(ojs::signals::install(lifecycle_)) {
        if (!signals_) throw failure(signals_.error().text);
    }

    // What the last signal was, judged by the phase alone.
    int last() const { return lifecycle_.phase() == ojs::phase::quiet ? SIGTSTP : SIGCONT; }
    int fd() const { return signals_->fd(); }
    void clear() {
        while (signals_->wait(ojs::time_point()).number != 0) {
        }
    }

  private:
    ojs::lifecycle lifecycle_;
    ojs::result<ojs::signals> signals_;
};

// Calls `sample(SIGTSTP)`, `sample(SIGCONT)`, ...; returns the median in microseconds.
template <class Sample>
double alternate(Sample sample) {
    samples out;
    for (int i = 0; i < signals_a_round; ++i)
        out.push_back(sample(i % 2 == 0 ? SIGTSTP : SIGCONT) / ns_in_us);
    return median(out);
}

template <class Signals>
double time_to_phase() {
    const Signals installed;
    return alternate([&](int number) {
        const std::int64_t sent = monotonic_ns();
        ::pthread_kill(::pthread_self(), number);
        while (installed.last() != number) {
        }
        return static_cast<double>(monotonic_ns() - sent);
    });
}

// Keeps this thread, and those it starts meanwhile, on the processor it is on: where the scheduler puts a woken thread,
// and how deep an idle processor slept, is not ours and would be all that one sees.
class one_processor {
  public:
    one_processor() {
        ::sched_getaffinity(0, sizeof before_, &before_);
        cpu_set_t here;
        CPU_ZERO(&here);
        CPU_SET(static_cast<unsigned>(::sched_getcpu()), &here);
        ::sched_setaffinity(0, sizeof here, &here);
    }
    one_processor(const one_processor&) = delete;
    one_processor& operator=(const one_processor&) = delete;
    ~one_processor() { ::sched_setaffinity(0, sizeof before_, &before_); }

  private:
    cpu_set_t before_;
};

// A thread that sleeps in poll() and says when it woke up.
class sleeper {
  public:
    sleeper(int fd, std::function<void()> clear)
        : fd_(fd), clear_(std::move(clear)), thread_([this] { run(); }) {
        sleeps_.take();
    }
    sleeper(const sleeper&) = delete;
    sleeper& operator=(const sleeper&) = delete;
    ~sleeper() {
        ending_.store(true);
        ended_.post();
        thread_.join();
    }

    void await_asleep() const { bench::await_asleep(::getpid(), id_); }
    std::int64_t woke_at() const {
        woken_.take();
        return woke_at_;
    }

  private:
    void run() {
        id_ = static_cast<pid_t>(::syscall(SYS_gettid));
        sleeps_.post();
        while (!ending_.load()) {
            pollfd waiting[2] = {{fd_, POLLIN, 0}, {ended_.fd(), POLLIN, 0}};
            ::poll(waiting, 2, -1);
            woke_at_ = monotonic_ns();
            if (waiting[0].revents == 0) continue;
            clear_();
            woken_.post();
        }
    }

    const int fd_;
    const std::function<void()> clear_;
    event_fd sleeps_;
    event_fd woken_;
    event_fd ended_;
    std::atomic<bool> ending_{false};
    std::int64_t woke_at_ = 0;  // handed over by woken_
    pid_t id_ = 0;              // handed over by sleeps_
    std::thread thread_;
};

template <class Signals>
double time_to_awake() {
    Signals installed;
    const sleeper other(installed.fd(), [&] { installed.clear(); });
    return alternate([&](int number) {
        other.await_asleep();
        const std::int64_t sent = monotonic_ns();
        ::pthread_kill(::pthread_self(), number);
        return static_cast<double>(other.woke_at() - sent);
    });
}

constexpr int passes = 1000000;

// Nanoseconds one pass takes on each of `threads` threads that run it at the same time.
template <class Pass>
double time_passes(int threads, Pass pass) {
    std::atomic<int> waiting{threads};
    const auto body = [&] {
        waiting.fetch_sub(1);
        while (waiting.load() != 0) {
        }
        for (int i = 0; i < passes; ++i) pass();
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(body);
    const std::int64_t began = monotonic_ns();
    body();
    for (std::thread& each : others) each.join();
    return static_cast<double>(monotonic_ns() - began) / passes;
}

paired barrier_against_atomic(int threads) {
    ojs::drain_barrier gate;
    std::atomic<std::uint64_t> bare{0};
    return interleave(
        rounds, [&] { return time_passes(threads, [&] { const auto ticket = gate.enter(); }); },
        [&] {
            return time_passes(threads, [&] {
                bare.fetch_add(1);
                bare.fetch_sub(1);
            });
        });
}

}  // namespace

void signal_to_phase(table& out) {
    out.add_ratio("signal -> phase visible", "us",
                  interleave(rounds, time_to_phase<our_signals>, time_to_phase<bare_signals>), at_most(1.5));
}

void signal_to_awake(table& out) {
    const one_processor pinned;
    out.add_ratio("signal -> supervisor awake", "us",
                  interleave(rounds, time_to_awake<our_signals>, time_to_awake<bare_signals>));
}

void barrier(table& out) {
    out.add_ratio("barrier enter+leave", "ns", barrier_against_atomic(1), at_most(2.5));
    out.add_ratio("barrier enter+leave, 2 threads at once", "ns", barrier_against_atomic(2));
}

}  // namespace bench
