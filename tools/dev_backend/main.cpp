// An Open Job Spec backend on loopback, for development, tests and the demo. It keeps its jobs in memory, or with --store
// FILE in a file, where they survive a restart. It is one process without failover: in production run a published backend.
//
// GET / lists its routes.
//
// --ledger FILE gets one JSON line per event: mono_ns (CLOCK_MONOTONIC, comparable between processes), event, and its data. Every ACK and FAIL is there with the status of its response, and "lost":true where a
// fault dropped that response.
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include "backend.hpp"
#include "ojs_server.hpp"

namespace {
// Many workers need more than the usual soft limit of 1024 descriptors.
void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

constexpr int exit_no_store = 74;  // EX_IOERR

ojs::draining_server_options server_options() {
    ojs::draining_server_options out;
    out.limits.body = 8 * 1024 * 1024;
    out.threads = 256;                        // most wait for the disk or /dev/delay
    out.thread_stack_size = 2 * 1024 * 1024;  // for 100 levels of JSON in unoptimised builds
    return out;
}

void print_step(const ojs::step_result& each) {
    if (each.status == ojs::step_status::running) return;
    std::string line = "shutdown: " + each.name + " " + ojs::to_string(each.status) + " after " +
                       std::to_string(each.took.count()) + " ms";
    if (!each.error.empty()) line += ": " + each.error;
    std::fprintf(stderr, "%s\n", line.c_str());
}

// [GS 9.1]
bool shut_down(dev_backend::backend& on, ojs::draining_server& server, const ojs::cancel_token& abort) {
    ojs::shutdown_sequence steps;
    steps.add("requests", [&](const ojs::step_context& step) -> ojs::result<void> {
        on.sleeps.stop();
        on.streams.stop();
        const ojs::drain_result drained = server.drain({step.deadline, abort});
        if (drained.aborted == 0) return {};
        return ojs::error{ojs::errc::timed_out, 0, std::to_string(drained.aborted) + " were aborted"};
    });
    steps.add("scheduler", [&] { on.jobs.stop(); });
    steps.add("storage", [&] { return on.disk.save(); });
    ojs::sequence_options options;
    options.timeout = on.options.shutdown_timeout;
    if (!on.options.quiet) options.progress = print_step;
    bool in_order = true;
    for (const ojs::step_result& each : steps.run(options)) in_order &= each.status == ojs::step_status::done;
    return in_order;
}
}  // namespace

int main(int argc, char** argv) {
    ojs::lifecycle lifecycle;
    auto signals = ojs::signals::install(lifecycle);  // first: a SIGTERM during start-up is kept
    if (!signals) return ojs::report_startup_error(signals.error());
    const auto options = dev_backend::read_flags(argc, argv);
    if (!options) return ojs::report_startup_error(options.error());
    if (options->help) {
        std::fputs(dev_backend::usage, stdout);
        return 0;
    }

    std::signal(SIGPIPE, SIG_IGN);  // a closed ledger must not end it out of order
    raise_descriptor_limit();
    dev_backend::backend backend(*options);
    if (!options->ledger_path.empty() && !backend.events.open(options->ledger_path))
        return ojs::report_startup_error(dev_backend::wrong_flag("--ledger: cannot write " + options->ledger_path));
    if (!options->store_path.empty()) {
        if (const auto opened = backend.disk.open(options->store_path); !opened) {
            ojs::report_startup_error(opened.error());
            return exit_no_store;
        }
    }
    auto server = ojs::draining_server::start(
        options->address,
        [&backend](const ojs::http_request& request) { return dev_backend::handle(backend, request); },
        server_options());
    if (!server) return ojs::report_startup_error(server.error());
    backend.streams.start();
    backend.jobs.start();
    std::printf("listening on %s\n", server->address().c_str());
    std::fflush(stdout);

    while (lifecycle.phase() < ojs::phase::draining) signals->wait();
    ojs::cancel_source again;  // a second stop signal
    std::thread([&] {
        while (lifecycle.phase() < ojs::phase::stopping) signals->wait();
        again.cancel(ojs::cancel_reason::forced);
    }).detach();
    const bool in_order = shut_down(backend, *server, again.token());
    _exit(in_order ? 0 : 1);  // abandoned threads may still use main()'s objects
}
