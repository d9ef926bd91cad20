// signal_names: what signals are called, in one table.
#pragma once

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// "SIGTERM", ...; null for a number that POSIX does not name. Async-signal-safe.
const char* known_signal_name(int number) noexcept;
// Whether a process that does not handle it is ended by it.
bool ends_process(int number) noexcept;

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
