// backend: what the routes work on, a request on its way through them, and the forms of an answer.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>

#include "faults.hpp"
#include "ledger.hpp"
#include "ojs_shutdown.hpp"
#include "refusal.hpp"
#include "settings.hpp"
#include "store.hpp"

namespace dev_backend {

struct backend {
    explicit backend(const settings& chosen)
        : options(chosen),
          faults(chosen.faults, chosen.seed),
          delay_ms(chosen.delay.count()),
          jobs(events, chosen.retry_delay) {}

    const settings options;
    fault_injector faults;
    std::atomic<std::int64_t> delay_ms;
    pauses sleeps;
    ledger events;
    store jobs;
    std::int64_t conflicts = 0;  // answers 409 to ACK and FAIL; with the store locked
};

// One HTTP request on its way through.
struct incoming {
    const ojs::http_request& request;
    std::int64_t received_ns;
    bool lost = false;  // its answer will be dropped
};

ojs::http_response json_answer(int status, std::string body);
ojs::http_response error_answer(const refusal& why);

}  // namespace dev_backend
