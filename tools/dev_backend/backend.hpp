// backend: the state that the routes share, a request, and helpers for responses.
#pragma once
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "committer.hpp"
#include "faults.hpp"
#include "ledger.hpp"
#include "library.hpp"
#include "queue_events.hpp"
#include "refusal.hpp"
#include "settings.hpp"
#include "store.hpp"

namespace dev_backend {

struct backend {
    explicit backend(const settings& chosen)
        : options(chosen),
          faults(chosen.faults, chosen.seed),
          delay_ms(chosen.delay.count()),
          streams(chosen.stream_heartbeat),
          jobs(events, streams, {chosen.retry_delay, chosen.timeout_grace, !chosen.store_path.empty()}) {}

    const settings options;
    fault_injector faults;
    std::atomic<std::int64_t> delay_ms;
    pauses sleeps;
    ledger events;
    queue_events streams;
    store jobs;
    std::optional<committer> disk;  // none: jobs are in memory only
    std::atomic<bool> is_ending{false};
    std::int64_t conflicts = 0;  // 409 responses to ACK and FAIL; guarded by the store's lock
    const ojs::time_point started = ojs::steady_clock::now();
};

// One HTTP request.
struct incoming {
    const ojs::http_request& request;
    std::int64_t received_ns;
    std::string request_id;
    std::string_view path;
    std::string id;     // the {id} or {name} in the path of its route
    bool lost = false;  // its response will be dropped

    // A query parameter, decoded; empty: absent.
    std::string parameter(std::string_view name) const;
    std::vector<std::string> texts_parameter(std::string_view name) const;  // separated by commas
};

std::string percent_decoded(std::string_view text);
ojs::http_response json_response(int status, std::string body);
ojs::http_response error_answer(const refusal& why, const incoming& in);

}  // namespace dev_backend
