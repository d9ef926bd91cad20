#pragma once

#include <unistd.h>

#include "../base/detail/files.ipp"
#include "../base/detail/text.hpp"
#include "termination_mode.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// The text that follows "File /tmp/termination-type", without the conclusion.
inline termination_mode evaluate_mode_file(const small_file& file) {
    const std::string_view word = trim_blanks(file.text, " \t\r\n\v\f");
    switch (file.status) {
        case file_status::missing: return {termination_evidence::missing, " not found"};
        case file_status::not_regular: return {termination_evidence::unreadable, " is not a regular file"};
        case file_status::unreadable:
            return {termination_evidence::unreadable, cat({" cannot be read: ", errno_text(file.sys_errno)})};
        case file_status::read: break;
    }
    if (file.owner != 0 && file.owner != ::geteuid())
        return {termination_evidence::missing,
                cat({" belongs to user ", file.owner, ", neither to this one (", ::geteuid(),
                     ") nor to root, and counts as not found"})};
    if (file.is_truncated)
        return {termination_evidence::other,
                cat({" contains '", printable(word, 40), "' and more than 4 KiB"})};
    if (word == "NORMAL_SHUTDOWN")
        return {termination_evidence::normal, " contains NORMAL_SHUTDOWN, using graceful shutdown"};
    if (word == "SPOT_RECLAIM")
        return {termination_evidence::reclaim, " contains 'SPOT_RECLAIM', treating as spot instance reclaim"};
    return {termination_evidence::other, cat({" contains '", printable(word, 40), "'"})};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE termination_mode read_termination_mode(const std::string& path) {
    termination_mode out = detail::evaluate_mode_file(detail::read_small_file(path, 4096));
    const bool is_default_reclaim = out.evidence > termination_evidence::reclaim;
    out.message = detail::cat({"File ", detail::printable(path, 200), out.message,
                               is_default_reclaim ? ", defaulting to spot instance reclaim mode" : ""});
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
