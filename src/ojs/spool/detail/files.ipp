// The file system below a spool: safe reading, crash-safe writing, moving without overwriting.
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

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/files.ipp"
#include "../../base/detail/sync.hpp"
#include "../../net/http_message.ipp"
#include "../../net/json_view.ipp"
#include "../spool_transport.hpp"

namespace ojs::detail {
inline constexpr std::size_t max_spool_name_length = 200;       // with our prefix and .N it fits into NAME_MAX
inline constexpr std::size_t max_spool_job_size = 1024 * 1024;  // bytes, as users put it
inline constexpr std::size_t reserved_job_size = 64 * 1024;     // for what we add: the error, the counts
inline constexpr std::size_t max_spool_file_size = max_spool_job_size + reserved_job_size;

inline error spool_error(std::string_view action, int errnum, errc code = errc::unavailable) {
    return {code, errnum, cat({"spool: cannot ", action, ": ", errno_text(errnum)})};
}

inline error spool_usage_error(std::initializer_list<text_part> parts, int errnum = 0) {
    return {errc::invalid_argument, errnum, "spool: " + cat(parts)};
}

inline bool is_disk_full(const error& failure) noexcept {
    return failure.sys_errno == ENOSPC || failure.sys_errno == EDQUOT;
}

// Without the ".N" of a collision, where only that makes the name too long.
inline std::string_view name_as_put(std::string_view name) noexcept {
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    const bool is_ours = name.size() > max_spool_name_length && digits > 1 && digits < name.size() &&
                         name.size() - digits <= 20 && name[digits - 1] == '.';
    return is_ours ? name.substr(0, digits - 1) : name;
}

// Whether editors, package managers, downloads or file managers name their copies so: run, a job would run twice.
inline bool is_side_name(std::string_view name) noexcept {
    static constexpr std::string_view ends[] = {
        "~",       ".bak",      ".backup",      ".orig",       ".old",        ".rej",     ".save",
        ".tmp",    ".temp",     ".part",        ".partial",    ".swp",        ".swo",     ".swn",
        ".swx",    ".filepart", ".crdownload",  ".download",   ".opdownload", ".rpmsave", ",v",
        ".rpmnew", ".rpmorig",  "___jb_tmp___", "___jb_old___"};
    static constexpr std::string_view parts[] = {".sync-conflict-", "conflicted copy", "(copy)",   "(copy ",
                                                 " copy)",          " - Copy.",        " - Copy ("};
    const auto has_end = [&](std::string_view end) {
        return name.size() >= end.size() && equals_ignore_case(name.substr(name.size() - end.size()), end);
    };
    if (name.substr(0, 1) == "#" || name.substr(0, 2) == "~$" || name == "4913") return true;  // Emacs, Office, vim
    if (name.size() == 9 && name.substr(0, 3) == "sed" && all_of(name, is_alphanumeric)) return true;
    const std::string_view extension = name.substr(std::min(name.rfind('.'), name.size()));
    if (extension.substr(0, 6) == ".dpkg-" || extension.substr(0, 5) == ".ucf-") return true;
    return std::any_of(std::begin(ends), std::end(ends), has_end) ||
           std::any_of(std::begin(parts), std::end(parts), [&](auto part) { return name.find(part) != name.npos; });
}

// Why a file of this name is refused; empty: it is not. A slash can only come from spool_enqueue().
inline std::string spool_name_fault(std::string_view name, bool accept_backup_names = false) {
    if (name.empty() || name.front() == '.') return "its name begins with a dot";
    if (name.size() > max_spool_name_length) return cat({"its name is longer than ", max_spool_name_length, " bytes"});
    for (std::string_view rest = name; !rest.empty();) {
        const character next = take_character(rest);
        if (next.code == character::none) return "its name is not UTF-8";
        if (next.code < 0x20 || next.code == 0x7f || next.code == '/')
            return "its name contains a control character or a slash";
    }
    if (accept_backup_names || !is_side_name(name)) return {};
    return "its name is that of a backup, a partial or a temporary file: rename it to run it";
}

inline int open_folder_at(int parent, const std::string& name) {
    return ::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

inline bool is_same_file(const struct stat& a, const struct stat& b) noexcept {
    return a.st_ino == b.st_ino && a.st_dev == b.st_dev;
}

inline bool is_folder_removed(int folder) noexcept {
    struct stat info {};
    return ::fstat(folder, &info) != 0 || info.st_nlink == 0;
}

// The folder that a settled file is moved to.
enum class spool_target : unsigned char { request, done, failed };
inline constexpr spool_target spool_targets[] = {spool_target::request, spool_target::done, spool_target::failed};
inline constexpr const char* spool_target_names[] = {"request", "done", "failed"};

struct spool_folders : ref_counted {
    int folder(spool_target target) const noexcept { return targets[static_cast<std::size_t>(target)].get(); }
    int request() const noexcept { return folder(spool_target::request); }
    // Also true when another directory has replaced it.
    bool is_removed() const noexcept {
        struct stat at_path {};
        struct stat opened {};
        if (::stat(path.c_str(), &at_path) != 0 || ::fstat(root.get(), &opened) != 0) return true;
        for (const unique_fd* folder : {&processing, &targets[0], &targets[1], &targets[2]})
            if (is_folder_removed(folder->get())) return true;
        return !is_same_file(at_path, opened);
    }

    std::string path;  // absolute
    bool allow_group_writable = false;
    unique_fd root;
    unique_fd processing;
    unique_fd targets[3];  // by spool_target
};

inline bool is_trusted_owner(uid_t owner) noexcept { return owner == 0 || owner == ::geteuid(); }

inline std::string untrusted_owner_text(uid_t owner) {
    return cat(
        {"it belongs to user ", static_cast<unsigned>(owner), ", neither the worker's user nor root: run chown"});
}

inline bool is_own_group(gid_t group) {
    gid_t groups[1024];  // more: only the effective one counts
    const int count = ::getgroups(1024, groups);
    return group == ::getegid() || (count > 0 && std::find(groups, groups + count, group) != groups + count);
}

inline constexpr const char* group_write_variable = "OJS_SPOOL_GROUP_WRITE";

// Why jobs are not safe in a folder. A sticky bit does not stop a writer from exchanging them.
inline std::string folder_fault(const struct stat& info, bool allow_group_writable) {
    if (!is_trusted_owner(info.st_uid)) return untrusted_owner_text(info.st_uid);
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) == 0) return {};
    const bool only_group = (info.st_mode & S_IWOTH) == 0;
    if (only_group && allow_group_writable && is_own_group(info.st_gid)) return {};
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    if (!only_group) return cat({"other users may write to it (mode ", mode, "): run chmod go-w"});
    return cat({"group ", static_cast<unsigned>(info.st_gid), " may write to it (mode ", mode,
                "), as Kubernetes' fsGroup sets it at each mount: run workers in that group, and nobody ",
                "else, and set ", group_write_variable,
                "=on; or run chmod go-w, and set fsGroupChangePolicy: OnRootMismatch"});
}

