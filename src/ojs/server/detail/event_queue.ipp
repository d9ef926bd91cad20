// event_queue: which of many sockets can be read or written, told once to one of several threads.
#pragma once

#include <errno.h>
#include <poll.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../core/detail/wake.hpp"
#if OJS_SHUTDOWN_USE_EPOLL
#include <sys/epoll.h>
#endif

namespace ojs::detail {

// What a socket's owner waits for.
enum class awaited { to_read, to_write, either };

// A socket that was told of is not looked at until it is watched again. Every member is thread-safe. `who` is what wait()
// returns. add() and watch() return false where the socket cannot be watched (out of memory, or of places). remove() comes
// before the socket is closed. wait() returns null after stop().
class event_queue {
  public:
#if OJS_SHUTDOWN_USE_EPOLL
    static result<event_queue> create() {
        event_queue out;
        result<wake> stopped = wake::create();
        if (!stopped) return stopped.error();
        out.stopped_ = std::move(*stopped);
        out.epoll_ = unique_fd(::epoll_create1(EPOLL_CLOEXEC));
        // Never cleared, so that it ends the wait of every thread.
        if (!out.epoll_ || !out.control(EPOLL_CTL_ADD, out.stopped_.fd(), nullptr, EPOLLIN)) {
            const int failed = errno;
            return error{errc::system, failed, cat({"cannot wait for sockets: ", errno_text(failed)})};
        }
        return out;
    }
    bool add(int fd, void* who) noexcept {
        return control(EPOLL_CTL_ADD, fd, who, EPOLLIN | EPOLLONESHOT);
    }
    bool watch(int fd, void* who, awaited what) noexcept {
        return control(EPOLL_CTL_MOD, fd, who,
                       (what == awaited::to_write ? 0U : static_cast<unsigned>(EPOLLIN)) |
                           (what == awaited::to_read ? 0U : static_cast<unsigned>(EPOLLOUT)) |
                           static_cast<unsigned>(EPOLLONESHOT));
    }
    void remove(int fd) noexcept {
        control(EPOLL_CTL_DEL, fd, nullptr, 0);
    }
    void* wait() noexcept {
        for (;;) {
            epoll_event found{};
            const cancellable off(false);
            if (::epoll_wait(epoll_.get(), &found, 1, -1) == 1) return found.data.ptr;
        }
    }
    void stop() noexcept {
        stopped_.notify();
    }

  private:
    bool control(int how, int fd, void* who, std::uint32_t events) noexcept {
        epoll_event what{};
        what.events = events;
        what.data.ptr = who;
        return ::epoll_ctl(epoll_.get(), how, fd, &what) == 0;
    }

    wake stopped_;
    unique_fd epoll_;
#else
    event_queue(event_queue&& other) noexcept : changed_(std::move(other.changed_)) {}
    event_queue& operator=(event_queue&& other) noexcept {
        changed_ = std::move(other.changed_);
        return *this;
    }
    event_queue() = default;

    static result<event_queue> create() {
        event_queue out;
        result<wake> changed = wake::create();
        if (!changed) return changed.error();
        out.changed_ = std::move(*changed);
        return out;
    }
    bool add(int fd, void* who) noexcept {
        try {
            const lock_guard held(mutex_);
            entries_.push_back({fd, who, POLLIN});
        } catch (...) {
            return false;
        }
        changed_.notify();
        return true;
    }
    bool watch(int fd, void* who, awaited what) noexcept {
        {
            const lock_guard held(mutex_);
            entry* const found = find(fd);
            if (found == nullptr) return false;
            found->who = who;
            found->events = what == awaited::to_read    ? POLLIN
                            : what == awaited::to_write ? POLLOUT
                                                        : POLLIN | POLLOUT;
        }
        changed_.notify();
        return true;
    }
    void remove(int fd) noexcept {
        const lock_guard held(mutex_);
        entry* const found = find(fd);
        if (found == nullptr) return;
        *found = entries_.back();
        entries_.pop_back();
    }
    void* wait() noexcept {
        const lock_guard alone(leader_);
        while (!stopping_.load()) {
            {
                const lock_guard held(mutex_);
                try {
                    waiting_ = array<pollfd>(entries_.size() + 1);
                } catch (...) {  // out of memory: later
                    continue;
                }
                waiting_[0] = {changed_.fd(), POLLIN, 0};
                for (std::size_t i = 0; i < entries_.size(); ++i) {
                    const entry& each = entries_[i];
                    waiting_[i + 1] = {each.events == 0 ? -1 : each.fd, each.events, 0};
                }
            }
            const cancellable off(false);
            if (::poll(waiting_.data(), static_cast<nfds_t>(waiting_.size()), -1) <= 0) continue;
            if (waiting_[0].revents != 0) changed_.clear();
            const lock_guard held(mutex_);
            for (std::size_t i = 1; i < waiting_.size(); ++i) {
                entry* const found = waiting_[i].revents == 0 ? nullptr : find(waiting_[i].fd);
                if (found == nullptr || found->events == 0) continue;
                found->events = 0;
                return found->who;
            }
        }
        return nullptr;
    }
    void stop() noexcept {
        stopping_.store(true);
        changed_.notify();
    }

  private:
    struct entry {
        int fd = -1;
        void* who = nullptr;
        short events = 0;  // 0: told of
    };
    entry* find(int fd) noexcept {
        for (entry& each : entries_) {
            if (each.fd == fd) return &each;
        }
        return nullptr;
    }

    wake changed_;
    atomic<bool> stopping_{false};
    mutex leader_;  // one waits for all sockets at a time; the rest wait to be the next
    array<pollfd> waiting_;
    mutex mutex_;
    array<entry> entries_;
#endif
};

}  // namespace ojs::detail
