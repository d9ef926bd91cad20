// A graceful shutdown for any server, without OJS: signals, drain_barrier and shutdown_sequence.
//
//     build/http_server_drain [PORT]        responds "hello" to each request after 200 ms
//
// The first SIGTERM or Ctrl-C drains it for up to OJS_SERVER_SHUTDOWN_TIMEOUT, the second aborts that.
// A connection without a request does not delay it. A connection that gets no thread is answered 503.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <thread>

#include "ojs_server.hpp"

namespace {
int listen_on(unsigned port) {
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

void finish(int peer, std::string_view response) {
    send(peer, response.data(), response.size(), MSG_NOSIGNAL);
    close(peer);
}

// Allocates nothing: memory may be short. The ticket leaves the barrier once the response is sent.
void serve(int peer, int stop, ojs::drain_barrier::ticket) {
    sigset_t all;  // only main() takes signals: they would interrupt poll() here
    sigfillset(&all), pthread_sigmask(SIG_BLOCK, &all, nullptr);
    pollfd either[] = {{peer, POLLIN, 0}, {stop, POLLIN, 0}};
    poll(either, 2, 10000);
    if (either[1].revents != 0) poll(either, 1, 100);  // a client that has just connected may still send
    char request[8192];
    std::size_t size = 0;
    while (std::string_view(request, size).find("\r\n\r\n") == std::string_view::npos) {
        const bool arrived = poll(either, 1, size == 0 ? 0 : 10000) > 0;
        const ssize_t got = arrived ? recv(peer, request + size, sizeof request - size, 0) : 0;
        if (got <= 0) return finish(peer, "");  // also if it is too long
        size += static_cast<std::size_t>(got);
    }
    fcntl(peer, F_SETFL, 0);  // BSD inherits the listener's O_NONBLOCK
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    finish(peer, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n");
}

bool accept_all(int listener, int stop, ojs::drain_barrier& requests) {  // false: the queue has more
    for (int peer = 0, i = 0; i < 256; ++i) {  // no flood of clients keeps the signals waiting
        if ((peer = accept(listener, nullptr, nullptr)) < 0)
            return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
        try {
            std::thread(serve, peer, stop, requests.enter()).detach();
        } catch (...) {
            char request[8192];  // read, so that closing does not reset the response
            recv(peer, request, sizeof request, MSG_DONTWAIT);
            finish(peer, "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\r\n");
        }
    }
    return true;
}
}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    const auto timeout = ojs::server_shutdown_timeout();
    if (!signals || !timeout) return ojs::report_startup_error(!signals ? signals.error() : timeout.error());
    unsigned port = 0;
    char rest = 0;
    if (argc > 2 || (argc == 2 && (std::sscanf(argv[1], "%5u%c", &port, &rest) != 1 || port > 65535)))
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: http_server_drain [PORT]"});
    ojs::cancel_source stop;
    const auto stop_fd = stop.token().fd();
    const int listener = stop_fd ? listen_on(port) : -1;
    if (listener < 0) return std::perror("http_server_drain: cannot listen"), 1;
    ojs::drain_barrier requests;
    for (bool has_room = true; lifecycle.phase() < ojs::phase::draining;) {
        pollfd waiting[] = {{has_room ? listener : -1, POLLIN, 0}, {signals->fd(), POLLIN, 0}};
        poll(waiting, 2, has_room ? -1 : 100);
        if (waiting[1].revents != 0) signals->wait(ojs::steady_clock::now());
        has_room = accept_all(listener, *stop_fd, requests);
    }

    ojs::shutdown_sequence steps;
    steps.add("stop accepting", [&] {
        accept_all(listener, *stop_fd, requests);  // else queued connections would be reset
        close(listener);
        stop.cancel(ojs::cancel_reason::cancelled);
        requests.close();
    });
    steps.add("finish requests", [&](const ojs::step_context& step) -> ojs::result<void> {
        const auto end = step.deadline - std::chrono::milliseconds(10);
        std::uint64_t left = 1;
        while (left > 0 && lifecycle.phase() < ojs::phase::stopping && ojs::steady_clock::now() < end)
            left = requests.wait_until(std::min(end, ojs::deadline_after(std::chrono::milliseconds(50))));
        if (left == 0) return {};
        return ojs::error{ojs::errc::timed_out, 0, std::to_string(left) + " requests aborted"};
    });
    steps.add("close the storage", [] { std::fputs("storage closed\n", stderr); });
    ojs::sequence_options options;
    options.timeout = *timeout;
    options.progress = [](const ojs::step_result& step) {
        std::fprintf(stderr, "\"%s\": %s %s\n", step.name.c_str(), ojs::to_string(step.status), step.error.c_str());
    };
    bool all_done = true;
    for (const ojs::step_result& step : steps.run(options)) all_done &= step.status == ojs::step_status::done;
    _exit(all_done ? 0 : 1);  // abandoned steps may still use main()'s variables
}
