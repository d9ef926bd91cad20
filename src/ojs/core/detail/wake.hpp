// wake: a descriptor made readable from any thread or signal handler.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/sync.ipp"
#include "../../base/detail/text.hpp"
#include "../../base/error.hpp"

namespace ojs::detail {
// A pipe, non-blocking and close-on-exec.
class wake {
  public:
    static result<wake> create() {
        int ends[2] = {-1, -1};
        if (::pipe(ends) != 0) return system_error("cannot create a wake-up descriptor", errno);
        for (const int end : ends) {
            ::fcntl(end, F_SETFD, FD_CLOEXEC);
            ::fcntl(end, F_SETFL, ::fcntl(end, F_GETFL) | O_NONBLOCK);
        }
        wake out;
        out.reader_ = unique_fd(ends[0]);
        out.writer_ = unique_fd(ends[1]);
        return out;
    }

    int fd() const noexcept { return reader_.get(); }         // to poll for reading
    int notify_fd() const noexcept { return writer_.get(); }  // for notify(int)
    void notify() const noexcept { notify(notify_fd()); }
    // Thread-safe, async-signal-safe, keeps errno; as the next.
    static void notify(int notify_fd) noexcept {
        const int saved = errno;
        write_word(notify_fd, 1);  // EAGAIN: it is readable already
        errno = saved;
    }
    // As a queue of 8-byte words: if full, drops the oldest.
    void put(std::uint64_t word) const noexcept {
        const int saved = errno;
        char oldest[512];  // space is freed by the page
        while (!write_word(notify_fd(), word) && errno == EAGAIN)
            static_cast<void>(!::read(fd(), oldest, sizeof oldest));
        errno = saved;
    }
    // False: empty.
    bool take(std::uint64_t& word) const noexcept {
        return ::read(fd(), &word, sizeof word) == static_cast<ssize_t>(sizeof word);
    }

    void clear() const noexcept {
        char bytes[512];
        while (::read(fd(), bytes, sizeof bytes) == static_cast<ssize_t>(sizeof bytes)) continue;
    }
    // True: notified; false: the deadline.
    bool await(time_point deadline) const noexcept {
        for (;;) {
            pollfd readable{fd(), POLLIN, 0};
            const int ready = ::poll(&readable, 1, poll_timeout(deadline));
            if (ready > 0) return true;
            if (ready == 0 && steady_clock::now() >= deadline) return false;
            if (ready < 0 && errno != EINTR) return false;
        }
    }

  private:
    static bool write_word(int fd, std::uint64_t word) noexcept {
        while (::write(fd, &word, sizeof word) < 0) {
            if (errno != EINTR) return false;
        }
        return true;
    }

    unique_fd reader_;
    unique_fd writer_;
};
}  // namespace ojs::detail
