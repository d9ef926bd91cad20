#pragma once

#include <unistd.h>

#include <cstdlib>

#include "detail/text.hpp"
#include "error.hpp"
#include "log.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
#if OJS_SHUTDOWN_SEPARATE
const char define_OJS_SHUTDOWN_IMPLEMENTATION_in_one_source_file = '\0';
#endif

[[noreturn]] OJS_SHUTDOWN_INLINE void abort_with(const char* reason, std::string_view details) noexcept {
    write_line(STDERR_FILENO, cat({"error: ", reason, details}));
    std::abort();
}
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
