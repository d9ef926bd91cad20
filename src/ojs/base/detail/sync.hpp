// Mutex, condition, thread and unique_fd. <mutex> alone would make the header compile 5 % longer.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include "../duration.hpp"
#include "../function.hpp"
#include "light.hpp"

namespace ojs::detail {
// Unlike sched_yield(), lets threads of a lower priority run.
void pause_for(std::chrono::nanoseconds time) noexcept;

class mutex : non_copyable {
  public:
    mutex() noexcept { pthread_mutex_init(&native_, nullptr); }
    ~mutex() { pthread_mutex_destroy(&native_); }

    void lock() noexcept { pthread_mutex_lock(&native_); }
    bool try_lock() noexcept { return pthread_mutex_trylock(&native_) == 0; }
    void unlock() noexcept { pthread_mutex_unlock(&native_); }

  private:
    friend class condition;
    pthread_mutex_t native_;
};

class unique_lock : non_copyable {
  public:
    explicit unique_lock(mutex& m) noexcept : mutex_(m) { mutex_.lock(); }
    ~unique_lock() {
        if (held_) mutex_.unlock();
    }

    void unlock() noexcept {
        held_ = false;
        mutex_.unlock();
    }
    void lock() noexcept {
        mutex_.lock();
        held_ = true;
    }

  private:
    friend class condition;
    mutex& mutex_;
    bool held_ = true;
};

class condition : non_copyable {
  public:
    condition() noexcept;
    ~condition() { pthread_cond_destroy(&native_); }

    void wait(unique_lock& held) noexcept { pthread_cond_wait(&native_, &held.mutex_.native_); }
    // False once `deadline` has passed; time_point::max() never passes.
    bool wait_until(unique_lock& held, time_point deadline) noexcept;
    void notify_one() noexcept { pthread_cond_signal(&native_); }
    void notify_all() noexcept { pthread_cond_broadcast(&native_); }

  private:
    pthread_cond_t native_;
};

struct thread_options {
    std::size_t stack_size = 0;  // bytes, 256 KiB or more; 0: the platform's default, 1 MiB or more (musl has 128 KiB)
    bool takes_signals = false;  // false: every signal is blocked in the thread
    const char* name = "ojs";    // in ps and debuggers; 15 characters at most
};

// The destructor joins it. In a child of fork(), which has no copy of it, nothing waits.
class thread {
  public:
    thread() = default;
    thread(thread&& other) noexcept : native_(other.native_), owner_(exchange(other.owner_, 0)) {}
    thread& operator=(thread&& other) noexcept {
        swap(native_, other.native_);
        swap(owner_, other.owner_);
        return *this;
    }
    ~thread() { join(); }

    static result<thread> start(function<void()> body, const thread_options& options = {});
    void join() noexcept {
        if (exchange(owner_, 0) == ::getpid()) pthread_join(native_, nullptr);
    }
    // For a thread whose body has returned. False: it is detached, as destructors of its thread_local objects still run
    // at the deadline. Anywhere but on Linux it always is.
    bool end_by(time_point deadline) noexcept;
    void detach() noexcept {
        if (exchange(owner_, 0) == ::getpid()) pthread_detach(native_);
    }
    bool joinable() const noexcept { return owner_ != 0; }

  private:
    pthread_t native_{};
    pid_t owner_ = 0;  // the process that started it, while it is joinable
};

// Opens /dev/null for closed descriptors 0 to 2: what the program prints must not reach one of the library.
void fill_standard_descriptors() noexcept;

class unique_fd {
  public:
    unique_fd() = default;
    explicit unique_fd(int fd) noexcept : fd_(fd) {}
    unique_fd(unique_fd&& other) noexcept : fd_(exchange(other.fd_, -1)) {}
    unique_fd& operator=(unique_fd&& other) noexcept {
        swap(fd_, other.fd_);
        return *this;
    }
    ~unique_fd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    int release() noexcept { return exchange(fd_, -1); }
    void reset() noexcept {
        if (fd_ >= 0) ::close(exchange(fd_, -1));  // no retry on EINTR: Linux has closed it then, too
    }

  private:
    int fd_ = -1;
};
}  // namespace ojs::detail
