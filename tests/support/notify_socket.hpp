// The service manager's end of the notify protocol: a datagram socket under a path, or an abstract name that begins with @.
#pragma once
#include <sys/socket.h>
#include <sys/un.h>

#include "test.hpp"

namespace test {
class notify_socket {
  public:
    explicit notify_socket(std::string name)
        : name_(std::move(name)), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
        sockaddr_un at{};
        at.sun_family = AF_UNIX;
        std::memcpy(at.sun_path, name_.data(), name_.size());
        const bool is_abstract = name_.front() == '@';
        if (is_abstract) at.sun_path[0] = '\0';
        const std::size_t length = offsetof(sockaddr_un, sun_path) + name_.size() + (is_abstract ? 0U : 1U);
        REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&at), static_cast<socklen_t>(length)) == 0);
    }
    notify_socket(const notify_socket&) = delete;
    notify_socket& operator=(const notify_socket&) = delete;
    ~notify_socket() {
        ::close(fd_);
        ::unlink(name_.c_str());
    }

    const std::string& name() const { return name_; }
    // The next datagram; "(nothing)" where none is there. A datagram is in the queue once send() has returned.
    std::string receive() const {
        char buffer[8192];
        const ssize_t got = ::recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT);
        return got < 0 ? "(nothing)" : std::string(buffer, static_cast<std::size_t>(got));
    }

  private:
    const std::string name_;
    const int fd_;
};
}  // namespace test
