// A graceful shutdown for any server, without OJS: signals, drain_barrier and shutdown_sequence.
//
//     build/http_server_drain [PORT]        responds "hello" to each request after 200 ms
//
// The first SIGTERM or Ctrl-C drains it for up to OJS_SERVER_SHUTDOWN_TIMEOUT, the second aborts that.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "ojs_shutdown.hpp"

namespace {

int listen_on(const char* port) {
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

// The ticket leaves the barrier once the response is sent.
void serve(int peer, ojs::drain_barrier::ticket) {
    char request[4096];
    fcntl(peer, F_SETFL, 0);  // BSD inherits the listener's O_NONBLOCK
    if (recv(peer, request, sizeof request, 0) > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        const std::string response =
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n";
        send(peer, response.data(), response.size(), MSG_NOSIGNAL);
    }
    close(peer);
}

void accept_all(int listener, ojs::drain_barrier& requests) {
    for (int peer = 0; (peer = accept(listener, nullptr, nullptr)) >= 0;)
        std::thread(serve, peer, requests.enter()).detach();
}

int report(const ojs::error& error, int status) {
    std::fprintf(stderr, "http_server_drain: %s\n", error.text.c_str());
    return status;
}

}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    if (!signals) return report(signals.error(), 1);
    const auto timeout = ojs::server_shutdown_timeout();
    if (!timeout) return report(timeout.error(), 64);
    const int listener = listen_on(argc > 1 ? argv[1] : "0");
    if (listener < 0) return std::perror("http_server_drain: cannot listen"), 1;

    ojs::drain_barrier requests;
    pollfd waiting[] = {{listener, POLLIN, 0}, {signals->fd(), POLLIN, 0}};
    while (lifecycle.phase() < ojs::phase::draining) {
        accept_all(listener, requests);
        if (poll(waiting, 2, -1) > 0 && waiting[1].revents != 0) signals->wait(ojs::steady_clock::now());
    }

    ojs::shutdown_sequence steps;
    steps.add("stop accepting", [&] {
        accept_all(listener, requests);  // else queued connections would be reset
        close(listener);
        requests.close();
    });
    steps.add("finish requests", [&](const ojs::step_context& step) -> ojs::result<void> {
        const auto left = requests.wait_until(step.deadline - std::chrono::milliseconds(10));
        if (left == 0) return {};
        return ojs::error{ojs::errc::timed_out, 0, std::to_string(left) + " requests aborted"};
    });
    steps.add("close the storage", [] { std::fputs("storage closed\n", stderr); });
    ojs::sequence_options options;
    options.timeout = *timeout;
    options.lifecycle = &lifecycle;
    bool all_done = true;
    for (const ojs::step_result& step : steps.run(options)) all_done &= step.status == ojs::step_status::done;
    _exit(all_done ? 0 : 1);  // abandoned steps may still use main()'s variables
}
