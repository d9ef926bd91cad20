#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include "../base/detail/files.ipp"
#include "../base/detail/text.hpp"
#include "../core/shutdown_sequence.hpp"
#include "termination_mode.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Whether only the file's owner, root and this process's user can write it and replace it in its folder.
inline bool is_only_owners(const std::string& path, const struct stat& file) {
    constexpr mode_t by_others = S_IWGRP | S_IWOTH;
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == path.npos ? "." : path.substr(0, slash + 1);
    struct stat entry {};
    struct stat around {};
    if (::lstat(path.c_str(), &entry) != 0 || ::stat(folder.c_str(), &around) != 0) return false;
    const bool is_file = entry.st_ino == file.st_ino && entry.st_dev == file.st_dev;  // no link
    const bool is_trusted_folder =
        around.st_uid == 0 || around.st_uid == ::geteuid() || around.st_uid == file.st_uid;
    const bool is_kept = (around.st_mode & by_others) == 0 || (around.st_mode & S_ISVTX) != 0;
    return is_file && is_trusted_folder && is_kept && (file.st_mode & by_others) == 0;
}

inline std::int64_t change_time_ms(const struct stat& info) noexcept {
#ifdef __APPLE__
    const timespec& when = info.st_ctimespec;
#else
    const timespec& when = info.st_ctim;
#endif
    return static_cast<std::int64_t>(when.tv_sec) * 1000 + when.tv_nsec / 1000000;
}

// What follows "File /tmp/termination-type", without the conclusion.
inline termination_mode evaluate_mode_file(const std::string& path) {
    const small_file file = read_small_file(path, 4096);
    const std::string_view word = trim_blanks(file.text, " \t\r\n\v\f");
    const auto say = [&](termination_evidence evidence, std::string found) {
        return termination_mode{evidence, {}, std::move(found), change_time_ms(file.info)};
    };
    switch (file.status) {
        case file_status::missing: return say(termination_evidence::missing, " not found");
        case file_status::not_regular: return say(termination_evidence::unreadable, " is not a regular file");
        case file_status::unreadable:
            return say(termination_evidence::unreadable,
                       cat({" cannot be read: ", errno_text(file.sys_errno)}));
        case file_status::read: break;
    }
    if (file.owner != 0 && file.owner != ::geteuid() && !is_only_owners(path, file.info))
        return say(termination_evidence::other_owner,
                   cat({" belongs to user ", file.owner,
                        ", others can write or replace it, and it counts as not found"}));
    if (file.is_truncated)
        return say(termination_evidence::other,
                   cat({" contains '", printable(word, 40), "' and more than 4 KiB"}));
    if (word == "NORMAL_SHUTDOWN") return say(termination_evidence::normal, " contains NORMAL_SHUTDOWN");
    if (word == "SPOT_RECLAIM") return say(termination_evidence::reclaim, " contains 'SPOT_RECLAIM'");
    return say(termination_evidence::other, cat({" contains '", printable(word, 40), "'"}));
}

struct mode_read : ref_counted {
    termination_mode found{termination_evidence::unreadable, {}, " does not answer"};
};
inline atomic<int> mode_reads{0};

// On another thread, for a second: a disk that does not answer must not hold up the caller. Each hung read holds a
// thread, so there are at most 64.
inline termination_mode read_mode_file(const std::string& path) {
    const ref<mode_read> read = make_ref<mode_read>();
    if (mode_reads.load() >= 64) return read->found;
    mode_reads.fetch_add(1);
    shutdown_sequence once;
    const auto step = [read, path] {
        attempt([&] { read->found = evaluate_mode_file(path); });
        mode_reads.fetch_sub(1);
    };
    once.add("mode file", step, std::chrono::seconds(1));
    sequence_options options;
    options.log.level = log_level::off;
    return once.run(options)[0].status == step_status::done ? std::move(read->found) : mode_read().found;
}

}  // namespace detail

OJS_SHUTDOWN_INLINE termination_mode read_termination_mode(const std::string& path) {
    termination_mode out = detail::read_mode_file(path);
    out.found = detail::cat({"File ", detail::printable(path, 200), out.found});
    const bool is_reclaim = out.evidence == termination_evidence::reclaim;
    out.message = detail::cat({out.found, !out.is_reclaim() ? ", using graceful shutdown"
                                          : is_reclaim      ? ", treating as spot instance reclaim"
                                                            : ", defaulting to spot instance reclaim mode"});
    return out;
}

}  // namespace v0_1_0
}  // namespace ojs
