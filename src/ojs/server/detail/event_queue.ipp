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

// A socket that was told of is not looked at until it is watched again. Every member is thread-safe, once open() has
// returned. `who` is what wait() returns. `events` are those of poll(). add() and watch() return false where the socket
// cannot be watched (out of memory, or of places). remove() comes before the socket is closed. wait() returns null after
// stop().
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
            return error{errc::system, failed, cat({"cannot wait for sockets: ", errno_text(failed)})};
        }
#endif
        return {};
    }
    void stop() noexcept {
        stopping_.store(true);
        changed_.notify();
    }
#if OJS_SHUTDOWN_USE_EPOLL
    bool add(int fd, void* who) noexcept {
        return control(EPOLL_CTL_ADD, fd, who, EPOLLIN | EPOLLONESHOT);
    }
    bool watch(int fd, void* who, short events) noexcept {
        static_assert(static_cast<int>(EPOLLIN) == POLLIN && static_cast<int>(EPOLLOUT) == POLLOUT,
                      "the same bits");
        return control(EPOLL_CTL_MOD, fd, who, static_cast<unsigned>(events) | EPOLLONESHOT);
    }
    void remove(int fd) noexcept {
        control(EPOLL_CTL_DEL, fd, nullptr, 0);
    }
    void* wait() noexcept {
        const cancellable off(false);
        epoll_event found{};
        while (::epoll_wait(epoll_.get(), &found, 1, -1) != 1) continue;
        return found.data.ptr;
    }

  private:
    bool control(int how, int fd, void* who, std::uint32_t events) noexcept {
        epoll_event what{};
        what.events = events;
        what.data.ptr = who;
        return ::epoll_ctl(epoll_.get(), how, fd, &what) == 0;
    }

    unique_fd epoll_;
#else
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
    bool watch(int fd, void* who, short events) noexcept {
        lock_guard held(mutex_);
        entry* const found = find(fd);
        if (found == nullptr) return false;
        *found = {fd, who, events};
        held.unlock();
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
            if (!list_sockets()) continue;  // out of memory: later
            const cancellable off(false);
            if (::poll(waiting_.data(), static_cast<nfds_t>(waiting_.size()), -1) <= 0) continue;
            if (waiting_[0].revents != 0) changed_.clear();
            const lock_guard held(mutex_);
            for (std::size_t i = 1; i < waiting_.size(); ++i) {
                entry* const found = waiting_[i].revents == 0 ? nullptr : find(waiting_[i].fd);
                if (found != nullptr && exchange(found->events, short{0}) != 0) return found->who;
            }
        }
        return nullptr;
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
    bool list_sockets() noexcept {
        const lock_guard held(mutex_);
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

    mutex leader_;  // one waits for all sockets at a time; the rest wait to be the next
    array<pollfd> waiting_;
    mutex mutex_;
    array<entry> entries_;
#endif
    wake changed_;  // with epoll never cleared, so that it ends the wait of every thread
    atomic<bool> stopping_{false};
};

}  // namespace ojs::detail
