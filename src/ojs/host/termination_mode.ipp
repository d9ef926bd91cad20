#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include "../base/detail/files.ipp"
#include "../base/detail/text.hpp"
#include "termination_mode.hpp"

namespace ojs {
inline namespace v0_1_0 {
OJS_SHUTDOWN_INLINE termination_mode read_termination_mode(const std::string& path) {
    const result<detail::small_file> read = detail::read_small_file(path, 4096);
    const detail::small_file file = read.value_or({});
#ifdef __APPLE__
    const timespec& changed = file.info.st_ctimespec;
#else
    const timespec& changed = file.info.st_ctim;
#endif
    const auto say = [&](termination_evidence evidence, std::string_view found) {
        return termination_mode{evidence, detail::cat({"File ", detail::printable(path, 200), found}),
                                static_cast<std::int64_t>(changed.tv_sec) * 1000 + changed.tv_nsec / 1000000};
    };
    if (!read && detail::is_missing(read.error())) return say(termination_evidence::missing, " not found");
    if (!read) return say(termination_evidence::unreadable, " " + read.error().text);
    if (file.info.st_uid != 0 && file.info.st_uid != ::geteuid())
        return say(termination_evidence::unreadable,
                   detail::cat({" belongs to user ", file.info.st_uid, " and counts as not found"}));
    if (file.text.size() > 4096) return say(termination_evidence::other, " contains more than 4 KiB");
    const std::string_view word = detail::trim_blanks(file.text, " \t\r\n\v\f");
    if (word == "NORMAL_SHUTDOWN") return say(termination_evidence::normal, " contains NORMAL_SHUTDOWN");
    return say(word == "SPOT_RECLAIM" ? termination_evidence::reclaim : termination_evidence::other,
               detail::cat({" contains '", detail::printable(word, 40), "'"}));
}
}  // namespace v0_1_0
}  // namespace ojs
