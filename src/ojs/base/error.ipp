#pragma once

#include <unistd.h>

#include <cstdlib>

#include "detail/text.hpp"
#include "error.hpp"
#include "log.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE const char* to_string(errc code) noexcept {
    switch (code) {
        case errc::invalid_argument: return "invalid_argument";
        case errc::unsupported: return "unsupported";
        case errc::busy: return "busy";
        case errc::system: return "system";
        case errc::timed_out: return "timed_out";
        case errc::unreachable: return "unreachable";
        case errc::disconnected: return "disconnected";
        case errc::bad_answer: return "bad_answer";
        case errc::unavailable: return "unavailable";
        case errc::rejected: return "rejected";
        case errc::cancelled: return "cancelled";
    }
    return "unknown";
}

[[noreturn]] OJS_SHUTDOWN_INLINE void detail::end_without_value(const error& failure) noexcept {
    write_line(STDERR_FILENO, cat({"error: the value of a failed result was read: ", failure.text}));
    std::abort();
}

}  // namespace v0_1_0
}  // namespace ojs
