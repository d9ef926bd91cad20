// read_small_file: a file of somebody else's making, read up to a limit and without ever blocking.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <string>

#include "fd.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

enum class file_status { read, missing, not_regular, unreadable };

struct small_file {
    file_status status = file_status::unreadable;
    int sys_errno = 0;    // why, where it is missing or unreadable
    bool is_cut = false;  // it is longer than the limit
    uid_t owner = 0;      // where it was read
    std::string text;     // at most the limit
};

inline small_file cannot_open(int failed) {
    small_file out;
    out.sys_errno = failed;
    if (failed == ENOENT || failed == ENOTDIR) out.status = file_status::missing;
    if (failed == ENXIO) out.status = file_status::not_regular;  // a socket
    return out;
}

// Anything but a regular file (FIFO, folder, device, socket) is not read at all. Thread-safe.
inline small_file read_small_file(const std::string& path, std::size_t limit) {
    // O_NONBLOCK: a FIFO without a writer opens at once.
    const unique_fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!file) return cannot_open(errno);
    small_file out;
    struct stat about {};
    if (::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode)) {
        out.status = file_status::not_regular;
        return out;
    }
    out.owner = about.st_uid;
    char buffer[4096];
    ssize_t got = 1;
    while (got != 0 && out.text.size() <= limit) {
        got = ::read(file.get(), buffer, sizeof buffer);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            out.sys_errno = errno;
            return out;
        }
        out.text.append(buffer, static_cast<std::size_t>(got));
    }
    out.status = file_status::read;
    out.is_cut = out.text.size() > limit;
    if (out.is_cut) out.text.resize(limit);
    return out;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
