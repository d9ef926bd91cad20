// An idle worker whose jobs print when they begin; bench/bench.py pushes them. OJS_URL chooses the transport, and
// BENCH_EVENTS=1 has an HTTP backend announce jobs. With memory: each line of standard input is a push.
#include <ojs_events.hpp>
#include <ojs_memory.hpp>
#include <ojs_spool.hpp>

#if __has_include(<amqp.h>)
#include <ojs_amqp.hpp>
#endif
#if __has_include(<hiredis/hiredis.h>)
#include <ojs_redis_streams.hpp>
#endif
#if __has_include(<libpq-fe.h>)
#include <ojs_river.hpp>
#endif

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "roles.hpp"

namespace {
using bench::monotonic_ns;

void add_handlers(ojs::worker& worker) {
    for (const char* const type : {"pickup", "message"}) {
        worker.register_handler(type, [](ojs::job_context&) {
            const double now = monotonic_ns();
            bench::print("began " + std::to_string(now));
        });
    }
}

int run_with(ojs::worker_options options, ojs::transport& given) {
    ojs::worker worker(std::move(options), given);
    add_handlers(worker);
    return worker.run();
}

int run_memory(ojs::worker_options options) {
    ojs::memory_transport queue;
    std::thread pusher([&] {
        for (int c = std::getchar(); c != EOF; c = std::getchar()) {
            if (c == '\n') bench::print("pushed " + std::to_string(monotonic_ns())), queue.push("pickup");
        }
    });
    const int status = run_with(std::move(options), queue);
    pusher.join();
    return status;
}
}  // namespace

int main() {
    auto options = ojs::worker_options::from_environment();
    if (!options) return ojs::report_startup_error(options.error());
    if (std::getenv("BENCH_EVENTS") != nullptr) options->http_events = ojs::queue_events();
    options->transports.add(ojs::spool());
#ifdef OJS_SHUTDOWN_AMQP_HPP
    options->transports.add(ojs::amqp());
#endif
#ifdef OJS_SHUTDOWN_REDIS_STREAMS_HPP
    options->transports.add(ojs::redis_streams());
#endif
#ifdef OJS_SHUTDOWN_RIVER_HPP
    if (const char* const database = std::getenv("DATABASE_URL")) {
        const auto river = ojs::river_transport::create(database, {});
        return river ? run_with(*options, **river) : ojs::report_startup_error(river.error());
    }
#endif
    if (options->url == "memory:") return run_memory(*options);
    ojs::worker worker(*options);
    add_handlers(worker);
    return worker.run();
}
