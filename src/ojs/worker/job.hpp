// job: what a worker claims.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace ojs {
inline namespace v0_1_0 {

// A claimed job as the backend sent it. [WP FETCH]
struct job {
    std::string id;
    std::string type;
    std::string queue;
    std::string args_json = "[]";  // source text: numbers keep every digit. Never logged.
    std::string meta_json = "{}";
    std::int64_t attempt = 1;                         // 1 on the first run
    std::int64_t max_attempts = 0;                    // 0: not said
    std::chrono::milliseconds timeout{0};             // 0: none
    std::chrono::milliseconds visibility_timeout{0};  // 0: the worker's
    std::string envelope_json;                        // the whole source text, unknown fields included
    std::string malformed;                            // why it cannot be run; empty for a good job
};

}  // namespace v0_1_0
}  // namespace ojs
