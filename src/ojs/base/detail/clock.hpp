// clock: the time of day, and how it is written. What waits uses the steady clock; see duration.hpp.
#pragma once

#include <cstdint>
#include <string>

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

std::int64_t wall_clock_ms() noexcept;  // since 1970
// ISO 8601: "2026-01-02T03:04:05.678Z".
std::string utc_text(std::int64_t ms_since_1970);
std::string utc_timestamp();  // of now

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
