#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include "../base/detail/files.ipp"
#include "../base/detail/text.hpp"
#include "termination_mode.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline std::int64_t change_time_ms(const struct stat& info) noexcept {
#ifdef __APPLE__
    const timespec& when = info.st_ctimespec;
#else
    const timespec& when = info.st_ctim;
#endif
    return static_cast<std::int64_t>(when.tv_sec) * 1000 + when.tv_nsec / 1000000;
}

// What a stop does, as one line for the log, in the words of the controller guide.
inline std::string describe_stop(const termination_mode& mode) {
    return cat({mode.found, !mode.is_reclaim() ? ", using graceful shutdown"
                            : mode.evidence == termination_evidence::reclaim
                                ? ", treating as spot instance reclaim"
                                : ", defaulting to spot instance reclaim mode"});
}

}  // namespace detail

OJS_SHUTDOWN_INLINE termination_mode read_termination_mode(const std::string& path) {
    using detail::file_status;
    const detail::small_file file = detail::read_small_file(path, 4096);
    const auto say = [&](termination_evidence evidence, std::string_view found) {
        return termination_mode{evidence, detail::cat({"File ", detail::printable(path, 200), found}),
                                detail::change_time_ms(file.info)};
    };
    if (file.status == file_status::missing) return say(termination_evidence::missing, " not found");
    if (file.status == file_status::not_regular)
        return say(termination_evidence::unreadable, " is not a regular file");
    if (file.status == file_status::unreadable)
        return say(termination_evidence::unreadable,
                   detail::cat({" cannot be read: ", detail::errno_text(file.sys_errno)}));
    if (file.info.st_uid != 0 && file.info.st_uid != ::geteuid())
        return say(termination_evidence::unreadable,
                   detail::cat({" belongs to user ", file.info.st_uid, " and counts as not found"}));
    if (file.is_truncated) return say(termination_evidence::other, " contains more than 4 KiB");
    const std::string_view word = detail::trim_blanks(file.text, " \t\r\n\v\f");
    if (word == "NORMAL_SHUTDOWN") return say(termination_evidence::normal, " contains NORMAL_SHUTDOWN");
    return say(word == "SPOT_RECLAIM" ? termination_evidence::reclaim : termination_evidence::other,
               detail::cat({" contains '", detail::printable(word, 40), "'"}));
}

}  // namespace v0_1_0
}  // namespace ojs
