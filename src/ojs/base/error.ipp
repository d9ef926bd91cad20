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

namespace detail {
#if OJS_SHUTDOWN_SEPARATE
const char define_OJS_SHUTDOWN_IMPLEMENTATION_in_one_source_file = '\0';
#endif
inline std::string copy_if_memory(std::string_view text) noexcept {
    try {
        return std::string(text);
    } catch (const std::bad_alloc&) {
        return {};
    }
}
}  // namespace detail

OJS_SHUTDOWN_INLINE error::error(errc why, int failed, const char* about, int status,
                                 std::chrono::milliseconds after) noexcept
    : error(why, failed, detail::copy_if_memory(about != nullptr ? about : ""), status, after) {}
OJS_SHUTDOWN_INLINE error::error(const error& other) noexcept
    : error(other.code, other.sys_errno, detail::copy_if_memory(other.text), other.http_status,
            other.retry_after) {}

[[noreturn]] OJS_SHUTDOWN_INLINE void detail::abort_with(const char* reason,
                                                         std::string_view details) noexcept {
    write_line(STDERR_FILENO, cat({"error: ", reason, details}));
    std::abort();
}

}  // namespace v0_1_0
}  // namespace ojs
