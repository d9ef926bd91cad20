// write_new_file: a file with its content on the disk, or none.
#pragma once

#include <string>
#include <string_view>

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// 0600, in `folder`, a descriptor or AT_FDCWD. 0 or the errno: EEXIST where something has the name. Thread-safe.
int write_new_file(int folder, const std::string& name, std::string_view text);

// fsync(2), of a file or a folder; true as well where the file system has no such thing. False with errno.
bool sync_descriptor(int fd) noexcept;

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
