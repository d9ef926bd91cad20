// A simulated machine: one OS thread, on which the threads of a program are fibers, with a clock that stands still unless all
// of them wait. Which fiber goes on, at each point where another could, is decided by a seed.
//
// The library's code is unchanged. machine.cpp defines the calls by which it locks, waits, sleeps and reads a clock
// (pthread_mutex_lock, poll, clock_gettime, ...) in place of the C library's, and atomic.hpp has its atomics pass a point.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>

namespace sim {

using nanoseconds = std::int64_t;
constexpr nanoseconds microsecond = 1000;
constexpr nanoseconds millisecond = 1000 * microsecond;
constexpr nanoseconds second = 1000 * millisecond;

// Numbers from a seed (xorshift64*).
class random {
  public:
    explicit random(std::uint64_t seed = 1) : state_(seed * 0x9e3779b97f4a7c15U | 1U) {
        for (int i = 0; i < 4; ++i) next();
    }
    std::uint64_t next() {
        state_ ^= state_ >> 12;
        state_ ^= state_ << 25;
        state_ ^= state_ >> 27;
        return state_ * 0x2545f4914f6cdd1dU;
    }
    // 0 to below - 1.
    std::uint64_t below(std::uint64_t limit) { return (next() >> 16) % limit; }
    bool one_in(std::uint64_t chances) { return below(chances) == 0; }

  private:
    std::uint64_t state_;
};

// How the next fiber is chosen. [Burckhardt et al. 2010: A Randomized Scheduler with Probabilistic Guarantees]
struct plan {
    std::uint64_t seed = 1;
    int priority_changes = -1;            // PCT with so many; -1: a random walk
    std::uint64_t expected_steps = 4000;  // among which the changes are
    std::uint64_t switch_one_in = 4;      // of a random walk
    std::uint64_t switches = UINT64_MAX;  // so many are chosen; then each fiber goes on until it waits
    const char* may_end_early = "";       // fibers of that name may end though they were woken for nothing
};

// How a run of the machine ended.
struct ending {
    enum class kind { returned, exited, deadlock, too_many_steps } how = kind::returned;
    int status = 0;           // of _exit()
    std::uint64_t steps = 0;  // points passed
    std::uint64_t switches = 0;
    nanoseconds time = 0;      // virtual
    std::string waiting;       // what each fiber waits for, where it did not return
    std::string lost_wake_up;  // the fiber that could go on, but was not woken; empty: none
};

// Runs `body` as the first fiber until it returns and no fiber is left, or the process would have ended.
ending run(const plan& how, const std::function<void()>& body);

// ---- for code on a fiber; outside of run() they do nothing ----

void point(const char* what = "");  // another fiber may go on
nanoseconds now() noexcept;         // since the start of the run
void sleep_until(nanoseconds when);
inline void sleep_for(nanoseconds time) {
    sleep_until(now() + time);
}
bool is_running() noexcept;
random& dice() noexcept;                                   // the world's; the scheduler has its own
void start(const char* name, std::function<void()> body);  // a fiber of the world
void interrupt(std::function<void()> handler);  // calls it at a point of any fiber, as a signal does
void allow_early(
    const char* name) noexcept;  // a fiber of that name may do this though it was woken for nothing
void jump_wall_clock(nanoseconds by) noexcept;
void stand_still(nanoseconds time) noexcept;  // the process does not run, its clocks do
// One start fails by EAGAIN, or all that follow do, after so many that do not.
void fail_thread(int after, bool all = false) noexcept;
constexpr nanoseconds slowness = 400 * millisecond;
void late_threads(int count) noexcept;      // so many begin to run up to `slowness` after their start
void slow_threads(int count) noexcept;      // so many times a fiber gets no processor for up to `slowness`
void fail_memory(int after) noexcept;       // one allocation fails, after so many that do not
void fail_descriptors(int after) noexcept;  // none can be made, after so many that can

// While it exists, its fiber runs code of the world, in which no allocation fails.
class outside {
  public:
    outside() noexcept;
    ~outside();
    outside(const outside&) = delete;
    outside& operator=(const outside&) = delete;

  private:
    int* depth_;
};

void note(const char* format, ...) __attribute__((format(printf, 1, 2)));  // a line of the trace
extern bool traces;

}  // namespace sim
