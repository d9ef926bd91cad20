// verdict: what to tell the backend about a job.
#pragma once

#include "../../base/log.hpp"
#include "../../core/cancel_token.hpp"
#include "../transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What the backend was told of a job, or that it had taken it back. More are unreported, by name.
enum class job_end : std::uint8_t { completed, failed, interrupted, handed_back, gone };
inline constexpr std::size_t job_end_count = 5;

// What to tell the backend about a job, and what that makes of it.
struct verdict {
    bool ack = false;
    std::string result_json;  // ACK
    job_error failure;        // FAIL
    std::string checkpoint;   // FAIL: JSON; empty: none
    bool requeue = false;     // FAIL
    job_end end = job_end::completed;
    const char* message = "job completed";
    log_level level = log_level::debug;
    cancel_reason reason = cancel_reason::none;  // of an interruption
    int signal = 0;                              // behind it, if there is one
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