inline result<bool> read_group_write(bool option) {
    const char* const value = ::getenv(group_write_variable);
    const std::string_view word = value != nullptr ? value : "";
    if (word == "on" || word == "off") return word == "on" || option;
    if (word.empty()) return option;
    return spool_usage_error({group_write_variable, "='", printable(word, 100), "' is neither on nor off"});
}

inline result<void> check_folder(int folder, const std::string& action, bool allow_group_writable) {
    struct stat info {};
    if (::fstat(folder, &info) != 0) return spool_error(action, errno, errc::system);
    const std::string fault = folder_fault(info, allow_group_writable);
    if (fault.empty()) return {};
    return spool_usage_error({"cannot ", action, ": ", fault});
}

// Opens one of the four folders; sets `created` when it was missing.
inline result<unique_fd> open_spool_folder(const spool_folders& spool, const char* name, bool& created) {
    const std::string action = cat({"open ", printable(spool.path, 300), "/", name});
    unique_fd out(open_folder_at(spool.root.get(), name));
    if (!out && errno == ENOENT) {
        created = ::mkdirat(spool.root.get(), name, 0700) == 0;
        if (!created && errno != EEXIST) return spool_error(action, errno, errc::system);
        out = unique_fd(open_folder_at(spool.root.get(), name));
    }
    if (!out) {
        const int errnum = errno;
        if (errnum != ELOOP && errnum != ENOTDIR) return spool_error(action, errnum, errc::system);
        return spool_usage_error({"cannot ", action, ": not a directory"}, errnum);
    }
    const result<void> safe = check_folder(out.get(), action, spool.allow_group_writable);
    if (!safe) return safe.error();
    return out;
}

// The owner of the symbolic link `path`, which anybody may create in /tmp; our own user if it is no link.
inline uid_t link_owner(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    struct stat info {};
    const bool is_link = ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
    return is_link ? info.st_uid : ::geteuid();
}

