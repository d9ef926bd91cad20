// Processes forked by a test, and the descriptors that tell what happens in them.
#pragma once
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <fstream>

#include "test.hpp"

namespace test {
// A child that runs `body`; what it returns is the exit status.
template <class Body>
pid_t forked(Body body) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) ::_exit(body());
    return child;
}

#ifdef __linux__
inline pid_t raw_clone(long flags) {
#ifdef __s390__  // the stack is the first argument
    return static_cast<pid_t>(::syscall(SYS_clone, 0L, flags, 0L, 0L, 0L));
#else
    return static_cast<pid_t>(::syscall(SYS_clone, flags, 0L, 0L, 0L, 0L));
#endif
}
#endif

// Ways to make a child that returns to the caller.
inline constexpr struct {
    pid_t (*make)();
    bool runs_atfork_handlers;
    bool can_claim;  // after a raw clone(2) the C library knows nothing of the child
} ways_to_fork[] = {
    {[] { return ::fork(); }, true, true},
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
    {[] { return ::_Fork(); }, false, true},
#endif
#ifdef __linux__
    {[] { return raw_clone(SIGCHLD); }, false, false},
#endif
};

// The exit status, or minus the signal. A child that hangs is killed: -1000.
inline int status_of(pid_t child) {
    const ojs::time_point end = ojs::deadline_after(hang_guard);
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
        if (ojs::steady_clock::now() >= end) {
            ::kill(child, SIGKILL);
            ::waitpid(child, &status, 0);
            return -1000;
        }
        ::usleep(500);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// What this process has in memory, in bytes; 0: unknown.
inline std::size_t memory_used() {
    std::size_t all = 0, in_memory = 0;
    std::ifstream("/proc/self/statm") >> all >> in_memory;
    return in_memory * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

class pipe_ends {
  public:
    explicit pipe_ends(int flags = 0) { REQUIRE(::pipe2(ends_, flags) == 0); }
    pipe_ends(const pipe_ends&) = delete;
    pipe_ends& operator=(const pipe_ends&) = delete;
    ~pipe_ends() { close_reader(), close_writer(); }
    int reader() const { return ends_[0]; }
    int writer() const { return ends_[1]; }
    void close_reader() { close(ends_[0]); }
    void close_writer() { close(ends_[1]); }

  private:
    static void close(int& end) {
        if (end >= 0) ::close(end);
        end = -1;
    }
    int ends_[2];
};

// For a scope, no descriptor can be opened.
class no_descriptors {
  public:
    no_descriptors() {
        REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
        const int lowest_free = ::dup(0);
        ::close(lowest_free);
        rlimit tight = before_;
        tight.rlim_cur = static_cast<rlim_t>(lowest_free);
        REQUIRE(::setrlimit(RLIMIT_NOFILE, &tight) == 0);
    }
    no_descriptors(const no_descriptors&) = delete;
    no_descriptors& operator=(const no_descriptors&) = delete;
    ~no_descriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

  private:
    rlimit before_{};
};
}  // namespace test
