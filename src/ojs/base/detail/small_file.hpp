// read_small_file: a file of somebody else's making, read up to a limit and without ever blocking.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

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

// Anything but a regular file (FIFO, folder, device, socket) is not read at all. Thread-safe.
small_file read_small_file(const std::string& path, std::size_t limit);

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
