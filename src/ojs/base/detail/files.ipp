// files: reads files of others without blocking, and writes texts.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "clock.ipp"
#include "sync.hpp"

namespace ojs::detail {

enum class file_status { read, missing, not_regular, unreadable };

struct small_file {
    file_status status = file_status::unreadable;
    int sys_errno = 0;          // why it is missing or unreadable
    bool is_truncated = false;  // the file is longer than the limit
    struct stat info {};        // if it was read
    std::string text;           // at most `limit` bytes
};

// Reads regular files only: no FIFO, folder, device or socket. Thread-safe.
inline small_file read_small_file(const std::string& path, std::size_t limit) {
    // O_NONBLOCK: a FIFO without a writer opens at once.
    const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    small_file out;
    if (!file) {
        out.sys_errno = errno;
        if (out.sys_errno == ENOENT || out.sys_errno == ENOTDIR) out.status = file_status::missing;
        if (out.sys_errno == ENXIO) out.status = file_status::not_regular;  // a socket
        return out;
    }
    if (::fstat(file.get(), &out.info) != 0 || !S_ISREG(out.info.st_mode)) {
        out.status = file_status::not_regular;
        return out;
    }
    char buffer[4096];
    for (ssize_t count = 1; count != 0 && out.text.size() <= limit;) {
        count = ::read(file.get(), buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) out.sys_errno = errno;
        if (count < 0) return out;
        out.text.append(buffer, static_cast<std::size_t>(count));
    }
    out.status = file_status::read;
    out.is_truncated = out.text.size() > limit;
    if (out.is_truncated) out.text.resize(limit);
    return out;
}

// Blocks the signals that write(2) raises in its thread, for a scope, and consumes those raised: SIGPIPE, SIGXFSZ (above
// RLIMIT_FSIZE), SIGTTOU (a background process of a terminal). The write fails or succeeds instead.
class write_signals_blocked {
  public:
    write_signals_blocked() noexcept {
        sigset_t raised;
        sigemptyset(&raised);
        for (const int number : numbers) sigaddset(&raised, number);
        sigpending(&pending_before_);
        pthread_sigmask(SIG_BLOCK, &raised, &previous_);
    }
    write_signals_blocked(const write_signals_blocked&) = delete;
    write_signals_blocked& operator=(const write_signals_blocked&) = delete;
    ~write_signals_blocked() {
        sigset_t pending;
        sigpending(&pending);
        for (int number : numbers) {
            sigset_t one;
            sigemptyset(&one);
            sigaddset(&one, number);
            if (sigismember(&pending, number) == 1 && sigismember(&pending_before_, number) == 0)
                sigwait(&one, &number);
        }
        pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
    }

  private:
    static constexpr int numbers[] = {SIGPIPE, SIGXFSZ, SIGTTOU};

    sigset_t pending_before_;
    sigset_t previous_;
};

// With write_signals_blocked. Writes as much at a time as a pipe that is writable takes without blocking. False: the rest
// is lost.
inline bool write_text(int fd, std::string_view text, time_point deadline) noexcept {
    while (!text.empty()) {
        pollfd ready{fd, POLLOUT, 0};
        const int timeout = poll_timeout(deadline);
        if (::poll(&ready, 1, timeout) == 0) return false;
        const ssize_t written = ::write(fd, text.data(), text.size() < PIPE_BUF ? text.size() : PIPE_BUF);
        if (written < 0 && (errno == EINTR || (errno == EAGAIN && timeout != 0))) continue;
        if (written <= 0) return false;
        text.remove_prefix(static_cast<std::size_t>(written));
    }
    return true;
}

}  // namespace ojs::detail
