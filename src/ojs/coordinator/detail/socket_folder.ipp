// socket_folder: where a launcher and its children listen.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "../../base/detail/text.hpp"
#include "../../base/error.hpp"

namespace ojs::detail {

// Who may write to the folder could put a socket of his own in the place of ours. A sticky one keeps ours, once it is there.
inline result<void> check_folder(const std::string& folder, bool may_be_sticky) {
    struct stat found {};
    if (::stat(folder.c_str(), &found) != 0) {
        return error{errc::system, errno, cat({"cannot look at ", folder, ": ", errno_text(errno)})};
    }
    const bool owned = found.st_uid == ::geteuid() || found.st_uid == 0;
    const bool kept = (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
    const bool sticky = may_be_sticky && (found.st_mode & S_ISVTX) != 0;
    if (owned && (kept || sticky)) return {};
    return error{errc::invalid_argument, 0, cat({folder, " belongs to, or can be changed by, other users"})};
}
inline result<void> check_folder_of(const std::string& socket_path) {
    const std::size_t slash = socket_path.rfind('/');
    return check_folder(slash == 0 ? "/" : socket_path.substr(0, slash), true);
}

inline constexpr const char* own_folder_name = "/ojs-launcher-";

// With the sockets in it. What is not a launcher's own folder, of ours and 0700, stays.
inline void remove_own_folder(const std::string& path) {
    struct stat found {};
    const bool ours = ::lstat(path.c_str(), &found) == 0 &&
                      (found.st_mode | S_ISGID) == (S_IFDIR | S_ISGID | 0700) &&
                      found.st_uid == ::geteuid() && path.find(own_folder_name) != std::string::npos;
    DIR* const listing = ours ? ::opendir(path.c_str()) : nullptr;
    if (listing == nullptr) return;
    while (const dirent* const entry = ::readdir(listing)) ::unlinkat(::dirfd(listing), entry->d_name, 0);
    ::closedir(listing);
    ::rmdir(path.c_str());
}

class socket_folder {
  public:
    socket_folder() = default;
    socket_folder(const socket_folder&) = delete;
    socket_folder& operator=(const socket_folder&) = delete;
    ~socket_folder() { remove(); }

    // The given one, made if need be, and no other user's; without one, a new folder below $XDG_RUNTIME_DIR or /tmp. 0700.
    result<void> open(const std::string& given) {
        path_ = given;
        if (given.empty()) return make_own();
        if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return failure(errno);
        const result<void> safe = check_folder(path_, false);
        if (safe) return {};
        return error{safe.error().code, safe.error().sys_errno, "socket_folder: " + safe.error().text};
    }
    const std::string& path() const noexcept { return path_; }
    bool is_own() const noexcept { return own_; }  // made here, and removed at the end
    // Whether a socket of this name has a path that bind(2) takes.
    bool takes(std::size_t name_length) const noexcept {
        return path_.size() + 1 + name_length < sizeof(sockaddr_un::sun_path);
    }
    // Of our own folder, with what killed processes have left in it.
    void remove() {
        if (exchange(own_, false)) remove_own_folder(path_);
    }

  private:
    result<void> make_own() {
        const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
        path_ = cat({runtime != nullptr && *runtime == '/' ? runtime : "/tmp", own_folder_name, "XXXXXX"});
        own_ = ::mkdtemp(path_.data()) != nullptr;
        if (own_) return {};
        return failure(errno);
    }
    result<void> failure(int sys_errno) const {
        return error{errc::system, sys_errno, cat({"socket_folder ", path_, ": ", errno_text(sys_errno)})};
    }

    std::string path_;
    bool own_ = false;
};

}  // namespace ojs::detail
