// A single-threaded server with its own event loop, without OJS: signals::fd() is one more descriptor to poll.
//
//     build/event_loop_drain [PORT]        returns each line in upper case
//
// On SIGTERM or Ctrl-C it closes its listening socket and idle connections, and waits up to OJS_SERVER_SHUTDOWN_TIMEOUT for
// incomplete lines. Exit status 0, or 1 if it had to drop one. A second signal drops them at once.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
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
    std::string line;  // what has arrived of it
};

int listen_for_lines(const char* port) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    fcntl(listener, F_SETFD, FD_CLOEXEC);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(std::atoi(port)));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 128) != 0)
        return -1;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    std::fprintf(stderr, "listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    return listener;
}

void accept_peers(int listener, std::vector<line_peer>& peers) {
    for (int fd = 0; (fd = accept(listener, nullptr, nullptr)) >= 0;) peers.push_back({fd, ""});
}

// False: the peer has closed.
bool answer_lines(line_peer& peer) {
    char bytes[4096];
    const ssize_t got = recv(peer.fd, bytes, sizeof bytes, MSG_DONTWAIT);
    if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
    peer.line.append(bytes, static_cast<std::size_t>(got));
    std::string response = peer.line.substr(0, peer.line.rfind('\n') + 1);
    peer.line.erase(0, response.size());
    for (char& c : response) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return response.empty() || send(peer.fd, response.data(), response.size(), MSG_NOSIGNAL) > 0;
}

template <class Predicate>
void close_if(std::vector<line_peer>& peers, Predicate is_done) {
    const auto closed = std::stable_partition(peers.begin(), peers.end(),
                                              [&](const line_peer& peer) { return !is_done(peer); });
    for (auto peer = closed; peer != peers.end(); ++peer) {
        if (peer->fd >= 0) close(peer->fd);
    }
    peers.erase(closed, peers.end());
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
                accept_peers(listener, peers);  // else queued connections would be reset
                close(std::exchange(listener, -1));
                deadline = ojs::deadline_after(*timeout);
                for (line_peer& peer : peers) answer_lines(peer);  // lines that arrived before are answered
            }
            close_if(peers, [](const line_peer& peer) { return peer.line.empty(); });
            if (peers.empty()) _exit(0);  // see below
        }
        std::vector<pollfd> waiting = {{signals->fd(), POLLIN, 0}, {listener, POLLIN, 0}};
        for (const line_peer& peer : peers) waiting.push_back({peer.fd, POLLIN, 0});
        constexpr int check_deadline_ms = 100;
        if (poll(waiting.data(), waiting.size(), check_deadline_ms) <= 0) continue;
        if (waiting[0].revents != 0) signals->wait(ojs::steady_clock::now());
        for (std::size_t i = 0; i < peers.size(); ++i) {
            if (waiting[i + 2].revents != 0 && !answer_lines(peers[i])) close(std::exchange(peers[i].fd, -1));
        }
        close_if(peers, [](const line_peer& peer) { return peer.fd < 0; });
        if (waiting[1].revents != 0) accept_peers(listener, peers);
    }
    std::fprintf(stderr, "cut %zu lines\n", peers.size());
    _exit(1);  // returning would restore the signals, and the next one would kill the process
}
