// unique_policy: whether a job may be enqueued beside those that exist.
#pragma once
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>

#include "json.hpp"

namespace dev_backend {

struct unique_policy {
    bool by_queue = false;  // besides the type
    bool by_args = false;
    milliseconds period{0};              // since the earlier job was created; 0: at any time
    std::bitset<8> states = 0b00101111;  // of the earlier job, by job_state: those before the end
};

// Refuses an invalid policy, and what this backend cannot do: conflicts that do not reject, parts of arguments, metadata.
// [OJS unique jobs 2]
unique_policy read_unique_policy(json_view source);

// What two jobs are compared by.
struct job_identity {
    std::string_view type;
    std::string_view queue;
    std::string_view args;  // JSON
};
bool are_duplicates(const unique_policy& policy, const job_identity& one, const job_identity& other);

}  // namespace dev_backend
