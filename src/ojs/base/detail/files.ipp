// files: reads files of others without blocking, and writes texts.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <string>
#include <string_view>

#include "clock.ipp"
#include "sync.ipp"
#include "text.hpp"

namespace ojs::detail {
struct small_file {
    struct stat info {};
    std::string text;  // longer than the limit: the file has more
};

// Reads regular files only: no FIFO, folder, device or socket (errc::invalid_argument). Thread-safe.
inline result<small_file> read_small_file(const std::string& path, std::size_t limit) {
    // O_NONBLOCK: a FIFO without a writer opens at once.
    const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file && errno != ENXIO) return system_error("cannot be read", errno);  // ENXIO: a socket
    small_file out;
    if (!file || ::fstat(file.get(), &out.info) != 0 || !S_ISREG(out.info.st_mode))
        return invalid("is not a regular file");
    char buffer[4096];
    for (ssize_t count = 1; count != 0 && out.text.size() <= limit;) {
        count = ::read(file.get(), buffer, sizeof buffer);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return system_error("cannot be read", errno);
        out.text.append(buffer, static_cast<std::size_t>(count));
    }
    return out;
}
// Named from the root, so that a later chdir() changes nothing.
inline std::string absolute_path(const std::string& path) {
    char folder[PATH_MAX];
    const bool is_relative = !path.empty() && path[0] != '/' && ::getcwd(folder, sizeof folder) != nullptr;
    return is_relative ? cat({folder, "/", path}) : path;
}
inline bool is_missing(const error& of) noexcept { return of.sys_errno == ENOENT || of.sys_errno == ENOTDIR; }

// Blocks, and consumes, the signals that write(2) raises in its thread.
class write_signals_blocked : non_copyable {
  public:
    write_signals_blocked() noexcept {
        sigset_t pending;
        sigpending(&pending);
        sigemptyset(&raised_);
        for (const int number : numbers)
            if (sigismember(&pending, number) == 0) sigaddset(&raised_, number);
        pthread_sigmask(SIG_BLOCK, &raised_, &previous_);
    }
    ~write_signals_blocked() {
        sigset_t pending;
        sigpending(&pending);
        for (int number : numbers)
            if (sigismember(&pending, number) == 1 && sigismember(&raised_, number) == 1) sigwait(&raised_, &number);
        pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
    }

  private:
    static constexpr int numbers[] = {SIGPIPE, SIGXFSZ, SIGTTOU};

    sigset_t raised_;  // those of them that were not pending before
    sigset_t previous_;
};

// With write_signals_blocked. Writes as much at a time as a writable pipe takes. False: the rest is lost.
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
