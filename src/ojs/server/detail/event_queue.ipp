// event_queue: reports a socket's event to one thread; active_threads: limits the threads that wait for events.
#pragma once

#include <errno.h>
#include <poll.h>
#include <time.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"
#if OJS_SHUTDOWN_USE_EPOLL
#include <sys/epoll.h>
#endif

namespace ojs::detail {
// An event disarms its socket until the next watch(). Thread-safe after open(). `events` are those of poll().
// add() and watch() return false when the system is out of memory; remove() a socket before closing it.
class event_queue {
  public:
    result<void> open() {
        result<wake> made = wake::create();
        if (!made) return made.error();
        changed_ = std::move(*made);
#if OJS_SHUTDOWN_USE_EPOLL
        epoll_ = unique_fd(::epoll_create1(EPOLL_CLOEXEC));
        if (!epoll_ || !control(EPOLL_CTL_ADD, changed_.fd(), nullptr, EPOLLIN)) {
            const int failed = errno;
            return error{errc::system, failed,
                         cat({"cannot create an epoll descriptor: ", errno_text(failed),
                              failed == EMFILE ? "; raise ulimit -n" : ""})};
        }
#endif
        return {};
    }
    void stop() noexcept {
        stopping_.store(true);
        changed_.notify();
    }
#if OJS_SHUTDOWN_USE_EPOLL
    bool add(int fd, void* owner) noexcept { return control(EPOLL_CTL_ADD, fd, owner, EPOLLIN | EPOLLONESHOT); }
    bool watch(int fd, void* owner, short events) noexcept {
        static_assert(static_cast<int>(EPOLLIN) == POLLIN && static_cast<int>(EPOLLOUT) == POLLOUT, "the same bits");
        return control(EPOLL_CTL_MOD, fd, owner, static_cast<unsigned>(events) | EPOLLONESHOT);
    }
    void remove(int fd) noexcept { control(EPOLL_CTL_DEL, fd, nullptr, 0); }
    // The `owner` of a socket with an event; null after stop().
    void* wait() noexcept {
        epoll_event found{};
        while (::epoll_wait(epoll_.get(), &found, 1, -1) != 1) continue;
        return found.data.ptr;
    }

  private:
    bool control(int operation, int fd, void* owner, std::uint32_t events) noexcept {
        epoll_event event{};
        event.events = events;
        event.data.ptr = owner;
        return ::epoll_ctl(epoll_.get(), operation, fd, &event) == 0;
    }

    unique_fd epoll_;
#else
    bool add(int fd, void* owner) noexcept {
        try {
            const unique_lock held(mutex_);
            entries_.push_back({fd, owner, POLLIN});
        } catch (...) {
            return false;
        }
        changed_.notify();
        return true;
    }
    bool watch(int fd, void* owner, short events) noexcept {
        unique_lock held(mutex_);
        entry* const found = find(fd);
        if (found == nullptr) return false;
        *found = {fd, owner, events};
        held.unlock();
        changed_.notify();
        return true;
    }
    void remove(int fd) noexcept {
        const unique_lock held(mutex_);
        entry* const found = find(fd);
        if (found == nullptr) return;
        *found = entries_.back();
        entries_.pop_back();
    }
    void* wait() noexcept {
        const unique_lock alone(leader_);
        while (!stopping_.load()) {
            if (!list_sockets()) continue;  // out of memory: later
            if (::poll(waiting_.begin(), static_cast<nfds_t>(waiting_.size()), -1) <= 0) continue;
            if (waiting_[0].revents != 0) changed_.clear();
            const unique_lock held(mutex_);
            for (std::size_t i = 1; i < waiting_.size(); ++i) {
                entry* const found = waiting_[i].revents == 0 ? nullptr : find(waiting_[i].fd);
                if (found != nullptr && exchange(found->events, short{0}) != 0) return found->owner;
            }
        }
        return nullptr;
    }

