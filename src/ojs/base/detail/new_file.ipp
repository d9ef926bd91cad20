// write_new_file: a file with its content on the disk, or none.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <string>
#include <string_view>

#include "fd.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline bool write_whole(int fd, std::string_view text) noexcept {
    while (!text.empty()) {
        const ssize_t wrote = ::write(fd, text.data(), text.size());
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) return false;
        text.remove_prefix(static_cast<std::size_t>(wrote));
    }
    return true;
}

// fsync(2), of a file or a folder; true as well where the file system has no such thing. False with errno.
inline bool sync_descriptor(int fd) noexcept {
    while (::fsync(fd) != 0) {
        if (errno == EINVAL || errno == EROFS) return true;
        if (errno != EINTR) return false;
    }
    return true;
}

// 0600, in `folder`, a descriptor or AT_FDCWD. 0 or the errno: EEXIST where something has the name. Thread-safe.
inline int write_new_file(int folder, const std::string& name, std::string_view text) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    unique_fd file(::openat(folder, name.c_str(), flags, 0600));
    if (!file) return errno;
    if (write_whole(file.get(), text) && sync_descriptor(file.get())) {
        if (::close(file.release()) == 0 || errno == EINTR) return 0;
    }
    const int failed = errno;
    ::unlinkat(folder, name.c_str(), 0);
    return failed;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
