// A cpp-httplib server that drains: what the building blocks add to a library with its own server.
//
//     make httplib-drain && build/httplib_drain [PORT]        GET /hello responds after 300 ms, GET /readyz at once
//
// On SIGTERM or Ctrl-C, /readyz returns 503 for LAME_DUCK_MS (default 0), so that load balancers stop sending requests. Then
// the library stops accepting, and finishes the requests of its threads within OJS_SERVER_SHUTDOWN_TIMEOUT. It closes accepted
// connections that none of its 8 or more threads has read yet: avoid that by the lame duck. A second signal aborts the rest.
#include <httplib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "ojs_server.hpp"

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    const auto timeout = ojs::server_shutdown_timeout();
    if (!signals || !timeout) return ojs::report_startup_error(!signals ? signals.error() : timeout.error());
    unsigned requested = 0;
    char rest = 0;
    if (argc > 2 || (argc == 2 && (std::sscanf(argv[1], "%5u%c", &requested, &rest) != 1 || requested > 65535)))
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: httplib_drain [PORT]"});
    const char* const duck = std::getenv("LAME_DUCK_MS");
    const std::chrono::milliseconds lame_duck(duck == nullptr ? 0 : std::atoi(duck));

    httplib::Server server;
    server.set_keep_alive_timeout(1);  // seconds that the library waits for an idle connection
    server.Get("/readyz", [&](const httplib::Request&, httplib::Response& response) {
        response.status = lifecycle.phase() < ojs::phase::draining ? 200 : 503;
    });
    server.Get("/hello", [](const httplib::Request&, httplib::Response& response) {
        std::fputs("GET /hello\n", stderr);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        response.set_content("hello\n", "text/plain");
    });
    const bool bound = requested != 0 && server.bind_to_port("127.0.0.1", static_cast<int>(requested));
    const int port = requested == 0 ? server.bind_to_any_port("127.0.0.1") : bound ? static_cast<int>(requested) : -1;
    if (port <= 0) return std::fprintf(stderr, "httplib_drain: cannot listen\n"), 1;
    std::thread listener([&] { server.listen_after_bind(); });
    std::fprintf(stderr, "listening on 127.0.0.1:%d\n", port);
    while (lifecycle.phase() < ojs::phase::draining) signals->wait();

    ojs::shutdown_sequence steps;
    steps.add("lame duck", [&] {
        const auto end = ojs::deadline_after(lame_duck);
        while (lifecycle.phase() < ojs::phase::stopping && ojs::steady_clock::now() < end) signals->wait(end);
    });
    steps.add("requests", [&] {
        server.stop();
        listener.join();  // has no deadline, but the step has
    });
    ojs::sequence_options options;
    options.timeout = *timeout;
    bool all_done = true;
    for (const ojs::step_result& step : steps.run(options)) all_done &= step.status == ojs::step_status::done;
    _exit(all_done ? 0 : 1);  // abandoned steps may still use main()'s variables
}
