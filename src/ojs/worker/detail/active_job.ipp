// active_job: a claimed job until it is reported and its handler has returned; its ACK or FAIL.
#pragma once

#include "../../net/json_view.ipp"
#include "../../stop/detail/machine_state.ipp"
#include "../job_context.hpp"
#include "../transport.hpp"

namespace ojs::detail {
struct registered_handler {
    std::string type;
    job_handler call;
    handler_options options;
    std::size_t started = 0;  // guarded: jobs that run or are about to
};

// 0: the backend does not say.
inline std::int64_t attempt_of(const job& claimed) noexcept {
    const bool says = claimed.envelope_json.empty() || !raw_member(claimed.envelope_json, "attempt").empty();
    return says ? claimed.attempt : 0;
}

// `interrupted`: its run; the job is then requeued, or failed if that uses up an attempt. `requeued`: it never ran. `gone`:
// the backend had reassigned it.
enum class job_status : std::uint8_t { completed, failed, interrupted, requeued, gone, unreported };
inline constexpr const char* status_messages[] = {"job completed", "job failed", "job interrupted", "job requeued"};

struct job_report {
    bool ack = false;
    std::string result_json;                    // ACK
    job_error failure;                          // FAIL
    std::string checkpoint;                     // FAIL: JSON; empty: none
    bool requeue = false;                       // FAIL
    job_status status = job_status::completed;  // of the run
    log_level level = log_level::debug;
    cancel_reason reason = cancel_reason::none;
    int signal = 0;                             // that caused an interruption
    job_status ended = job_status::unreported;  // how the claim ended

    bool accepted() const noexcept { return ended != job_status::gone && ended != job_status::unreported; }
};

struct active_job : work {
    active_job(ojs::job&& claimed, split_source source, time_point claimed_at, milliseconds leased_since,
               milliseconds default_lease, registered_handler* registered)
        : work(std::move(claimed), std::move(source), claimed_at),
          handler(registered),
          lease(max(min_lease, job.visibility_timeout.count() > 0 ? job.visibility_timeout : default_lease)),
          leased_at(leased_since),
          claim(job.claim),
          attempt(attempt_of(job)) {}

    // Heartbeats cannot renew a shorter lease in time; the response to the ACK shows whether it counts.
    static constexpr milliseconds min_lease{20};

    registered_handler* const handler;  // null: none for its type
    const milliseconds lease;           // how long the claim holds without a heartbeat

    // ---- guarded by the machine's mutex, like the functions ----

    // Another worker may have it: it is not started and not FAILed, which could end the other's claim, and its ACK waits
    // for a heartbeat that renews the lease. [WIRE 8]
    bool lease_expired() const noexcept { return lease_clock() - leased_at >= lease; }
    void extend_lease(milliseconds from) noexcept { leased_at = max(leased_at, from); }
    // This worker has claimed it once more. False: that is another job, as a FAIL may have arrived,
    // whose repetition would end the new claim.
    bool claim_again(ojs::job& claimed, milliseconds from) noexcept {
        const std::int64_t latest = attempt_of(claimed);
        if (latest != 0 && latest < attempt) return true;  // the response is older than this claim
        is_superseded = is_superseded || fail_sent;
        if (is_superseded) return false;
        claim.swap(claimed.claim);
        attempt = latest;
        ++claims;
        extend_lease(from);
        is_lost = false;
        return true;
    }
    // For its own timeout or by the backend, not by a stop.
    bool cancelled_alone() const noexcept {
        const cancel_reason reason = cancel.reason();
        return reason == cancel_reason::timeout || reason == cancel_reason::revoked;
    }
    bool is_in_handler() const noexcept { return has_begun && !has_returned; }

    const char* handler_state = "not started";  // for the log

    bool is_held = false;        // not to be run for now
    bool is_taken = false;       // one thread reports it, and no other ever will
    bool has_begun = false;      // a thread has called its handler
    bool has_returned = false;   // and the handler has returned
    bool is_lost = false;        // another worker may have it: nothing is reported
    bool is_superseded = false;  // its next claim is another job: no more requests
    bool fail_sent = false;      // a FAIL may have arrived, which ends the claim
    std::uint32_t claims = 0;    // further ones
    milliseconds leased_at;      // by lease_clock(): when it was claimed or renewed
    std::string claim;           // of the latest claim, like the next
    std::int64_t attempt;        // 0: unknown
    std::string saved;           // the checkpoint, JSON of this run; empty: none
    time_point due_at = never;   // when it times out; held: when it is requeued
    time_point listed_at{};      // when the latest heartbeat was sent whose response lists it
    time_point queried_at{};
};

inline active_job& as_job(const ref<work>& one) noexcept { return static_cast<active_job&>(*one); }

inline std::vector<log_field> job_fields(const work& one) {
    return {field("job_id", one.job.id), field("job_type", one.job.type), field("queue", one.job.queue),
            field("attempt", one.job.attempt), field("elapsed_ms", milliseconds_since(one.since))};
}
}  // namespace ojs::detail
