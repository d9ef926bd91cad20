// job: a job and a worker, as the store keeps them.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "json.hpp"
#include "ojs_server.hpp"
#include "retry_policy.hpp"

namespace dev_backend {
enum class job_state { scheduled, available, active, completed, retryable, discarded, cancelled };
constexpr std::array<const char*, 7> state_names = {"scheduled", "available", "active",   "completed",
                                                    "retryable", "discarded", "cancelled"};
inline const char* name_of(job_state state) { return state_names[static_cast<std::size_t>(state)]; }
inline bool has_ended(job_state state) {
    return state == job_state::completed || state == job_state::discarded || state == job_state::cancelled;
}

struct worker;

// What never changes after PUSH.
struct job_terms {
    std::string id;  // of a PUSH: empty if the store creates one
    std::string type;
    std::string queue = "default";
    std::int64_t priority = 0;
    milliseconds timeout{0};        // of one attempt; 0: none
    milliseconds lease_length{0};   // if the FETCH has none; 0: the default
    std::int64_t scheduled_ms = 0;  // since the epoch: not available before; 0: at once
    std::int64_t expires_ms = 0;    // since the epoch: not started later; 0: at any time
    retry_policy retry;
    std::string test_directive;     // for the next heartbeat of its worker; empty: none
    std::string unique_key;         // that no other job may have; empty: any may
    milliseconds unique_period{0};  // since the earlier job was created; 0: at any time
};

// A valid PUSH.
struct new_job : job_terms {
    std::string args;
    std::string meta;
    std::string retry_source;  // JSON, as received; likewise the next two
    std::string unique_source;
    std::string tags;
    std::string extra;  // members kept beside the terms, as `,"key":value`
};

constexpr ojs::time_point never = ojs::time_point::max();

struct job : job_terms {
    std::string fixed;  // the constant part of its envelope, an open JSON object
    std::string meta;   // JSON, with the checkpoint if there is one
    std::int64_t created_ms = 0;
    std::int64_t attempt = 0;
    std::int64_t turn = 0;  // order of arrival
    job_state state = job_state::available;
    worker* owner = nullptr;            // while active
    milliseconds lease{0};              // while active
    ojs::time_point due = never;        // end of the lease, or of the wait to be available
    ojs::time_point times_out = never;  // while active
    milliseconds retry_delay{0};        // the last
    std::int64_t started_ms = 0;        // since the epoch; 0: no
    std::int64_t ended_ms = 0;
    std::string result;               // JSON
    std::string error;                // JSON, of the last attempt
    std::vector<std::string> errors;  // JSON, of each attempt that failed
    bool is_dead_letter = false;
    bool is_stored = false;   // its constant part is in the journal
    bool is_changed = false;  // the journal lacks its state
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
    std::set<job*, by_turn> jobs;
    ojs::time_point due = never;  // dead then; unknown until its first heartbeat
};

// As clients see it, JSON behind `prefix`.
json_object open_envelope(const job& shown, std::string prefix = {});
inline std::string envelope(const job& shown, std::string prefix = {}) {
    return open_envelope(shown, std::move(prefix)).str();
}
inline std::string_view checkpoint_of(const job& of) {  // JSON; empty: none
    return raw_member(of.meta, "checkpoint");
}

// The state of a job for the journal, a JSON object. Its first record has the constant part, too.
std::string record_of(const job& kept);
// Restores all but the links to workers, queues and timers. Throws a refusal for an invalid member.
std::unique_ptr<job> job_of(std::string_view fixed, json_view record);
}  // namespace dev_backend
