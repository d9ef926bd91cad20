// A single-threaded server with its own event loop, without OJS: signals::fd() is one more descriptor to poll.
//
//     build/event_loop_drain [PORT]        returns each line in upper case
//
// On SIGTERM or Ctrl-C it answers the lines that have arrived, and waits up to OJS_SERVER_SHUTDOWN_TIMEOUT for the rest of
// incomplete lines and for clients that do not read. Exit status 0, or 1 if it had to drop one. A second signal drops them.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "ojs_server.hpp"

namespace {
struct line_peer {
    int fd = -1;
    std::string line;    // what has arrived of it, at most 64 KiB
    std::string unsent;  // nothing is read meanwhile, so a client that does not read cannot fill the memory
    int unread = -1;     // bytes that had arrived when the drain began; -1 before
    // True: all is sent, and the client closes first, as a reset would destroy what it has not read.
    bool is_done() const { return unread == 0 && line.empty() && unsent.empty(); }
};

int listen_for_lines(int port) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    fcntl(listener, F_SETFD, FD_CLOEXEC);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener, 128) != 0) return -1;
    getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    std::fprintf(stderr, "listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
    return listener;
}

// Empties the queue. False: clients are left in it, without a descriptor for them.
bool accept_peers(int listener, std::vector<line_peer>& peers) {
    for (line_peer peer; (peer.fd = accept(listener, nullptr, nullptr)) >= 0;) peers.push_back(peer);
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
}

// Moves some bytes, and never blocks. False: the connection has ended.
bool serve(line_peer& peer) {
    char bytes[4096];
    const int size = peer.unread > 0 ? std::min(peer.unread, 4096) : 4096;
    const bool sends = !peer.unsent.empty();
    const ssize_t moved = sends ? send(peer.fd, peer.unsent.data(), peer.unsent.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
                                : recv(peer.fd, bytes, static_cast<std::size_t>(size), MSG_DONTWAIT);
    if (moved <= 0) return moved < 0 && (errno == EAGAIN || errno == EINTR);
    if (sends) return peer.unsent.erase(0, static_cast<std::size_t>(moved)), true;
    if (peer.is_done()) return true;
    const bool is_late = peer.unread == 0;  // only the rest of a line counts
    if (peer.unread > 0) peer.unread -= static_cast<int>(moved);
    peer.line.append(bytes, static_cast<std::size_t>(moved));
    peer.unsent = peer.line.substr(0, peer.line.rfind('\n') + 1);
    peer.line.erase(0, is_late && !peer.unsent.empty() ? peer.line.size() : peer.unsent.size());
    for (char& c : peer.unsent) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    return peer.line.size() <= 65536;
}
}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    const auto timeout = ojs::server_shutdown_timeout();
    if (!signals || !timeout) return ojs::report_startup_error(!signals ? signals.error() : timeout.error());
    const std::string port = argc > 1 ? argv[1] : "0";
    if (argc > 2 || port.empty() || port.size() > 5 || port.find_first_not_of("0123456789") != port.npos ||
        std::stoi(port) > 65535)
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: event_loop_drain [PORT]"});
    int listener = listen_for_lines(std::stoi(port));
    if (listener < 0) return std::perror("event_loop_drain: cannot listen"), 1;
    std::vector<line_peer> peers;
    ojs::time_point deadline = ojs::time_point::max();
    std::size_t cut = 0;
    for (bool has_room = true;;) {
        if (lifecycle.phase() >= ojs::phase::draining && listener >= 0) {
            accept_peers(listener, peers);  // else queued connections would be reset
            close(std::exchange(listener, -1));
            deadline = ojs::deadline_after(*timeout);
            for (line_peer& peer : peers) ioctl(peer.fd, FIONREAD, &peer.unread);
        }
        std::vector<pollfd> waiting = {{signals->fd(), POLLIN, 0}, {has_room ? listener : -1, POLLIN, 0}};
        cut = 0;
        for (const line_peer& peer : peers) {
            if (peer.is_done()) shutdown(peer.fd, SHUT_WR);
            cut += peer.is_done() ? 0U : 1U;
            waiting.push_back({peer.fd, static_cast<short>(peer.unsent.empty() ? POLLIN : POLLOUT), 0});
        }
        const ojs::time_point now = ojs::steady_clock::now();
        if (listener < 0 && cut == 0) deadline = std::min(deadline, now + std::chrono::seconds(1));
        if (lifecycle.phase() >= ojs::phase::stopping || now >= deadline) break;
        if (listener < 0 && peers.empty()) break;
        poll(waiting.data(), waiting.size(), 100);  // 100 ms: for the deadline, and for a free descriptor
        if (waiting[0].revents != 0) signals->wait(now);
        for (std::size_t i = peers.size(); i-- > 0;) {
            if (waiting[i + 2].revents == 0 || serve(peers[i])) continue;
            close(peers[i].fd);
            peers.erase(peers.begin() + static_cast<std::ptrdiff_t>(i));
        }
        has_room = waiting[1].revents == 0 || accept_peers(listener, peers);
    }
    if (cut > 0) std::fprintf(stderr, "cut %zu lines\n", cut);
    _exit(cut > 0 ? 1 : 0);  // returning would restore the signals, and the next one would kill the process
}
