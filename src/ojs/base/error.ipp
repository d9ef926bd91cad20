#pragma once

#include <unistd.h>

#include <cstdlib>

#include "detail/text.hpp"
#include "error.hpp"
#include "log.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(errc code) noexcept {
    static constexpr const char* names[] = {"invalid_argument", "unsupported", "busy",         "system",
                                            "timed_out",        "unreachable", "disconnected", "bad_response",
                                            "unavailable",      "rejected",    "cancelled"};
    return names[static_cast<std::size_t>(code)];
}

[[noreturn]] OJS_SHUTDOWN_INLINE void detail::abort_without_value(const error& failure) noexcept {
    write_line(STDERR_FILENO, cat({"error: the value of a failed result was read: ", failure.text}));
    std::abort();
}

}  // namespace v0_1_0
}  // namespace ojs
