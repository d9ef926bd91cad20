#pragma once

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <system_error>

#include "light.hpp"
#include "sync.hpp"
#include "text.hpp"

namespace ojs::detail {
OJS_SHUTDOWN_INLINE void fill_standard_descriptors() noexcept {
    int fd = 0;
    while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    if (fd >= 0) ::close(fd);
}

inline timespec to_timespec(std::chrono::nanoseconds duration) noexcept {
    return {static_cast<time_t>(duration.count() / 1000000000), static_cast<long>(duration.count() % 1000000000)};
}

OJS_SHUTDOWN_INLINE void pause_for(std::chrono::nanoseconds time) noexcept {
    const timespec left = to_timespec(time);
    nanosleep(&left, nullptr);
}

OJS_SHUTDOWN_INLINE std::string errno_text(int sys_errno) {
    return cat({std::generic_category().message(sys_errno), " (errno ", sys_errno, ")"});
}

inline error system_error(std::string_view what, int sys_errno) {
    return {errc::system, sys_errno, cat({what, ": ", errno_text(sys_errno)})};
}

OJS_SHUTDOWN_INLINE std::string thrown_text() {
    try {
        throw;
    } catch (const std::exception& thrown) {
        const char* const text = thrown.what();
        return text != nullptr ? text : "an exception without a text";
    } catch (...) {
        return "an exception that is not a std::exception";
    }
}

OJS_SHUTDOWN_INLINE condition::condition() noexcept {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
#ifndef __APPLE__
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
#endif
    pthread_cond_init(&native_, &attributes);
    pthread_condattr_destroy(&attributes);
}

OJS_SHUTDOWN_INLINE bool condition::wait_until(unique_lock& held, time_point deadline) noexcept {
    if (deadline == time_point::max()) {
        wait(held);
        return true;
    }
#ifdef __APPLE__
    const time_point now = steady_clock::now();
    const timespec left = to_timespec(deadline > now ? deadline - now : steady_clock::duration::zero());
    return pthread_cond_timedwait_relative_np(&native_, &held.mutex_.native_, &left) != ETIMEDOUT;
#else
    // steady_clock is CLOCK_MONOTONIC on every other POSIX system.
    const timespec until = to_timespec(max(deadline, time_point()).time_since_epoch());
    return pthread_cond_timedwait(&native_, &held.mutex_.native_, &until) != ETIMEDOUT;
#endif
}

// getpid() without its system call, which would cost a job as much as all of the machine. 0: not yet known.
inline atomic<pid_t> known_process{0};
inline atomic<bool> forks_are_noticed{false};
inline atomic<int> unsettled_machines{0};  // begun, and not ended with every job reported
inline atomic<time_point> stops_end;       // of those that drain, the latest
inline pid_t this_process() noexcept {
    if (!forks_are_noticed.exchange(true))
        pthread_atfork(nullptr, nullptr, [] { known_process = unsettled_machines = 0; });
    if (known_process == 0) known_process = ::getpid();
    return known_process;
}

struct thread_start {
    function<void()> body;
    std::string name;
};

inline void* thread_main(void* argument) {
    auto* const given = static_cast<thread_start*>(argument);
    const thread_start start = std::move(*given);  // destroyed by pthread_exit(), too
    delete given;
#ifdef __linux__
    pthread_setname_np(pthread_self(), start.name.c_str());
#endif
    start.body();
    return nullptr;
}

OJS_SHUTDOWN_INLINE result<thread> thread::start(function<void()> body, const thread_options& options) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    std::size_t size = options.stack_size;
    if (size == 0) pthread_attr_getstacksize(&attributes, &size);
    size = max<std::size_t>(size, (options.stack_size == 0 ? 1024 : 256) * 1024);
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    int failed = pthread_attr_setstacksize(&attributes, (size + page - 1) / page * page);
    auto* const start = new thread_start{std::move(body), std::string(options.name).substr(0, 15)};
    sigset_t all;
    sigset_t previous;
    sigfillset(&all);
    if (!options.takes_signals) pthread_sigmask(SIG_SETMASK, &all, &previous);
    thread out;
    if (failed == 0) failed = pthread_create(&out.native_, &attributes, thread_main, start);
    if (!options.takes_signals) pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    pthread_attr_destroy(&attributes);
    if (failed == 0) {
        out.owner_ = ::getpid();
        return out;
    }
    delete start;
    return system_error("cannot start a thread", failed);
}

OJS_SHUTDOWN_INLINE bool thread::end_by([[maybe_unused]] time_point deadline) noexcept {
#if defined(__linux__) && !defined(__ANDROID__)
    // Not pthread_timedjoin_np(), which waits on the wall clock. musl and older glibc have no pthread_clockjoin_np().
    while (owner_ == ::getpid() && pthread_tryjoin_np(native_, nullptr) != 0) {
        if (steady_clock::now() >= deadline) return detach(), false;
        pause_for(milliseconds(1));
    }
    owner_ = 0;
#endif
    detach();  // where it is not joined
    return true;
}
}  // namespace ojs::detail
