#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "fd.hpp"
#include "small_file.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline small_file cannot_open(int failed) {
    small_file out;
    out.sys_errno = failed;
    if (failed == ENOENT || failed == ENOTDIR) out.status = file_status::missing;
    if (failed == ENXIO) out.status = file_status::not_regular;  // a socket
    return out;
}

OJS_SHUTDOWN_INLINE small_file read_small_file(const std::string& path, std::size_t limit) {
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
