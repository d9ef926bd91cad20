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
}  // namespace detail

[[noreturn]] OJS_SHUTDOWN_INLINE void detail::abort_with(const char* reason, std::string_view details) noexcept {
    write_line(STDERR_FILENO, cat({"error: ", reason, details}));
    std::abort();
}

}  // namespace v0_1_0
}  // namespace ojs
