#pragma once

#include <unistd.h>

#include "../base/detail/files.ipp"
#include "../base/detail/text.hpp"
#include "termination_mode.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// "File /tmp/termination-type": what every message begins with.
inline termination_mode judge_content(const std::string& file, const small_file& found) {
    const std::string_view word = trim_blanks(found.text, " \t\r\n\v\f");
    if (!found.is_cut && word == "NORMAL_SHUTDOWN") {
        return {termination_evidence::normal,
                cat({file, " contains NORMAL_SHUTDOWN, using graceful shutdown"})};
    }
    if (!found.is_cut && word == "SPOT_RECLAIM") {
        return {termination_evidence::reclaim,
                cat({file, " contains 'SPOT_RECLAIM', treating as spot instance reclaim"})};
    }
    return {termination_evidence::other,
            cat({file, " contains '", printable(word, 40), "'", found.is_cut ? " and more than 4 KiB" : "",
                 ", defaulting to spot instance reclaim mode"})};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE termination_mode read_termination_mode(const std::string& path) {
    const detail::small_file found = detail::read_small_file(path, 4096);
    const std::string file = detail::cat({"File ", detail::printable(path, 200)});
    constexpr const char* so = ", defaulting to spot instance reclaim mode";
    switch (found.status) {
        case detail::file_status::read:
            if (found.owner == 0 || found.owner == ::geteuid()) return detail::judge_content(file, found);
            return {termination_evidence::missing,
                    detail::cat({file, " belongs to user ", found.owner, ", neither to this one (",
                                 ::geteuid(), ") nor to root, and counts as not found", so})};
        case detail::file_status::missing:
            return {termination_evidence::missing, detail::cat({file, " not found", so})};
        case detail::file_status::not_regular:
            return {termination_evidence::unreadable, detail::cat({file, " is not a regular file", so})};
        case detail::file_status::unreadable: break;
    }
    return {termination_evidence::unreadable,
            detail::cat({file, " cannot be read: ", detail::errno_text(found.sys_errno), so})};
}

}  // namespace v0_1_0
}  // namespace ojs
