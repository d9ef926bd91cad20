// An Open Job Spec backend in memory, on loopback: for development, tests and the demo. Nothing is kept on disk.
//
//   POST   /ojs/v1/jobs                PUSH         POST /ojs/v1/workers/fetch      FETCH
//   POST   /ojs/v1/jobs/batch          PUSH many    POST /ojs/v1/workers/ack        ACK
//   GET    /ojs/v1/jobs/{id}           INFO         POST /ojs/v1/workers/nack       FAIL
//   DELETE /ojs/v1/jobs/{id}           CANCEL       POST /ojs/v1/workers/heartbeat  BEAT
//   POST, GET, DELETE /ojs/v1/jobs/{id}/checkpoint   {"state":any}, handed out as meta.checkpoint with the next FETCH
//   GET    /ojs/v1/health, /ojs/manifest
//
// For development only:
//   GET  /dev/summary                          how many jobs are in which state, and what each worker last said
//   POST /dev/directive {"worker_id":ID or "*","directive":"quiet"|"terminate"|"running"}   told at the next BEAT;
//                       "queues":[NAMES] beside "quiet" means those alone
//   POST /dev/faults    {"faults":"lose:100,reset:50"}  as --faults; "" switches them off
//   POST /dev/delay     {"ms":50}                       as --delay
//
// Requests that a web page can have a browser send are refused: with an Origin or Sec-Fetch-Site, to a Host that is
// neither an address nor localhost, and a POST whose Content-Type is not JSON.
//
// --ledger FILE gets one JSON line an event: t_ms since the start, mono_ns (CLOCK_MONOTONIC, so that the clocks of
// other processes compare), event, and what belongs to it. Every ACK and FAIL is there with the status answered,
// and "lost":true where a fault dropped the answer.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <string>

#include "backend.hpp"
#include "ojs_shutdown.hpp"
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

void print_line(const std::string& text) {
    std::fputs((text + "\n").c_str(), stdout);
    std::fflush(stdout);
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

    raise_descriptor_limit();
    dev_backend::backend backend(*options);
    if (!options->ledger_path.empty() && !backend.events.open(options->ledger_path))
        return ojs::report_usage(dev_backend::wrong_flag("--ledger: cannot write " + options->ledger_path));
    ojs::http_server_options server_options;
    server_options.max_connections = options->max_connections;
    auto server = ojs::http_server::start(
        options->address,
        [&backend](const ojs::http_request& request) { return dev_backend::handle(backend, request); },
        server_options);
    if (!server) return ojs::report_usage(server.error());
    backend.jobs.start();
    print_line("listening on " + server->address());

    while (lifecycle.phase() < ojs::phase::draining) signals->wait();
    backend.sleeps.stop();
    backend.jobs.stop();
    server->stop(ojs::steady_clock::now() + std::chrono::seconds(2));
    if (!options->quiet) print_line("summary " + dev_backend::summary(backend));
    return 0;
}
