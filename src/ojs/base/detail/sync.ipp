#pragma once

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>

#include "light.hpp"
#include "sync.hpp"
#include "text.hpp"

namespace ojs::detail {

template <class Make>
auto unless_out_of_memory(Make make) -> decltype(make()) {
    try {
        return make();
    } catch (const std::bad_alloc&) {
        return error{errc::unavailable, ENOMEM, "out of memory"};  // short enough to need no heap
    }
}

// Calls `body`; false: out of memory.
template <class Body>
bool attempt(Body body) {
    try {
        body();
        return true;
    } catch (const std::bad_alloc&) {
        return false;
    }
}

// Retries `body` for up to a second, in which other threads may free memory.
template <class Body>
bool retry_allocation(Body body) {
    for (int left = 100; !attempt(body); --left) {
        if (left == 0) return false;
        const timespec pause{0, 10 * 1000 * 1000};
        ::nanosleep(&pause, nullptr);
    }
    return true;
}

inline timespec to_timespec(std::chrono::nanoseconds duration) noexcept {
    timespec out{};
    out.tv_sec = static_cast<time_t>(duration.count() / 1000000000);
    out.tv_nsec = static_cast<long>(duration.count() % 1000000000);
    return out;
}

OJS_SHUTDOWN_INLINE void pass_on_thread_end() {
    if (!std::current_exception()) throw;  // null for a forced unwind
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
    const cancellable off(false);
#ifdef __APPLE__
    const time_point now = steady_clock::now();
    const timespec left = to_timespec(deadline > now ? deadline - now : steady_clock::duration::zero());
    return pthread_cond_timedwait_relative_np(&native_, held.owner().native(), &left) != ETIMEDOUT;
#else
    // steady_clock is CLOCK_MONOTONIC on every other POSIX system.
    const timespec until =
        to_timespec(deadline < time_point() ? time_point().time_since_epoch() : deadline.time_since_epoch());
    return pthread_cond_timedwait(&native_, held.owner().native(), &until) != ETIMEDOUT;
#endif
}

struct thread_start : ref_counted {
    function<void()> body;
    char name[16] = "";  // a copy, as long as the kernel's: the caller's may be gone
};

inline void* thread_main(void* argument) {
    const ref<thread_start> start(static_cast<thread_start*>(argument));
    start->release();  // in place of the reference that came with the argument
    const cancellable off(false);
#ifdef __linux__
    pthread_setname_np(pthread_self(), start->name);
#endif
    start->body();
    return nullptr;
}

inline std::size_t round_up_stack_size(std::size_t requested) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const auto min = static_cast<std::size_t>(PTHREAD_STACK_MIN);
    return ((requested < min ? min : requested) + page - 1) / page * page;
}

OJS_SHUTDOWN_INLINE result<thread> thread::start(function<void()> body, thread_options options) {
    ref<thread_start> start = make_ref<thread_start>();
    start->body = std::move(body);
    std::snprintf(start->name, sizeof start->name, "%s", options.name);
    start->retain();  // the thread's reference

    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    std::size_t stack_size = 0;
    pthread_attr_getstacksize(&attributes, &stack_size);
    const std::size_t requested = options.stack_size != 0 ? options.stack_size : stack_size;
    const std::size_t min = options.min_stack_size;
    int failed = 0;
    if (options.stack_size != 0 || requested < min)
        failed =
            pthread_attr_setstacksize(&attributes, round_up_stack_size(requested < min ? min : requested));
    sigset_t all_signals;
    sigset_t previous;
    sigfillset(&all_signals);
    if (!options.takes_signals) pthread_sigmask(SIG_SETMASK, &all_signals, &previous);
    thread out;
    if (failed == 0) failed = pthread_create(&out.native_, &attributes, thread_main, start.get());
    if (!options.takes_signals) pthread_sigmask(SIG_SETMASK, &previous, nullptr);
    pthread_attr_destroy(&attributes);
    if (failed != 0) {
        start->release();
        return error{errc::system, failed, cat({"cannot start a thread: ", errno_text(failed)})};
    }
    out.joinable_ = true;
    return out;
}

OJS_SHUTDOWN_INLINE bool thread::join_until(time_point deadline) noexcept {
#if defined(__linux__) && !defined(__ANDROID__)
    // Not pthread_timedjoin_np(), which waits on the wall clock. musl and older glibc have no pthread_clockjoin_np().
    while (joinable_ && pthread_tryjoin_np(native_, nullptr) != 0) {
        if (steady_clock::now() >= deadline) return false;
        const timespec pause{0, 1000 * 1000};
        ::nanosleep(&pause, nullptr);
    }
    joinable_ = false;
#else
    static_cast<void>(deadline);
    detach();
#endif
    return !joinable_;
}

}  // namespace ojs::detail
