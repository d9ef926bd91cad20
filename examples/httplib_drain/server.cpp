// A cpp-httplib server that ends in order: the building blocks added to a library with its own server.
//
//     make httplib-drain && build/httplib_drain [PORT]        GET /hello answers after 300 ms, GET /readyz at once
//
// At SIGTERM or Ctrl-C /readyz answers 503 for LAME_DUCK_MS (default 0), for load balancers. Then the library stops
// accepting and finishes the requests of its threads, within OJS_SERVER_SHUTDOWN_TIMEOUT. It closes connections accepted but
// not read while all its threads (8 or more) were busy: the lame duck avoids that. A second signal abandons the rest.
#include <httplib.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "ojs_shutdown.hpp"

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: the library's threads leave signals to it
    const auto timeout = ojs::server_shutdown_timeout();
    if (!signals || !timeout) return ojs::report_usage(!signals ? signals.error() : timeout.error());
    const char* const duck = std::getenv("LAME_DUCK_MS");
    const std::chrono::milliseconds lame_duck(duck == nullptr ? 0 : std::atoi(duck));

    httplib::Server server;
    server.set_keep_alive_timeout(1);  // seconds the library may wait for an idle connection
    server.Get("/readyz", [&](const httplib::Request&, httplib::Response& answer) {
        answer.status = lifecycle.phase() < ojs::phase::draining ? 200 : 503;
    });
    server.Get("/hello", [](const httplib::Request&, httplib::Response& answer) {
        std::fputs("GET /hello\n", stderr);
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        answer.set_content("hello\n", "text/plain");
    });
    const int wanted = argc > 1 ? std::atoi(argv[1]) : 0;
    const bool bound = wanted != 0 && server.bind_to_port("127.0.0.1", wanted);
    const int port = wanted == 0 ? server.bind_to_any_port("127.0.0.1") : bound ? wanted : -1;
    if (port <= 0) return std::fprintf(stderr, "httplib_drain: cannot listen\n"), 1;
    std::thread listens([&] { server.listen_after_bind(); });
    std::fprintf(stderr, "listening on 127.0.0.1:%d\n", port);
    while (lifecycle.phase() < ojs::phase::draining) signals->wait();

    ojs::shutdown_sequence steps;
    steps.add("lame duck", [&](const ojs::step_context& step) {
        static_cast<void>(step.abort.sleep_until(ojs::deadline_after(lame_duck)));
    });
    steps.add("requests", [&] {
        server.stop();
        listens.join();  // the library's wait has no deadline, but the step has one
    });
    ojs::sequence_options options;
    options.timeout = *timeout;
    options.lifecycle = &lifecycle;
    bool in_order = true;
    for (const ojs::step_result& each : steps.run(options)) in_order &= each.status == ojs::step_status::done;
    _exit(in_order ? 0 : 1);  // abandoned steps may still use objects of main()
}
