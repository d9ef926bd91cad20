// job: a job and a worker, as the store keeps them.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json.hpp"
#include "library.hpp"
#include "retry_policy.hpp"
#include "unique_policy.hpp"

namespace dev_backend {

enum class job_state { scheduled, pending, available, active, completed, retryable, discarded, cancelled };
constexpr std::array<const char*, 8> state_names = {"scheduled", "pending",   "available", "active",
                                                    "completed", "retryable", "discarded", "cancelled"};
inline const char* name_of(job_state state) {
    return state_names[static_cast<std::size_t>(state)];
}
inline bool has_ended(job_state state) {
    return state == job_state::completed || state == job_state::discarded || state == job_state::cancelled;
}

struct worker;

// What never changes after PUSH.
struct job_terms {
    std::string type;
    std::string queue = "default";
    std::int64_t priority = 0;
    milliseconds timeout{0};        // of one attempt; 0: none
    milliseconds reservation{0};    // if the FETCH has none; 0: the default
    std::int64_t scheduled_ms = 0;  // since the epoch: not available before; 0: at once
    std::int64_t expires_ms = 0;    // since the epoch: not started later; 0: at any time
    retry_policy retry;
    std::string test_directive;  // for the next BEAT of its worker; empty: none
};

struct job : job_terms {
    std::string id;
    std::string fixed;  // the constant part of its envelope, an open JSON object
    std::string meta;   // JSON, with the checkpoint if there is one
    bool has_checkpoint = false;
    std::int64_t attempt = 0;
    std::uint64_t turn = 0;  // order of arrival
    job_state state = job_state::available;
    worker* owner = nullptr;                             // while active
    milliseconds lease{0};                               // while active
    ojs::time_point due = ojs::time_point::max();        // end of the lease, or of the wait to be available
    ojs::time_point times_out = ojs::time_point::max();  // while active
    milliseconds retry_delay{0};                         // the last
    std::int64_t started_ms = 0;                         // since the epoch; 0: no
    std::int64_t ended_ms = 0;
    std::string result;               // JSON
    std::string error;                // JSON, of the last attempt
    std::vector<std::string> errors;  // JSON, of each attempt that failed
    bool is_dead_letter = false;
    bool is_stored = false;   // there is a row for it
    bool is_changed = false;  // its row is outdated
};

struct by_turn {
    bool operator()(const job* a, const job* b) const {
        return a->priority != b->priority ? a->priority > b->priority : a->turn < b->turn;
    }
};

struct worker {
    std::string id;
    std::string state = "running";  // as reported
    std::string directive = "running";
    std::vector<std::string> directive_queues;  // that `quiet` is for; empty: all
    std::string registration = "{}";            // its complete last BEAT
    std::uint64_t last_seen = 0;                // higher: later
    std::int64_t beats = 0;
    std::int64_t last_beat_ms = 0;  // since the epoch
    std::vector<std::string> last_active;
    std::set<job*, by_turn> jobs;
    ojs::time_point dead_at = ojs::time_point::max();  // unknown until it beats
};

// A valid PUSH.
struct new_job : job_terms {
    std::string id;  // empty: the store creates one
    std::string args;
    std::string meta;
    std::string retry_source;  // JSON, as received
    std::vector<std::string> tags;
    std::string extra;  // members kept beside the terms, as `,"key":value`
    bool pending = false;
    std::optional<unique_policy> unique;  // none: enqueued beside any other
};
inline job_identity identity_of(const new_job& of) {
    return {of.type, of.queue, of.args};
}

// As clients see it, JSON behind `prefix`.
json_object open_envelope(const job& shown, std::string prefix = {});
inline std::string envelope(const job& shown, std::string prefix = {}) {
    return open_envelope(shown, std::move(prefix)).str();
}
std::string_view checkpoint_of(const job& of);  // JSON

// A late request must not change a job of another worker.
void require_holder(const job& held, std::string_view from);
void require_active(const job& settled);

}  // namespace dev_backend
