// server_rate: a draining_server beside a bare loop on epoll, under a client that keeps its connections busy.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <thread>

#include "bench.hpp"
#include "ojs_server.hpp"

namespace bench {
namespace {

constexpr std::string_view request =
    "GET /bench HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n";
constexpr std::string_view answer =
    "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: keep-alive\r\n\r\nhello\n";

void print_line(std::string line) {
    line += '\n';
    if (::write(STDOUT_FILENO, line.data(), line.size()) < 0) ::_exit(99);
}

int new_socket(int port, sockaddr_in& to) {
    to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

// Tells each socket that can be read, for as long as `more()`.
template <class Readable, class More>
void loop(int epoll, Readable readable, More more) {
    epoll_event found[64];
    while (more()) {
        const int count = ::epoll_wait(epoll, found, 64, -1);
        for (int i = 0; i < count; ++i) readable(found[i].data.fd);
    }
}

void watch(int epoll, int fd) {
    epoll_event what{};
    what.events = EPOLLIN;
    what.data.fd = fd;
    if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &what) != 0) throw failure("cannot watch a socket");
}

}  // namespace

// Until it is killed.
int draining_server_role(const std::vector<std::string>&) {
    const auto hello = [](const ojs::http_request&) { return ojs::http_response{200, {}, "hello\n", false}; };
    const auto server = ojs::draining_server::start("127.0.0.1:0", hello);
    if (!server) return 1;
    print_line("listening on " + server->address());
    for (;;) ::pause();
}

int epoll_server_role(const std::vector<std::string>&) {
    sockaddr_in at{};
    const int listener = new_socket(0, at);
    socklen_t size = sizeof at;
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&at), size) != 0 || ::listen(listener, 512) != 0 ||
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&at), &size) != 0)
        throw failure("cannot listen");
    print_line("listening on 127.0.0.1:" + std::to_string(ntohs(at.sin_port)));
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    watch(epoll, listener);
    const auto serve = [&](int fd) {
        if (fd == listener)
            return watch(epoll, ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        char bytes[16 * 1024];
        const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
        if (got <= 0) {
            ::close(fd);
        } else if (std::string_view(bytes, static_cast<std::size_t>(got)).find("\r\n\r\n") !=
                   std::string_view::npos) {
            static_cast<void>(::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL));
        }
    };
    loop(epoll, serve, [] { return true; });
    return 0;
}

// Arguments: the port, how many connections, how many milliseconds. Each sends its next request with the answer to the last.
int load_client_role(const std::vector<std::string>& arguments) {
    const int epoll = ::epoll_create1(EPOLL_CLOEXEC);
    std::vector<int> connections;
    for (int i = std::stoi(arguments.at(1)); i > 0; --i) {
        sockaddr_in to{};
        connections.push_back(new_socket(std::stoi(arguments.at(0)), to));
        if (::connect(connections.back(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
            throw failure("cannot connect");
        watch(epoll, connections.back());
    }
    const auto ask = [](int fd) {
        if (::send(fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
            throw failure("cannot send");
    };
    std::int64_t answered = 0;
    const auto count = [&](int fd) {
        char bytes[4096];
        const ssize_t got = ::recv(fd, bytes, sizeof bytes, 0);
        if (got < 7 || std::string_view(bytes, static_cast<std::size_t>(got))
                               .substr(static_cast<std::size_t>(got) - 6) != "hello\n")
            throw failure("no whole answer");
        ++answered;
        ask(fd);
    };
    const std::int64_t began = monotonic_ns();
    const std::int64_t end = began + std::stoll(arguments.at(2)) * 1000000;
    for (const int each : connections) ask(each);
    loop(epoll, count, [&] { return monotonic_ns() < end; });
    print_line("rate " + std::to_string(answered * 1000000000 / (monotonic_ns() - began)));
    return 0;
}

namespace {

double rate_of(const std::string& port, int connections) {
    child client(self_as("load_client", {port, std::to_string(connections), "1000"}));
    return std::stod(client.await_line("rate "));
}

}  // namespace

void server_rate(table& out) {
    constexpr int rounds = 9;
    child ours(self_as("draining_server"));
    child bare(self_as("epoll_server"));
    const std::string our_port = ours.await_line("listening on 127.0.0.1:");
    const std::string bare_port = bare.await_line("listening on 127.0.0.1:");
    for (const int connections : {4, 64}) {
        const paired rates = interleave(
            rounds, [&] { return rate_of(our_port, connections); },
            [&] { return rate_of(bare_port, connections); });
        out.add_ratio("draining_server, requests a second on " + std::to_string(connections) + " connections",
                      "/s", rates, at_least(0.7));
    }
}

}  // namespace bench