  private:
    struct entry {
        int fd = -1;
        void* owner = nullptr;
        short events = 0;  // 0: disarmed
    };
    entry* find(int fd) noexcept {
        for (entry& each : entries_) {
            if (each.fd == fd) return &each;
        }
        return nullptr;
    }
    bool list_sockets() noexcept {
        const unique_lock held(mutex_);
        try {
            waiting_ = array<pollfd>(entries_.size() + 1);
        } catch (...) {
            return false;
        }
        waiting_[0] = {changed_.fd(), POLLIN, 0};
        for (std::size_t i = 0; i < entries_.size(); ++i)
            waiting_[i + 1] = {entries_[i].events == 0 ? -1 : entries_[i].fd, entries_[i].events, 0};
        return true;
    }

    mutex leader_;  // one thread polls all sockets; the others wait for their turn
    array<pollfd> waiting_;
    mutex mutex_;
    array<entry> entries_;
#endif
    wake changed_;  // with epoll never cleared, so that it wakes every thread
    atomic<bool> stopping_{false};
};

inline constexpr auto activity_interval = std::chrono::milliseconds(1);

// Each waiting thread costs a context switch per event, so few threads wait and the others are parked.
class active_threads {
  public:
    // Before this call every thread waits for events.
    void begin(int min, int max) noexcept {
        min_ = min;
        allowed_ = min;
        max_ = max;
    }
    void enter() noexcept { ++active_; }
    void leave() noexcept { --active_; }
    // Calls `wait` when this thread may, and returns its result; calls `on_all_busy` if no other thread waits then.
    template <class Wait, class AllBusy>
    void* next(Wait wait, AllBusy on_all_busy) noexcept {
        if (min_ < max_ && active_.load() > allowed_.load()) park();
        waiting_.fetch_add(1);
        void* const found = wait();
        events_.fetch_add(1);
        if (waiting_.fetch_sub(1) == 1 && min_ < max_ && !is_adjusting_.load() && !is_adjusting_.exchange(true))
            on_all_busy();
        return found;
    }
    bool needs_adjusting() const noexcept { return is_adjusting_.load(); }
    // For one thread, every activity_interval while needs_adjusting(): doubles the limit while handlers wait.
    void adjust() noexcept {
        const time_point now = steady_clock::now();
        if (!needs_adjusting() || now - adjusted_at_ < activity_interval) return;
        timespec used{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        const auto cpu_time = std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
        const unsigned events = events_.load();
        const unique_lock held(mutex_);
        const bool makes_no_progress = detail::exchange(previous_events_, events) == events;
        const bool is_idle = (cpu_time - cpu_time_) * 4 < (now - adjusted_at_) * active_.load();
        cpu_time_ = cpu_time;
        adjusted_at_ = now;
        if (detail::exchange(is_first_sample_, false)) return;
        if (waiting_.load() == 0) {
            if (!makes_no_progress && !is_idle) return;
            grown_at_ = now;
            const int doubled = active_ * 2;  // 0 while the only thread is being replaced
            allowed_ = doubled < min_ ? min_ : doubled < max_ ? doubled : max_;
            unparked_.notify_all();
        } else if (allowed_ > min_) {
            if (now - grown_at_ < 10 * activity_interval) return;
            grown_at_ = now;
            --allowed_;
        } else {
            is_first_sample_ = true;
            is_adjusting_ = false;
            // A thread that was the last to stop waiting meanwhile saw it set.
            if (waiting_.load() == 0) is_adjusting_ = true;
        }
    }
    void stop() noexcept {
        const unique_lock held(mutex_);
        stopped_ = true;
        unparked_.notify_all();
    }

  private:
    void park() noexcept {
        unique_lock held(mutex_);
        if (active_ <= allowed_) return;
        --active_;
        while (active_ >= allowed_ && !stopped_) unparked_.wait(held);
        ++active_;
    }

    int min_ = 0;
    int max_ = 0;
    atomic<int> active_{0};   // neither parked nor ended
    atomic<int> allowed_{0};  // the limit of active_
    atomic<int> waiting_{0};
    atomic<unsigned> events_{0};
    atomic<bool> is_adjusting_{false};
    mutex mutex_;  // guards what follows, and the first two where threads park
    condition unparked_;
    bool stopped_ = false;
    bool is_first_sample_ = true;
    unsigned previous_events_ = 0;
    std::chrono::nanoseconds cpu_time_{0};
    time_point adjusted_at_;
    time_point grown_at_;
};
}  // namespace ojs::detail
