// unique_fd: a file descriptor with an owner.
#pragma once

#include <unistd.h>

#include <utility>

#include "exchange.hpp"
#include "sync.hpp"

namespace ojs::detail {

class unique_fd {
  public:
    unique_fd() = default;
    explicit unique_fd(int fd) noexcept : fd_(fd) {}
    unique_fd(unique_fd&& other) noexcept : fd_(detail::exchange(other.fd_, -1)) {}
    unique_fd& operator=(unique_fd&& other) noexcept {
        detail::swap(fd_, other.fd_);
        return *this;
    }
    ~unique_fd() { reset(); }

    int get() const noexcept { return fd_; }
    explicit operator bool() const noexcept { return fd_ >= 0; }
    int release() noexcept { return detail::exchange(fd_, -1); }
    void reset() noexcept {
        if (fd_ < 0) return;
        const cancellable off(false);
        // Not repeated on EINTR: on Linux the descriptor is gone either way.
        ::close(detail::exchange(fd_, -1));
    }

  private:
    int fd_ = -1;
};

}  // namespace ojs::detail
