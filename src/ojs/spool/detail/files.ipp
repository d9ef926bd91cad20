// What a spool directory asks of the file system: safe reading, crash-safe writing, moving without overwriting.
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <sys/vfs.h>
#elif defined(__APPLE__)
#include <sys/mount.h>
#include <sys/param.h>
#endif
#if OJS_SHUTDOWN_USE_INOTIFY
#include <sys/inotify.h>
#endif

#include <cstdio>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/files.ipp"
#include "../../base/detail/sync.hpp"
#include "../../net/json_view.ipp"
#include "../spool_transport.hpp"

namespace ojs::detail {

inline constexpr std::size_t max_spool_name_length = 200;  // what we add must fit into NAME_MAX
inline constexpr std::size_t max_spool_job_size =
    1024 * 1024;                                          // bytes; a few times that is in memory for each
inline constexpr std::size_t room_for_error = 64 * 1024;  // of that, for what is written into it later

inline error spool_error(std::string_view doing, int failed, errc code = errc::unavailable) {
    return {code, failed, cat({"spool: cannot ", doing, ": ", errno_text(failed)})};
}

// Of the caller.
inline error spool_misuse(std::initializer_list<text_part> what, int failed = 0) {
    return {errc::invalid_argument, failed, "spool: " + cat(what)};
}

inline bool is_out_of_room(const error& failure) noexcept {
    return failure.sys_errno == ENOSPC || failure.sys_errno == EDQUOT;
}

// ---- names ----

// Why a file of this name is not run; empty if it may be. What readdir() says holds no '/'.
inline std::string spool_name_fault(std::string_view name) {
    if (name.empty() || name.front() == '.') return "its name begins with a dot";
    if (name.size() > max_spool_name_length)
        return cat({"its name is longer than ", max_spool_name_length, " bytes"});
    for (std::string_view rest = name; !rest.empty();) {
        const std::size_t before = rest.size();
        const char first = rest.front();
        const std::string_view character = take_utf8(rest);
        if (character.size() > before - rest.size()) return "its name is not UTF-8";  // U+FFFD for one byte
        if ((first >= 0 && first < 0x20) || first == 0x7f || first == '/')
            return "its name holds a control character or a slash";
    }
    return {};
}

// ---- folders ----

inline int open_folder_at(int parent, const std::string& name) {
    return ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

inline bool same_file(const struct stat& a, const struct stat& b) noexcept {
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

// Whether a folder that is held open has been removed.
inline bool folder_is_gone(int folder) noexcept {
    struct stat about {};
    return ::fstat(folder, &about) != 0 || about.st_nlink == 0;
}

// Where a claimed file may end.
enum class spool_end : unsigned char { request, done, failed };
inline constexpr spool_end spool_ends[] = {spool_end::request, spool_end::done, spool_end::failed};
inline constexpr const char* spool_end_names[] = {"request", "done", "failed"};

// The directories, held open.
struct spool_folders : ref_counted {
    int end(spool_end which) const noexcept { return ends[static_cast<std::size_t>(which)].get(); }
    int request() const noexcept { return end(spool_end::request); }
    // Taken away, perhaps to be made anew.
    bool is_gone() const noexcept {
        struct stat there {};
        struct stat here {};
        if (::stat(path.c_str(), &there) != 0 || ::fstat(root.get(), &here) != 0) return true;
        for (const unique_fd* each : {&processing, &ends[0], &ends[1], &ends[2]})
            if (folder_is_gone(each->get())) return true;
        return !same_file(there, here);
    }

    std::string path;  // absolute
    unique_fd root;
    unique_fd processing;
    unique_fd ends[3];  // by spool_end
};

inline bool is_trusted_owner(uid_t owner) noexcept {
    return owner == 0 || owner == ::geteuid();
}

inline std::string of_stranger(uid_t owner) {
    return cat(
        {"it belongs to user ", static_cast<unsigned>(owner), ", who is neither the one we run as nor root"});
}

// Why jobs are not safe in a folder: who may write to it may exchange them, also under a sticky bit.
inline std::string folder_fault(const struct stat& about) {
    if (!is_trusted_owner(about.st_uid)) return of_stranger(about.st_uid);
    if ((about.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(about.st_mode & 07777));
    return cat({"others than its owner may write to it (mode ", mode, "): chmod go-w"});
}

inline result<void> check_folder(int folder, const std::string& doing) {
    struct stat about {};
    if (::fstat(folder, &about) != 0) return spool_error(doing, errno, errc::system);
    const std::string fault = folder_fault(about);
    if (fault.empty()) return {};
    return spool_misuse({"cannot ", doing, ": ", fault});
}

// One of the four, made where it is missing. `made` is set if so.
inline result<unique_fd> open_spool_folder(const spool_folders& spool, const char* name, bool& made) {
    const std::string doing = cat({"open ", printable(spool.path, 300), "/", name});
    unique_fd out(open_folder_at(spool.root.get(), name));
    if (!out && errno == ENOENT) {
        made = ::mkdirat(spool.root.get(), name, 0700) == 0;
        if (!made && errno != EEXIST) return spool_error(doing, errno, errc::system);
        out = unique_fd(open_folder_at(spool.root.get(), name));
    }
    if (!out) {
        const int failed = errno;
        if (failed != ELOOP && failed != ENOTDIR) return spool_error(doing, failed, errc::system);
        return spool_misuse({"cannot ", doing, ": not a directory"}, failed);
    }
    const result<void> safe = check_folder(out.get(), doing);
    if (!safe) return safe.error();
    return out;
}

// Of the symbolic link that `path` is, as anybody may make one in /tmp; ours where it is none.
inline uid_t link_owner(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    struct stat about {};
    const bool is_link = ::lstat(path.c_str(), &about) == 0 && S_ISLNK(about.st_mode);
    return is_link ? about.st_uid : ::geteuid();
}

inline result<void> open_spool_root(spool_folders& out, const std::string& directory, bool make, bool& made) {
    if (directory.empty()) return spool_misuse({"no directory is named"});
    if (directory.find('\0') != std::string::npos)
        return spool_misuse({"the directory's name holds a NUL byte"});
    const std::string doing = cat({"open ", printable(directory, 300)});
    made = make && ::mkdir(directory.c_str(), 0700) == 0;
    if (make && !made && errno != EEXIST) {
        const int failed = errno;
        if (::access(directory.c_str(), F_OK) != 0) return spool_error(doing, failed, errc::system);
    }
    if (const uid_t owner = link_owner(directory); !is_trusted_owner(owner))
        return spool_misuse({"cannot ", doing, ": it is a link of user ", static_cast<unsigned>(owner)});
    out.root = unique_fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!out.root) return spool_error(doing, errno, errc::system);
    const result<void> safe = check_folder(out.root.get(), doing);
    if (!safe) return safe;
    char* whole = ::realpath(directory.c_str(), nullptr);
    if (whole == nullptr) return spool_error(doing, errno, errc::system);
    out.path = whole;
    ::free(whole);
    return {};
}

// `make`: the directory itself as well, where it is missing.
inline result<ref<spool_folders>> open_spool_folders(const std::string& directory, bool make) {
    const ref<spool_folders> spool = make_ref<spool_folders>();
    spool_folders& out = *spool;
    bool made_root = false;
    const result<void> root = open_spool_root(out, directory, make, made_root);
    if (!root) return root.error();
    const struct {
        const char* name;
        unique_fd& fd;
    } folders[] = {{spool_end_names[0], out.ends[0]},
                   {spool_end_names[1], out.ends[1]},
                   {spool_end_names[2], out.ends[2]},
                   {"processing", out.processing}};
    bool made_any = false;
    dev_t device = 0;
    for (const auto& each : folders) {
        bool made = false;
        result<unique_fd> opened = open_spool_folder(out, each.name, made);
        if (!opened) return opened.error();
        each.fd = std::move(*opened);
        made_any = made_any || made;
        struct stat about {};
        if (::fstat(each.fd.get(), &about) != 0)
            return spool_error(cat({"open ", printable(out.path, 300)}), errno, errc::system);
        if (device != 0 && about.st_dev != device)
            return spool_misuse({printable(out.path, 300), "/", each.name,
                                 " is on another file system than request/, so that nothing can be renamed "
                                 "between them"},
                                EXDEV);
        device = about.st_dev;
    }
    if (made_any && !sync_descriptor(out.root.get()))
        return spool_error(cat({"write ", printable(out.path, 300)}), errno, errc::system);
    if (made_root) {
        const unique_fd parent(::openat(out.root.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (parent) sync_descriptor(parent.get());  // not ours: it may not be readable
    }
    return spool;
}

// Adds all names but . and .. ; 0 or the errno.
inline int list_folder(int folder, std::vector<std::string>& out) {
    const int copy = open_folder_at(folder, ".");  // a position of its own
    if (copy < 0) return errno;
    DIR* entries = ::fdopendir(copy);
    if (entries == nullptr) {
        const int failed = errno;
        ::close(copy);
        return failed;
    }
    errno = 0;
    while (const dirent* entry = ::readdir(entries)) {
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") out.push_back(std::string(name));
        errno = 0;
    }
    const int failed = errno;
    ::closedir(entries);
    return failed;
}

// ---- writing ----

inline result<void> write_new_spool_file(int folder, const std::string& name, std::string_view text) {
    const int failed = write_new_file(folder, name, text);
    return failed == 0 ? result<void>() : spool_error(cat({"write ", printable(name)}), failed);
}

// ---- moving ----

// rename(2) that fails with EEXIST instead of replacing. Returns 0 or the errno; ENOSYS: not on this file system.
inline int rename_no_replace([[maybe_unused]] int from, [[maybe_unused]] const std::string& name,
                             [[maybe_unused]] int to, [[maybe_unused]] const std::string& new_name) noexcept {
#if defined(__linux__) && defined(SYS_renameat2)
    constexpr unsigned no_replace = 1;  // RENAME_NOREPLACE, which older headers do not have
    if (::syscall(SYS_renameat2, from, name.c_str(), to, new_name.c_str(), no_replace) == 0) return 0;
    return errno == EINVAL ? ENOSYS : errno;
#else
    return ENOSYS;
#endif
}

// The same everywhere, for a file that is ours alone.
inline int rename_to_new(int from, const std::string& name, int to, const std::string& new_name) noexcept {
    const int failed = rename_no_replace(from, name, to, new_name);
    if (failed != ENOSYS) return failed;
    // A second link, and the first one taken away. In between, nobody claims it.
    if (::linkat(from, name.c_str(), to, new_name.c_str(), 0) != 0) return errno;
    return ::unlinkat(from, name.c_str(), 0) == 0 ? 0 : errno;
}

// For a file that others may want as well: two could both have a second link to it.
inline int rename_to_claim(int from, const std::string& name, int to) noexcept {
    const int failed = rename_no_replace(from, name, to, name);
    if (failed != ENOSYS) return failed;
    return ::renameat(from, name.c_str(), to, name.c_str()) == 0 ? 0 : errno;
}

// Of the file itself, not of what a link leads to. False with errno.
inline bool stat_at(int folder, const std::string& name, struct stat& out) noexcept {
    return ::fstatat(folder, name.c_str(), &out, AT_SYMLINK_NOFOLLOW) == 0;
}
inline bool exists_at(int folder, const std::string& name) noexcept {
    struct stat about {};
    return stat_at(folder, name, about);
}

// `name`, or where that is taken `name` with a number added that is not, found in few steps among any number of them.
inline std::string free_name(int folder, const std::string& name) {
    if (!exists_at(folder, name)) return name;
    const auto numbered = [&](std::uint64_t number) { return cat({name, ".", number}); };
    std::uint64_t taken = 0;
    std::uint64_t unused = 1;
    for (; exists_at(folder, numbered(unused)); unused *= 2) taken = unused;
    while (unused - taken > 1) {
        const std::uint64_t middle = taken + (unused - taken) / 2;
        (exists_at(folder, numbered(middle)) ? taken : unused) = middle;
    }
    return numbered(unused);
}

inline constexpr int max_name_attempts = 1000;  // in which somebody else was quicker each time

// Moves a file under its name or, where that is taken, with .1, .2, ... added. Returns the name.
inline result<std::string> move_spool_file(int from, const std::string& name, int to,
                                           const std::string& wanted) {
    std::string target = wanted;
    for (int left = max_name_attempts;; --left) {
        const int failed = rename_to_new(from, name, to, target);
        if (failed == 0) return target;
        if (failed != EEXIST || left == 0) return spool_error(cat({"move ", printable(name)}), failed);
        target = free_name(to, wanted);
    }
}

// ---- reading ----

// What a file is before anyone trusts it.
struct spool_file {
    int sys_errno = 0;    // it cannot be opened: why
    std::string refused;  // it is not to be run: why
    struct stat about {};
    unique_fd fd;
};

// By a read lease: 1: somebody has the file open for writing; 0: nobody; -1: the kernel does not say.
inline int is_open_for_writing(int fd) noexcept {
#if defined(__linux__) && defined(F_SETLEASE) && defined(F_SETSIG)
    // Who opens it meanwhile breaks the lease: we get SIGURG, ignored by default, not SIGIO, which ends us.
    if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return -1;
    if (::fcntl(fd, F_SETLEASE, F_RDLCK) == 0) {
        ::fcntl(fd, F_SETLEASE, F_UNLCK);
        return 0;
    }
    return errno == EAGAIN ? 1 : -1;
#else
    static_cast<void>(fd);
    return -1;
#endif
}

inline const char* kind_of_file(mode_t mode) noexcept {
    if (S_ISLNK(mode)) return "it is a symbolic link";
    if (S_ISDIR(mode)) return "it is a directory";
    if (S_ISFIFO(mode)) return "it is a FIFO";
    if (S_ISSOCK(mode)) return "it is a socket";
    return "it is a device";
}

// Opens a file that anyone may have put there. Nothing but a regular file is opened at all: even that may have effects.
inline spool_file open_spool_file(int folder, const std::string& name) {
    spool_file out;
    if (!stat_at(folder, name, out.about)) {
        out.sys_errno = errno;
        return out;
    }
    if (!S_ISREG(out.about.st_mode)) {
        out.refused = kind_of_file(out.about.st_mode);
    } else if (!is_trusted_owner(out.about.st_uid)) {
        out.refused = of_stranger(out.about.st_uid);
    } else if (out.about.st_nlink != 1) {
        out.refused = "it has more than one name (hard links)";
    }
    if (!out.refused.empty()) return out;
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    out.fd = unique_fd(::openat(folder, name.c_str(), flags));
    if (!out.fd) {
        out.sys_errno = errno;
        if (out.sys_errno == EACCES || out.sys_errno == EPERM) out.refused = "it may not be read";
        return out;
    }
    struct stat opened {};
    if (::fstat(out.fd.get(), &opened) != 0 || !same_file(opened, out.about))
        out.sys_errno = ENOENT;  // exchanged
    out.about = opened;
    return out;
}

// The whole file, or more than the first `max_spool_job_size` bytes of it. False with errno.
inline bool read_whole(int fd, std::string& out) {
    char part[16 * 1024];
    ssize_t got = 0;
    do {
        got = ::read(fd, part, sizeof part);
        if (got < 0 && errno != EINTR) return false;
        if (got > 0) out.append(part, static_cast<std::size_t>(got));
        // A regular file gives less than was asked for at its end alone.
    } while (got < 0 || (got == sizeof part && out.size() <= max_spool_job_size));
    return true;
}

// A file of our own making; empty where there is none that can be read.
inline std::string read_own_file(int folder, const std::string& name) {
    const spool_file file = open_spool_file(folder, name);
    std::string out;
    if (!file.fd || file.sys_errno != 0 || !read_whole(file.fd.get(), out)) out.clear();
    return out;
}

inline std::int64_t modified_ns(const struct stat& about) noexcept {
#ifdef __APPLE__
    const timespec changed = about.st_mtimespec;
#else
    const timespec changed = about.st_mtim;
#endif
    return static_cast<std::int64_t>(changed.tv_sec) * 1000000000 + changed.tv_nsec;
}

// Tells a file from another, or another content, that has its name later: an inode's number is given out again.
inline std::string identity_of(const struct stat& about) {
    return cat({static_cast<unsigned long>(about.st_ino), "-", static_cast<std::int64_t>(about.st_size), "-",
                modified_ns(about)});
}

// How long ago a file was last changed; negative for a time to come.
inline std::chrono::milliseconds age_of(const struct stat& about) noexcept {
    return std::chrono::milliseconds(wall_clock_ms() - modified_ns(about) / 1000000);
}

}  // namespace ojs::detail