inline result<void> open_spool_root(spool_folders& out, const std::string& directory, bool create, bool& created) {
    if (directory.empty()) return spool_usage_error({"the directory's name is empty"});
    if (directory.find('\0') != std::string::npos)
        return spool_usage_error({"the directory's name contains a NUL byte"});
    const std::string action = cat({"open ", printable(directory, 300)});
    created = create && ::mkdir(directory.c_str(), 0700) == 0;
    if (create && !created && errno != EEXIST) {
        const int errnum = errno;
        // Its disk may not be mounted yet, whatever forbids to create it.
        if (::access(directory.c_str(), F_OK) != 0 && errno == ENOENT)
            return spool_error(cat({"create ", printable(directory, 300)}), errnum);
    }
    if (const uid_t owner = link_owner(directory); !is_trusted_owner(owner))
        return spool_usage_error({"cannot ", action, ": it is a symbolic link of user ", static_cast<unsigned>(owner)});
    out.root = unique_fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!out.root) return spool_error(action, errno, errc::system);
    result<void> safe = check_folder(out.root.get(), action, out.allow_group_writable);
    if (!safe) return safe;
    char* resolved = ::realpath(directory.c_str(), nullptr);
    if (resolved == nullptr) return spool_error(action, errno, errc::system);
    out.path = resolved;
    ::free(resolved);
    return {};
}

// fsync(2) of a file or folder; true also on a file system that has none. False with errno.
inline bool sync_descriptor(int fd) noexcept {
    while (::fsync(fd) != 0) {
        if (errno == EINVAL || errno == EROFS) return true;
        if (errno != EINTR) return false;
    }
    return true;
}

