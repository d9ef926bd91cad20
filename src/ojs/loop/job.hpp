// job: what a worker claims; worker_identity: how it names itself.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace ojs {
inline namespace v0_1_0 {

// How much of a job a response had. One that was cut off is requeued; one that is larger than any response is failed.
enum class job_extent { complete, cut_off, too_large };

// A claimed job as the backend sent it. [WP FETCH]
struct job {
    std::string id;                                   // unique in its backend
    std::string type;                                 // chooses the handler
    std::string queue;                                // it was fetched from
    std::string args_json = "[]";                     // source text: numbers keep every digit. Never logged.
    std::string meta_json = "{}";                     // a JSON object
    std::int64_t attempt = 1;                         // 1 on the first run
    std::int64_t max_attempts = 0;                    // 0: unknown
    std::chrono::milliseconds timeout{0};             // of one run; 0: none
    std::chrono::milliseconds visibility_timeout{0};  // 0: the worker's
    std::string envelope_json;                        // the complete source text, unknown fields included
    std::string malformed;                            // why it cannot be run; empty for a valid job
    job_extent extent = job_extent::complete;         // else the next FETCH asks for fewer
    std::string claim;  // the transport's, opaque: a delivery tag, a receipt handle
    std::string body;   // a payload that is not JSON, of any bytes. Never logged.
};

// What a worker reports of itself.
struct worker_identity {
    std::string worker_id;                            // unique among the workers of a backend
    std::string hostname;                             // of the machine or container
    std::int64_t pid = 0;                             // of the worker's process
    std::vector<std::string> queues;                  // to fetch from
    std::int64_t concurrency = 0;                     // jobs at a time
    std::vector<std::string> labels;                  // worker_options::labels
    std::string started_at;                           // ISO 8601, UTC
    std::chrono::milliseconds visibility_timeout{0};  // how long a claim holds without a heartbeat
};

}  // namespace v0_1_0
}  // namespace ojs
