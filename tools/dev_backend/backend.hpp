// backend: the state that the routes share, a request, and the handlers of the routes.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "faults.hpp"
#include "journal.hpp"
#include "ledger.hpp"
#include "ojs_server.hpp"
#include "queue_events.hpp"
#include "refusal.hpp"
#include "settings.hpp"
#include "store.hpp"

namespace dev_backend {
struct backend {
    explicit backend(const settings& chosen)
        : options(chosen),
          faults(chosen.faults, chosen.seed),
          streams(chosen.stream_heartbeat),
          jobs(events, streams, {chosen.retry_delay, chosen.timeout_grace, !chosen.store_path.empty()}),
          disk(jobs) {}

    const settings options;
    fault_injector faults;
    std::atomic<std::int64_t> delay_ms{0};
    pauses sleeps;
    ledger events;
    queue_events streams;
    store jobs;
    journal disk;                // not open: jobs are in memory only
    std::int64_t conflicts = 0;  // 409 responses to ACK and FAIL; guarded by the store's lock
    const ojs::time_point started = ojs::steady_clock::now();
};

// One HTTP request.
struct incoming {
    const ojs::http_request& request;
    std::int64_t received_ns;
    std::string_view path;
    std::string id;     // the {id} or {name} in the path of its route
    bool lost = false;  // its response will be dropped

    std::string worker_id() const { return std::string(ojs::find_header(request.headers, "X-OJS-Worker-ID")); }
};

// routes.cpp
ojs::http_response json_response(int status, std::string body);
ojs::http_response error_response(const refusal& why);
ojs::http_response handle(backend& on, const ojs::http_request& request);

// ---- the handlers of the routes: each throws a refusal for a request that it rejects ----

// job_operations.cpp
ojs::http_response push(backend& on, const incoming& in);
ojs::http_response push_batch(backend& on, const incoming& in);
ojs::http_response info(backend& on, const incoming& in);
ojs::http_response cancel(backend& on, const incoming& in);
ojs::http_response list_queues(backend& on, const incoming& in);
ojs::http_response queue_stats(backend& on, const incoming& in);
ojs::http_response list_dead_letters(backend& on, const incoming& in);
ojs::http_response retry_dead_letter(backend& on, const incoming& in);
ojs::http_response remove_dead_letter(backend& on, const incoming& in);

// worker_operations.cpp
ojs::http_response fetch(backend& on, const incoming& in);
ojs::http_response ack(backend& on, const incoming& in);
ojs::http_response nack(backend& on, const incoming& in);
ojs::http_response heartbeat(backend& on, const incoming& in);
ojs::http_response worker_health(backend& on, const incoming& in);

// dev_operations.cpp
ojs::http_response list_events(backend& on, const incoming& in);
// Takes the connection over from the server.
ojs::http_response stream_queue_events(backend& on, const incoming& in);
ojs::http_response health(backend& on, const incoming& in);
ojs::http_response manifest(backend& on, const incoming& in);
ojs::http_response show_summary(backend& on, const incoming& in);
ojs::http_response set_directive(backend& on, const incoming& in);
ojs::http_response set_faults(backend& on, const incoming& in);
ojs::http_response set_delay(backend& on, const incoming& in);
ojs::http_response reset(backend& on, const incoming& in);
}  // namespace dev_backend
