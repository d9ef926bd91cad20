// A single-threaded server with its own event loop, without OJS: the loop also polls signals::fd().
//
//     build/event_loop_drain [PORT]        returns each line in upper case
//
// At SIGTERM or Ctrl-C it closes its listening socket and idle connections, waits at most OJS_SERVER_SHUTDOWN_TIMEOUT for
// lines that have begun, and exits with 0, or with 1 if it cut one. A second signal cuts them at once.
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "ojs_shutdown.hpp"

namespace {

struct line_peer {
    int fd;
    std::string line;  // received so far
};

int listen_for_lines(const char* port) {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof where;
    if (bind(listener, reinterpret_cast<sockaddr*>(&where), size) != 0 || listen(listener, 128) != 0)
        return -1;
    getsockname(listener, reinterpret_cast<sockaddr*>(&where), &size);
    std::fprintf(stderr, "listening on 127.0.0.1:%d\n", ntohs(where.sin_port));
    return listener;
}

void accept_peers(int listener, std::vector<line_peer>& peers) {
    for (int fd = 0; (fd = accept(listener, nullptr, nullptr)) >= 0;) peers.push_back({fd, ""});
}

// False: it has disconnected.
bool read_lines(line_peer& from) {
    char bytes[4096];
    const ssize_t got = recv(from.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    from.line.append(bytes, static_cast<std::size_t>(got));
    std::string answer = from.line.substr(0, from.line.rfind('\n') + 1);
    from.line.erase(0, answer.size());
    for (char& each : answer) each = each >= 'a' && each <= 'z' ? static_cast<char>(each - 'a' + 'A') : each;
    return answer.empty() || send(from.fd, answer.data(), answer.size(), MSG_NOSIGNAL) > 0;
}

template <class Predicate>
void close_those(std::vector<line_peer>& peers, Predicate unwanted) {
    const auto gone = std::stable_partition(peers.begin(), peers.end(),
                                            [&](const line_peer& each) { return !unwanted(each); });
    for (auto each = gone; each != peers.end(); ++each) {
        if (each->fd >= 0) close(each->fd);
    }
    peers.erase(gone, peers.end());
}

}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    const auto timeout = ojs::server_shutdown_timeout();
    if (!signals || !timeout) return ojs::report_usage(!signals ? signals.error() : timeout.error());
    int listener = listen_for_lines(argc > 1 ? argv[1] : "0");
    if (listener < 0) return std::perror("event_loop_drain: cannot listen"), 1;

    std::vector<line_peer> peers;
    ojs::time_point deadline = ojs::time_point::max();
    while (lifecycle.phase() < ojs::phase::stopping && ojs::steady_clock::now() < deadline) {
        if (lifecycle.phase() >= ojs::phase::draining) {
            if (listener >= 0) {
                accept_peers(listener, peers);  // closing would reset queued clients
                close(std::exchange(listener, -1));
                deadline = ojs::deadline_after(*timeout);
                for (line_peer& each : peers) read_lines(each);  // lines received by then are answered
            }
            close_those(peers, [](const line_peer& each) { return each.line.empty(); });
            if (peers.empty()) _exit(0);  // as below
        }
        std::vector<pollfd> waiting = {{signals->fd(), POLLIN, 0}, {listener, POLLIN, 0}};
        for (const line_peer& each : peers) waiting.push_back({each.fd, POLLIN, 0});
        constexpr int look_at_deadline_ms = 100;
        if (poll(waiting.data(), waiting.size(), look_at_deadline_ms) <= 0) continue;
        if (waiting[0].revents != 0) signals->wait(ojs::steady_clock::now());
        for (std::size_t i = 0; i < peers.size(); ++i) {
            if (waiting[i + 2].revents != 0 && !read_lines(peers[i])) close(std::exchange(peers[i].fd, -1));
        }
        close_those(peers, [](const line_peer& each) { return each.fd < 0; });
        if (waiting[1].revents != 0) accept_peers(listener, peers);
    }
    std::fprintf(stderr, "cut %zu lines\n", peers.size());
    _exit(
        1);  // the end of main() would uninstall the handlers: a signal could then end the process without a status
}
