// Raw sockets for both ends of a conversation that no decent HTTP library would have.
#pragma once

#include <netinet/tcp.h>
#include <sys/ioctl.h>

#include "peer_server.hpp"
#include "test.hpp"

namespace peer {
inline ojs::time_point soon() { return ojs::steady_clock::now() + 20s; }

inline bool readable(int fd, int timeout_ms = 20000) {
    pollfd waiting{fd, POLLIN, 0};
    return ::poll(&waiting, 1, timeout_ms) > 0;
}

inline bool send_text(int fd, const std::string& text) {
    return ::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
}

// Appends what is there; false at the end of the stream.
inline bool read_some(int fd, std::string& into) {
    char buffer[4096];
    if (!readable(fd)) return false;
    const ssize_t got = ::recv(fd, buffer, sizeof buffer, 0);
    if (got <= 0) return false;
    into.append(buffer, static_cast<std::size_t>(got));
    return true;
}

inline std::string read_to_end(int fd) {
    std::string out;
    while (read_some(fd, out)) {
    }
    return out;
}

// One message with a Content-Length or without a body; empty at the end of the stream.
inline std::string read_message(int fd) {
    std::string out;
    for (;;) {
        const std::size_t head_end = out.find("\r\n\r\n");
        if (head_end != std::string::npos) {
            const std::size_t at = out.find("Content-Length: ");
            const std::size_t body = at < head_end ? std::stoul(out.substr(at + 16)) : 0;
            if (out.size() >= head_end + 4 + body) return out;
        }
        if (!read_some(fd, out)) return std::string();
    }
}

// A port of loopback that no other process is given as long as it lives. Nobody listens there, unless a test with
// SO_REUSEADDR does.
class reserved_port {
  public:
    reserved_port() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        const int yes = 1;
        ::setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
        sockaddr_in address = loopback(0);
        socklen_t size = sizeof address;
        REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0);
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
        number_ = ntohs(address.sin_port);
    }
    reserved_port(const reserved_port&) = delete;
    reserved_port& operator=(const reserved_port&) = delete;
    ~reserved_port() { ::close(fd_); }

    std::uint16_t number() const { return number_; }
    std::string text() const { return std::to_string(number_); }

  private:
    int fd_;
    std::uint16_t number_ = 0;
};

// Waits until the peer's side has what was sent, or has heard of the end: on a busy machine that is not at once.
inline void await_arrival([[maybe_unused]] int fd) {
#ifdef __linux__
    for (int unacknowledged = 1; unacknowledged > 0; std::this_thread::yield())
        REQUIRE(::ioctl(fd, TIOCOUTQ, &unacknowledged) == 0);
#endif
}

// Makes close() send a reset instead of an orderly end.
inline void reset(int fd) {
    const linger now{1, 0};
    ::setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

inline std::string ok(const std::string& body = "ok", const std::string& headers = "") {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + headers + "\r\n" + body;
}

class client {
  public:
    explicit client(std::uint16_t port) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        const sockaddr_in address = loopback(port);
        REQUIRE(::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    }
    client(const client&) = delete;
    client& operator=(const client&) = delete;
    ~client() { ::close(fd); }

    void send(const std::string& text) { CHECK(send_text(fd, text)); }
    std::string answer() { return read_message(fd); }
    std::string rest() { return read_to_end(fd); }
    bool closed() const {
        std::string more;
        return readable(fd) && !read_some(fd, more);
    }

    const int fd;
};

inline ojs::http_client make_client(const std::string& url, ojs::http_client_options options = {}) {
    ojs::result<ojs::http_client> made = ojs::http_client::create(url, std::move(options));
    REQUIRE(made);
    return std::move(*made);
}

inline ojs::http_request get(const std::string& target = "/") { return {"GET", target, {}, ""}; }

inline ojs::http_request post(const std::string& target, const std::string& body) { return {"POST", target, {}, body}; }

inline ojs::http_call call(ojs::time_point deadline = soon(), bool is_repeatable = false) {
    return {deadline, {}, is_repeatable};
}

// Gives it a deadline of 100 ms only when should_send is called for the `nth` time: before a new connection, or before the
// request is written.
inline void expire_after_should_send(ojs::http_call& call, int nth) {
    call.should_send = [&call, nth]() mutable {
        if (--nth == 0) call.deadline = ojs::steady_clock::now() + 100ms;
        return true;
    };
}
}  // namespace peer
