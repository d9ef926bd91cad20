// retry_policy: when a failed job is retried, and what becomes of it otherwise.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "json.hpp"

namespace dev_backend {
enum class backoff { exponential, linear, polynomial, none };

struct retry_policy {
    std::int64_t max_attempts = 3;  // the first one included
    milliseconds initial{1000};
    double coefficient = 2;
    milliseconds max{300000};
    bool jitter = true;
    backoff kind = backoff::exponential;
    std::vector<std::string> non_retryable;  // error types; "auth.*" matches all that begin with "auth."
    bool dead_letter = false;                // keep it for inspection after the last failure
};

// Missing members have the defaults above. Refuses an invalid policy. [OJS retry 2, 11]
retry_policy read_retry_policy(json_view source);

// `key` as ISO 8601. `policy` is for refusals.
milliseconds duration_or(json_view given, const char* key, milliseconds fallback, const char* policy);

// The delay before the next attempt; `random` is in [0, 1). [OJS retry 3, 5]
milliseconds delay_after(const retry_policy& policy, std::int64_t attempt, double random);
bool is_non_retryable(const retry_policy& policy, std::string_view error_type);
}  // namespace dev_backend
