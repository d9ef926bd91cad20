// signal_names: what signals are called, in one table.
#pragma once

#include <string_view>

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr int signal_limit = 128;  // every number is below it

// "SIGTERM", ...; null for a number that POSIX does not name. Async-signal-safe.
const char* known_signal_name(int number) noexcept;
// The number of "TERM", "SIGTERM", "RTMIN+3", "RTMAX-1" or "15"; 0 for an unknown signal.
int signal_number(std::string_view name) noexcept;
bool is_realtime(int number) noexcept;
// Why it cannot be a stop signal, as text that follows its name; null: it can. `reclaim`: SIGUSR1 means reclaim.
const char* stop_signal_fault(int number, bool reclaim) noexcept;
// Whether a process that does not handle it is ended by it.
bool ends_process(int number) noexcept;

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
