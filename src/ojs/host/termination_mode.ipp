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

// In the words of the controller guide.
inline std::string describe_stop(const termination_mode& mode) {
    return cat({mode.found, !mode.is_reclaim() ? ", using graceful shutdown"
                            : mode.evidence == termination_evidence::reclaim
                                ? ", treating as spot instance reclaim"
                                : ", defaulting to spot instance reclaim mode"});
}
}  // namespace detail

OJS_SHUTDOWN_INLINE termination_mode read_termination_mode(const std::string& path) {
    const result<detail::small_file> read = detail::read_small_file(path, 4096);
    const detail::small_file file = read.value_or({});
    const auto say = [&](termination_evidence evidence, std::string_view found) {
        return termination_mode{evidence, detail::cat({"File ", detail::printable(path, 200), found}),
                                detail::change_time_ms(file.info)};
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
