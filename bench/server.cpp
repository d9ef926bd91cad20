// A draining_server, a bare loop on epoll, and a client that keeps their connections busy.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <string_view>

#include "ojs_server.hpp"
#include "roles.hpp"

namespace bench {
namespace {
constexpr std::string_view request =
    "GET /bench HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";
constexpr std::string_view response = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: keep-alive\r\n\r\nhello\n";

sockaddr_in loopback(int port) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(static_cast<std::uint16_t>(port));
    out.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return out;
}

void send_all(int fd, std::string_view text) {
    must(::send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()), "send");
}

void watch(int epoll, int fd) {
    epoll_event what{};
    what.events = EPOLLIN;
    what.data.fd = fd;
    must(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &what) == 0, "epoll_ctl");
}

// Calls `on_readable(fd)` for each socket that can be read, while `more()`.
template <class OnReadable, class More>
void loop(int epoll, OnReadable on_readable, More more) {
    epoll_event found[64];
    while (more()) {
        const int count = ::epoll_wait(epoll, found, 64, -1);
        for (int i = 0; i < count; ++i) on_readable(found[i].data.fd);
    }
}

// Until it is killed.
int draining_server(const arguments&) {
    const auto hello = [](const ojs::http_request&) { return ojs::http_response{200, {}, "hello\n"}; };
    const auto server = ojs::draining_server::start("127.0.0.1:0", hello);
    must(server.has_value(), "draining_server");
    print("listening on " + server->address());
    for (;;) ::pause();
}

// One thread that reads and writes, and parses nothing.
int epoll_server(const arguments&) {
    sockaddr_in at = loopback(0);
    socklen_t size = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(::bind(listener, address, size) == 0 && ::listen(listener, 512) == 0 &&
             ::getsockname(listener, address, &size) == 0,
         "listen");
    print("listening on 127.0.0.1:" + std::to_string(ntohs(at.sin_port)));
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    watch(epoll, listener);
    const auto serve = [&](int fd) {
        if (fd == listener) return watch(epoll, ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        char bytes[16 * 1024];
        const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
        if (got <= 0)
            ::close(fd);
        else if (std::string_view(bytes, static_cast<std::size_t>(got)).find("\r\n\r\n") != std::string_view::npos)
            send_all(fd, response);
    };
    loop(epoll, serve, [] { return true; });
    return 0;
}

// Each connection sends its next request with the response to the last, for a second. Arguments: the port, and how many
// connections.
int load_client(const arguments& given) {
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    const double began = monotonic_ns();
    for (int i = std::stoi(given.at(1)); i > 0; --i) {
        const int fd = connected_socket(std::stoi(given.at(0)));
        watch(epoll, fd);
        send_all(fd, request);
    }
    double responses = 0;
    const auto count = [&](int fd) {
        char bytes[4096];
        const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
        must(got > 6 && std::string_view(bytes + got - 6, 6) == "hello\n", "recv");
        ++responses;
        send_all(fd, request);
    };
    loop(epoll, count, [&] { return monotonic_ns() < began + 1e9; });
    print("rate " + std::to_string(responses * 1e9 / (monotonic_ns() - began)));
    return 0;
}
}  // namespace

int connected_socket(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in to = loopback(port);
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    must(::connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0, "connect");
    return fd;
}

const std::vector<role> server_roles = {
    {"draining_server", draining_server}, {"epoll_server", epoll_server}, {"load_client", load_client}};
}  // namespace bench
