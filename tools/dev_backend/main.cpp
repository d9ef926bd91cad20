// An Open Job Spec backend on loopback: for development, tests and the demo. It keeps its jobs in memory, or with --store
// FILE in SQLite, where a restart finds them. One process serves them all, and none takes over from it: in production run
// one of the published backends.
//
//   POST   /ojs/v1/jobs                PUSH         POST /ojs/v1/workers/fetch      FETCH
//   POST   /ojs/v1/jobs/batch          PUSH many    POST /ojs/v1/workers/ack        ACK
//   GET    /ojs/v1/jobs/{id}           INFO         POST /ojs/v1/workers/nack       FAIL
//   DELETE /ojs/v1/jobs/{id}           CANCEL       POST /ojs/v1/workers/heartbeat  BEAT, and /workers/beat
//   POST   /ojs/v1/jobs/{id}/activate  ACTIVATE     GET  /ojs/v1/workers/{id}/health
//   POST, GET, DELETE /ojs/v1/jobs/{id}/checkpoint   {"state":any}, handed out with the next FETCH as checkpoint.state and
//                                                    meta.checkpoint
//   GET    /ojs/v1/dead-letter, POST /ojs/v1/dead-letter/{id}/retry, DELETE /ojs/v1/dead-letter/{id}
//   GET    /ojs/v1/queues, /ojs/v1/events, /ojs/v1/health, /ojs/manifest
//   GET    /ojs/v1/admin/jobs, /ojs/v1/admin/workers, /ojs/v1/admin/workers/{id}
//   POST   /ojs/v1/admin/workers/{id}/quiet
//   GET    /readyz                     200; 503 while nothing can be stored, and from the begin of the end
//
// For development only:
//   GET  /dev/summary                          how many jobs are in which state, and what each worker last said
//   POST /dev/directive {"worker_id":ID or "*","directive":"quiet"|"terminate"|"running"}   told at the next BEAT;
//                       "queues":[NAMES] beside "quiet" means those alone
//   POST /dev/faults    {"faults":"lose:100,reset:50"}  as --faults; "" switches them off
//   POST /dev/delay     {"ms":50}                       as --delay
//   POST /dev/reset                                     forgets every job and worker
//
// Requests that a web page can have a browser send are refused: with an Origin or Sec-Fetch-Site, to a Host that is
// neither an address nor localhost, and a POST whose Content-Type is not JSON.
//
// --ledger FILE gets one JSON line an event: t_ms since the start, mono_ns (CLOCK_MONOTONIC, so that the clocks of
// other processes compare), event, and what belongs to it. Every ACK and FAIL is there with the status answered,
// and "lost":true where a fault dropped the answer.
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "backend.hpp"
#include "library.hpp"
#include "operations.hpp"
#include "routes.hpp"
#include "settings.hpp"

namespace {

// Some systems allow 1024 descriptors, fewer than the connections this may have to hold.
void raise_descriptor_limit() {
    rlimit limit{};
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

// Not by stdio, whose lock a reader that stopped would hold to the end.
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

ojs::draining_server_options server_options(const dev_backend::settings& chosen) {
    ojs::draining_server_options out;
    out.max_connections = chosen.max_connections;
    out.lame_duck = chosen.lame_duck;
    out.threads = 256;                        // most wait: for a commit, or as --delay says
    out.thread_stack_size = 2 * 1024 * 1024;  // for a hundred levels of JSON, unoptimised as well
    return out;
}

// Whose reader has stopped reading, a line is spared: it would hold up the end.
void print_step(const ojs::step_result& each) {
    pollfd reader{STDERR_FILENO, POLLOUT, 0};
    if (each.status == ojs::step_status::running || poll(&reader, 1, 0) == 0) return;
    std::string line = "shutdown: " + each.name + " " + ojs::to_string(each.status) + " after " +
                       std::to_string(each.took.count()) + " ms";
    if (!each.error.empty()) line += ": " + each.error;
    std::fprintf(stderr, "%s\n", line.c_str());
}

// [GS 9.1]
bool end_in_order(dev_backend::backend& on, ojs::draining_server& server, ojs::lifecycle& lifecycle) {
    on.is_ending = true;
    ojs::shutdown_sequence steps;
    steps.add("requests", [&](const ojs::step_context& step) -> ojs::result<void> {
        on.sleeps.stop();
        const ojs::drain_result drained = server.drain({step.deadline, step.abort});
        if (drained.cut == 0) return {};
        return ojs::error{ojs::errc::timed_out, 0, std::to_string(drained.cut) + " were cut"};
    });
    steps.add("scheduler", [&] { on.jobs.stop(); });
    steps.add("storage", [&]() -> ojs::result<void> {
        if (!on.disk || on.disk->stop()) return {};
        return ojs::error{ojs::errc::system, 0, on.disk->fault()};
    });
    // A reader that has stopped reading holds up the end no longer than this.
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
                SIG_IGN);  // who no longer reads what it prints must not keep it from ending in order
    raise_descriptor_limit();
    dev_backend::backend backend(*options);
    if (!options->ledger_path.empty() && !backend.events.open(options->ledger_path))
        return ojs::report_usage(dev_backend::wrong_flag("--ledger: cannot write " + options->ledger_path));
    if (!options->store_path.empty()) {
        if (const auto opened = open_store(backend); !opened) {
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
    backend.jobs.start();
    print_line("listening on " + server->address());

    while (lifecycle.phase() < ojs::phase::draining) signals->wait();
    const bool in_order = end_in_order(backend, *server, lifecycle);
    _exit(in_order ? 0 : 1);  // what was left behind may still use what main() holds
}
