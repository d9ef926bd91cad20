// An Open Job Spec backend on loopback, for development, tests and the demo. It keeps its jobs in memory, or with --store
// FILE in SQLite, where they survive a restart. It is one process without failover: in production run a published backend.
//
// GET / lists its routes.
//
// Requests that a web page can make a browser send are refused: with an Origin or Sec-Fetch-Site, to a Host that is
// neither an address nor localhost, or a POST whose Content-Type is not JSON.
//
// --ledger FILE gets one JSON line per event: t_ms since the start, mono_ns (CLOCK_MONOTONIC, comparable between
// processes), event, and its data. Every ACK and FAIL is there with the status of its response, and "lost":true where a
// fault dropped that response.
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <future>
#include <string>
#include <utility>

#include "backend.hpp"
#include "library.hpp"
#include "operations.hpp"
#include "routes.hpp"
#include "settings.hpp"

namespace {

// The usual soft limit of 1024 descriptors is below --max-connections.
void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

// Avoids stdio, whose lock a blocked write would hold for good.
void print_line(const std::string& text) {
    const std::string line = text + "\n";
    for (std::size_t done = 0; done < line.size();) {
        const ssize_t more = ::write(STDOUT_FILENO, line.data() + done, line.size() - done);
        if (more < 0 && errno != EINTR) return;
        if (more > 0) done += static_cast<std::size_t>(more);
    }
}

constexpr int exit_no_address = 69;  // EX_UNAVAILABLE
constexpr int exit_no_store = 74;    // EX_IOERR

ojs::result<void> open_store(dev_backend::backend& on) {
    auto opened = dev_backend::storage::open(on.options.store_path, on.options.full_sync);
    if (!opened) return opened.error();
    const auto loaded = opened->load([&](const dev_backend::row& each) { on.jobs.restore(each); });
    if (!loaded) return loaded;
    on.disk.emplace(on.jobs, std::move(*opened));
    on.disk->start();
    return {};
}

// On another thread: a disk that does not answer must not hold up a stop.
ojs::result<void> open_store_unless_stopped(dev_backend::backend& on, const ojs::lifecycle& lifecycle) {
    auto opened = std::async(std::launch::async, [&on] { return open_store(on); });
    const auto has_stop_begun = [&] { return lifecycle.phase() >= ojs::phase::draining; };
    while (opened.wait_for(std::chrono::milliseconds(50)) != std::future_status::ready && !has_stop_begun()) {
    }
    if (opened.wait_for(on.options.shutdown_timeout) == std::future_status::ready) return opened.get();
    ojs::report_usage(
        {ojs::errc::timed_out, 0, "cannot open the store: " + on.options.store_path + " does not answer"});
    _exit(exit_no_store);  // the thread cannot be ended
}

ojs::draining_server_options server_options(const dev_backend::settings& chosen) {
    ojs::draining_server_options out;
    out.max_connections = chosen.max_connections;
    out.lame_duck = chosen.lame_duck;
    out.limits.body = 32 * 1024 * 1024;       // up to it, dispatch() refuses by an error of the API
    out.threads = 256;                        // most wait for a commit or --delay
    out.thread_stack_size = 2 * 1024 * 1024;  // for 100 levels of JSON in unoptimised builds
    return out;
}

// Drops the line if stderr is blocked: it would delay the shutdown.
void print_step(const ojs::step_result& each) {
    pollfd reader{STDERR_FILENO, POLLOUT, 0};
    if (each.status == ojs::step_status::running || poll(&reader, 1, 0) == 0) return;
    std::string line = "shutdown: " + each.name + " " + ojs::to_string(each.status) + " after " +
                       std::to_string(each.took.count()) + " ms";
    if (!each.error.empty()) line += ": " + each.error;
    std::fprintf(stderr, "%s\n", line.c_str());
}

// [GS 9.1]
bool shut_down(dev_backend::backend& on, ojs::draining_server& server, ojs::lifecycle& lifecycle) {
    on.is_ending = true;
    ojs::shutdown_sequence steps;
    steps.add("requests", [&](const ojs::step_context& step) -> ojs::result<void> {
        on.sleeps.stop();
        on.streams.stop();
        const ojs::drain_result drained = server.drain({step.deadline, step.abort});
        if (drained.cut == 0) return {};
        return ojs::error{ojs::errc::timed_out, 0, std::to_string(drained.cut) + " were cut"};
    });
    steps.add("scheduler", [&] { on.jobs.stop(); });
    steps.add("storage", [&]() -> ojs::result<void> {
        if (!on.disk || on.disk->stop()) return {};
        return ojs::error{ojs::errc::system, 0, on.disk->fault()};
    });
    // Limits how long a blocked stdout delays the shutdown.
    if (!on.options.quiet)
        steps.add(
            "summary", [&] { print_line("summary " + dev_backend::summary(on)); }, std::chrono::seconds(1));
    ojs::sequence_options options;
    options.timeout = on.options.shutdown_timeout;
    options.lifecycle = &lifecycle;
    options.log.level = ojs::log_level::off;
    if (!on.options.quiet) options.progress = print_step;
    bool in_order = true;
    for (const ojs::step_result& each : steps.run(options)) in_order &= each.status == ojs::step_status::done;
    return in_order;
}

}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    if (!signals) return ojs::report_usage(signals.error());
    const auto options = dev_backend::read_flags(argc, argv);
    if (!options) return ojs::report_usage(options.error());
    if (options->help) {
        std::fputs(dev_backend::usage, stdout);
        return 0;
    }

    std::signal(SIGPIPE,
                SIG_IGN);  // a closed stdout must not end it out of order
    raise_descriptor_limit();
    dev_backend::backend backend(*options);
    if (!options->ledger_path.empty() && !backend.events.open(options->ledger_path))
        return ojs::report_usage(dev_backend::wrong_flag("--ledger: cannot write " + options->ledger_path));
    if (!options->store_path.empty()) {
        if (const auto opened = open_store_unless_stopped(backend, lifecycle); !opened) {
            ojs::report_usage(opened.error());
            return exit_no_store;
        }
    }
    auto server = ojs::draining_server::start(
        options->address,
        [&backend](const ojs::http_request& request) { return dev_backend::handle(backend, request); },
        server_options(*options));
    if (!server) {
        ojs::report_usage(server.error());
        return exit_no_address;
    }
    if (const auto started = backend.streams.start(); !started) {
        ojs::report_usage(started.error());
        return exit_no_address;
    }
    backend.jobs.start();
    print_line("listening on " + server->address());

    while (lifecycle.phase() < ojs::phase::draining) signals->wait();
    const bool in_order = shut_down(backend, *server, lifecycle);
    _exit(in_order ? 0 : 1);  // abandoned threads may still use main()'s objects
}