// `create`: also creates a missing root.
inline result<ref<spool_folders>> open_spool_folders(const std::string& directory, bool create,
                                                     bool allow_group_writable = false) {
    ref<spool_folders> spool = make_ref<spool_folders>();
    spool_folders& out = *spool;
    const result<bool> group = read_group_write(allow_group_writable);
    if (!group) return group.error();
    out.allow_group_writable = *group;
    bool created_root = false;
    const result<void> root = open_spool_root(out, directory, create, created_root);
    if (!root) return root.error();
    const struct {
        const char* name;
        unique_fd& fd;
    } folders[] = {{spool_target_names[0], out.targets[0]},
                   {spool_target_names[1], out.targets[1]},
                   {spool_target_names[2], out.targets[2]},
                   {"processing", out.processing}};
    bool created_any = false;
    for (const auto& folder : folders) {
        bool created = false;
        result<unique_fd> opened = open_spool_folder(out, folder.name, created);
        if (!opened) return opened.error();
        folder.fd = std::move(*opened);
        created_any = created_any || created;
    }
    if (created_any && !sync_descriptor(out.root.get()))
        return spool_error(cat({"write ", printable(out.path, 300)}), errno, errc::system);
    if (created_root) {
        const unique_fd parent(::openat(out.root.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (parent) sync_descriptor(parent.get());  // best effort: it may not be readable
    }
    return spool;
}

// Adds all names but "." and "..". Returns 0 or the errno.
inline int list_folder(int folder, std::vector<std::string>& out) {
    const int copy = open_folder_at(folder, ".");  // has a read position of its own
    if (copy < 0) return errno;
    DIR* entries = ::fdopendir(copy);
    if (entries == nullptr) {
        const int errnum = errno;
        ::close(copy);
        return errnum;
    }
    errno = 0;
    while (const dirent* entry = ::readdir(entries)) {
        const std::string_view name = entry->d_name;
        if (name != "." && name != "..") out.push_back(std::string(name));
        errno = 0;
    }
    const int errnum = errno;
    ::closedir(entries);
    return errnum;
}

// Creates and syncs a file of mode 0600 in `folder` (or AT_FDCWD). 0 or errno; EEXIST: name taken. Thread-safe.
inline int write_new_file(int folder, const std::string& name, std::string_view text) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    unique_fd file(::openat(folder, name.c_str(), flags, 0600));
    if (!file) return errno;
    const write_signals_blocked blocked;
    if (write_text(file.get(), text, never) && sync_descriptor(file.get())) {
        if (::close(file.release()) == 0 || errno == EINTR) return 0;
    }
    const int failed = errno;
    ::unlinkat(folder, name.c_str(), 0);
    return failed;
}

inline result<void> write_new_spool_file(int folder, const std::string& name, std::string_view text) {
    const int errnum = write_new_file(folder, name, text);
    return errnum == 0 ? result<void>() : spool_error(cat({"write ", printable(name)}), errnum);
}

// rename(2) that fails with EEXIST instead of replacing. Returns 0 or the errno; ENOSYS: not supported here, or
// denied by a container runtime that does not know the call (EPERM).
inline int rename_no_replace([[maybe_unused]] int from, [[maybe_unused]] const std::string& name,
                             [[maybe_unused]] int to, [[maybe_unused]] const std::string& new_name) noexcept {
#if defined(__linux__) && defined(SYS_renameat2)
    constexpr unsigned no_replace = 1;  // RENAME_NOREPLACE, which older headers do not have
    if (::syscall(SYS_renameat2, from, name.c_str(), to, new_name.c_str(), no_replace) == 0) return 0;
    return errno == EINVAL || errno == EPERM ? ENOSYS : errno;
#else
    return ENOSYS;
#endif
}

// Does not follow a symbolic link. False with errno.
inline bool stat_at(int folder, const std::string& name, struct stat& out) noexcept {
    return ::fstatat(folder, name.c_str(), &out, AT_SYMLINK_NOFOLLOW) == 0;
}
inline bool exists_at(int folder, const std::string& name) noexcept {
    struct stat info {};
    return stat_at(folder, name, info);
}

inline int check_and_rename(int from, const std::string& name, int to, const std::string& new_name) noexcept {
    if (exists_at(to, new_name)) return EEXIST;
    return ::renameat(from, name.c_str(), to, new_name.c_str()) == 0 ? 0 : errno;
}

// rename_no_replace() for every file system, for a file that only this process moves.
inline int rename_to_new(int from, const std::string& name, int to, const std::string& new_name) noexcept {
    const int errnum = rename_no_replace(from, name, to, new_name);
    if (errnum != ENOSYS) return errnum;
    // No worker claims the file while it has two names.
    if (::linkat(from, name.c_str(), to, new_name.c_str(), 0) == 0) {
        if (::unlinkat(from, name.c_str(), 0) == 0) return 0;
        const int failed = errno;
        ::unlinkat(to, new_name.c_str(), 0);
        return failed;
    }
    if (errno != EPERM && errno != EOPNOTSUPP) return errno;
    return check_and_rename(from, name, to, new_name);  // no links here, or not of another user's file
}

// For a file that several processes claim: by link() and unlink() two could both get it.
inline int rename_to_claim(int from, const std::string& name, int to) noexcept {
    const int errnum = rename_no_replace(from, name, to, name);
    return errnum == ENOSYS ? check_and_rename(from, name, to, name) : errnum;
}

// `name`, or `name.N` with an unused N, found by doubling and bisection.
inline std::string find_free_name(int folder, const std::string& name) {
    if (!exists_at(folder, name)) return name;
    const auto numbered = [&](std::uint64_t number) { return cat({name_as_put(name), ".", number}); };
    std::uint64_t taken = 0;
    std::uint64_t unused = 1;
    for (; exists_at(folder, numbered(unused)); unused *= 2) taken = unused;
    while (unused - taken > 1) {
        const std::uint64_t middle = taken + (unused - taken) / 2;
        (exists_at(folder, numbered(middle)) ? taken : unused) = middle;
    }
    return numbered(unused);
}

inline constexpr int max_name_attempts = 1000;  // each lost to another process

// Moves a file to `new_name` or, if that is taken, to new_name.N. Returns the name.
inline result<std::string> move_spool_file(int from, const std::string& name, int to, const std::string& new_name) {
    std::string target = new_name;
    for (int left = max_name_attempts;; --left) {
        const int errnum = rename_to_new(from, name, to, target);
        if (errnum == 0) return target;
        if (errnum != EEXIST || left == 0) return spool_error(cat({"move ", printable(name)}), errnum);
        target = find_free_name(to, new_name);
    }
}

// A file that has not been read yet.
struct spool_file {
    int sys_errno = 0;    // why it cannot be opened
    std::string refused;  // why it must not be run
    struct stat info {};
    unique_fd fd;
};

enum class writers { none, some, hidden, unknown };  // hidden: those of another user's file; unknown: of any

// By a read lease, which the kernel gives only for a file that no process has open for writing.
inline writers find_writers(int fd) noexcept {
#if defined(__linux__) && defined(F_SETLEASE) && defined(F_SETSIG)
    // A process that opens the file breaks the lease. SIGURG is ignored by default; SIGIO would kill us.
    if (::fcntl(fd, F_SETSIG, SIGURG) != 0) return writers::unknown;
    if (::fcntl(fd, F_SETLEASE, F_RDLCK) == 0) {
        ::fcntl(fd, F_SETLEASE, F_UNLCK);
        return writers::none;
    }
    return errno == EAGAIN ? writers::some : errno == EACCES ? writers::hidden : writers::unknown;
#else
    static_cast<void>(fd);
    return writers::unknown;
#endif
}

inline const char* describe_file_type(mode_t mode) noexcept {
    if (S_ISLNK(mode)) return "it is a symbolic link";
    if (S_ISDIR(mode)) return "it is a directory";
    if (S_ISFIFO(mode)) return "it is a FIFO";
    if (S_ISSOCK(mode)) return "it is a socket";
    return "it is a device";
}

// Opens an untrusted file. Only a regular file is opened: opening a FIFO or a device has side effects.
inline spool_file open_spool_file(int folder, const std::string& name) {
    spool_file out;
    if (!stat_at(folder, name, out.info)) {
        out.sys_errno = errno;
        return out;
    }
    if (!S_ISREG(out.info.st_mode)) {
        out.refused = describe_file_type(out.info.st_mode);
    } else if (!is_trusted_owner(out.info.st_uid)) {
        out.refused = untrusted_owner_text(out.info.st_uid);
    } else if (out.info.st_nlink != 1) {
        out.refused = "it has more than one name (hard links)";
    }
    if (!out.refused.empty()) return out;
    const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    out.fd = unique_fd(::openat(folder, name.c_str(), flags));
    if (!out.fd) {
        out.sys_errno = errno;
        if (out.sys_errno == EACCES || out.sys_errno == EPERM) out.refused = "it is not readable";
        return out;
    }
    struct stat opened {};
    if (::fstat(out.fd.get(), &opened) != 0 || !is_same_file(opened, out.info))
        out.sys_errno = ENOENT;  // another file has replaced it
    out.info = opened;
    return out;
}

// Appends the file; stops after more than `max_spool_file_size` bytes. False with errno.
inline bool read_all(int fd, std::string& out) {
    char part[16 * 1024];
    ssize_t got = 0;
    do {
        got = ::read(fd, part, sizeof part);
        if (got < 0 && errno != EINTR) return false;
        if (got > 0) out.append(part, static_cast<std::size_t>(got));
        // A short read means the end of a regular file.
    } while (got < 0 || (got == sizeof part && out.size() <= max_spool_file_size));
    return true;
}

// A file that this library wrote; empty if it is missing or unreadable.
inline std::string read_own_file(int folder, const std::string& name) {
    const spool_file file = open_spool_file(folder, name);
    std::string out;
    if (!file.fd || file.sys_errno != 0 || !read_all(file.fd.get(), out)) out.clear();
    return out;
}

inline std::int64_t modified_ns(const struct stat& info) noexcept {
#ifdef __APPLE__
    const timespec changed = info.st_mtimespec;
#else
    const timespec changed = info.st_mtim;
#endif
    return static_cast<std::int64_t>(changed.tv_sec) * 1000000000 + changed.tv_nsec;
}

// Distinguishes a file from a later one of its name; the kernel reuses inode numbers.
inline std::string identity_of(const struct stat& info) {
    return cat({static_cast<std::uint64_t>(info.st_ino), "-", static_cast<std::int64_t>(info.st_size), "-",
                modified_ns(info)});
}

// Time since the last change; negative when that is in the future.
inline std::chrono::milliseconds age_of(const struct stat& info) noexcept {
    return std::chrono::milliseconds(wall_clock_ms() - modified_ns(info) / 1000000);
}

// Removes what a killed spool_enqueue() left: a live one renames its file as soon as it has closed it.
inline void remove_abandoned(int request, const std::string& name) noexcept {
    struct stat info {};
    if (name.size() != 21 || name.compare(0, 5, ".new.") != 0 || !stat_at(request, name, info)) return;
    if (!S_ISREG(info.st_mode)) return;
    const unique_fd file(::openat(request, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    const writers writing = file ? find_writers(file.get()) : writers::some;
    const std::chrono::seconds max_age(writing == writers::none ? 2 : 60);
    if (writing != writers::some && age_of(info) > max_age) ::unlinkat(request, name.c_str(), 0);
}
}  // namespace ojs::detail
