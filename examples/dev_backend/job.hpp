// job: a job and a worker, as the store keeps them.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ojs_shutdown.hpp"

namespace dev_backend {

using std::chrono::milliseconds;

enum class job_state { available, active, completed, retryable, discarded, cancelled };
constexpr std::array<const char*, 6> state_names = {"available", "active",    "completed",
                                                    "retryable", "discarded", "cancelled"};
inline const char* name_of(job_state state) {
    return state_names[static_cast<std::size_t>(state)];
}

struct worker;

struct job {
    std::string id;
    std::string queue;
    std::string fixed;  // the part of its envelope that never changes, an open JSON object
    std::string meta;   // JSON, with the checkpoint if there is one
    bool has_checkpoint = false;
    std::int64_t priority = 0;
    std::int64_t max_attempts = 3;
    std::int64_t attempt = 0;
    std::uint64_t turn = 0;  // order of arrival
    job_state state = job_state::available;
    worker* owner = nullptr;                       // while active
    milliseconds lease{0};                         // while active
    ojs::time_point due = ojs::time_point::max();  // end of the lease, or of the wait for a retry
    std::string started_at;
    std::string result;  // JSON
    std::string error;   // JSON
};

struct by_turn {
    bool operator()(const job* a, const job* b) const {
        return a->priority != b->priority ? a->priority > b->priority : a->turn < b->turn;
    }
};

struct worker {
    std::string id;
    std::string state = "running";  // as it says itself
    std::string directive = "running";
    std::vector<std::string> directive_queues;  // that `quiet` is for; empty: all
    std::string registration = "{}";            // the whole of its last BEAT
    std::int64_t beats = 0;
    std::vector<std::string> last_active;
    std::set<job*, by_turn> jobs;
    ojs::time_point dead_at = ojs::time_point::max();  // unknown until it beats
};

// A job to be: a PUSH that was read and found good.
struct new_job {
    std::string type;
    std::string queue;
    std::string args;
    std::string meta;
    std::vector<std::string> tags;
    std::string extra;  // members this backend does not know, as `,"key":value`
    std::int64_t priority = 0;
    std::int64_t max_attempts = 3;
    milliseconds timeout{0};  // 0: none
};

std::string envelope(const job& shown);  // as clients see it, JSON

// What comes late must not touch what meanwhile is another worker's.
void require_holder(const job& held, std::string_view from);
void require_active(const job& settled);

}  // namespace dev_backend
