// Each transport owns a folder of claimed files, and a lock that the kernel releases when its process ends.
#pragma once

#include <pthread.h>
#include <sys/file.h>

#include <algorithm>
#include <iterator>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/proc.ipp"
#include "files.ipp"

namespace ojs::detail {
inline constexpr const char* owner_file_name = ".owner";

inline std::string hex_text(std::uint64_t number) {
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
    return text;
}

// Identifies one boot of one machine; empty if unknown.
inline std::string machine_boot() { return std::string(trim_blanks(proc_file("", "sys/kernel/random/boot_id"), "\n")); }

// For people; only boot_id is read again. The lock says whether the owner lives.
inline std::string owner_record() {
    const process_facts self = read_stat("", "self");
    char space[64] = "";
    static_cast<void>(!::readlink("/proc/self/ns/pid", space, sizeof space - 1));
    char host[256] = "";
    static_cast<void>(gethostname(host, sizeof host - 1));
    return cat({"{\"pid\":", static_cast<long>(getpid()),
                ",\"start_time\":", json_quote(self.pid == 0 ? std::string() : cat({self.start_ticks})),
                ",\"boot_id\":", json_quote(machine_boot()), ",\"pid_namespace\":", json_quote(space),
                ",\"host\":", json_quote(host), ",\"since\":", json_quote(utc_text()), "}\n"});
}

// On a local file system a free lock means a dead owner. Network, cluster, VM and FUSE file systems give no proof.
inline bool is_local_type(std::uint32_t type) noexcept {
    // ext2 to ext4, XFS, btrfs, tmpfs, ramfs, overlayfs, F2FS, ZFS, bcachefs, reiserfs, JFS, NILFS2, UBIFS, JFFS2, FAT,
    // exFAT, NTFS 3
    static constexpr std::uint32_t local[] = {0xef53,     0x58465342, 0x9123683e, 0x01021994, 0x858458f6, 0x794c7630,
                                              0xf2f52010, 0x2fc12fc1, 0xca451a4e, 0x52654973, 0x3153464a, 0x3434,
                                              0x24051905, 0x72b6,     0x4d44,     0x2011bab0, 0x7366746e};
    return std::find(std::begin(local), std::end(local), type) != std::end(local);
}

inline bool is_local_folder(int folder) noexcept {
#ifdef __linux__
    struct statfs info {};
    return ::fstatfs(folder, &info) == 0 && is_local_type(static_cast<std::uint32_t>(info.f_type));
#elif defined(MNT_LOCAL)
    struct statfs info {};
    return ::fstatfs(folder, &info) == 0 && (info.f_flags & MNT_LOCAL) != 0;
#else
    static_cast<void>(folder);
    return false;
#endif
}

// Whether the owner that wrote this record may be alive although its lock is free.
inline bool may_be_alive_elsewhere(const std::string& record, bool is_local) {
    std::string boot;
    read_json_string(raw_member(record, "boot_id"), boot);
    return !is_local && (boot.empty() || boot != machine_boot());
}

inline bool is_temporary(std::string_view name) noexcept { return name.substr(0, 5) == ".tmp."; }

inline unique_fd open_owner_file(int folder, int access = O_RDONLY) {
    return unique_fd(::openat(folder, owner_file_name, access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

inline int try_flock(int fd) noexcept {
    while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

// Locks the open owner file `lock`. Reopens it for writing only if flock() requires that (NFS), since a writable file
// blocks a remount,ro. 0 or the errno; EWOULDBLOCK: the lock is held.
inline int try_lock(int folder, unique_fd& lock) {
    const int errnum = try_flock(lock.get());
    if (errnum != EBADF) return errnum;
    lock = open_owner_file(folder, O_RDWR);
    return lock ? try_flock(lock.get()) : errno;
}

// A forked child shares the lock and would hold it for a dead owner: a fork handler closes it in the child.
// clone(2) and _Fork() run no handler: then jobs are recovered late, never early. Not POSIX record locks: closing
// any descriptor of the file releases them. Not pids: another container's is not visible.
class owner_lock {
  public:
    owner_lock() = default;
    explicit owner_lock(unique_fd locked) : slot_(acquire_slot()) { slot_->store(locked.release()); }
    owner_lock(owner_lock&& other) noexcept : slot_(detail::exchange(other.slot_, nullptr)), process_(other.process_) {}
    owner_lock& operator=(owner_lock&& other) noexcept {
        detail::swap(slot_, other.slot_);
        detail::swap(process_, other.process_);
        return *this;
    }
    ~owner_lock() {
        const int fd = slot_ != nullptr ? slot_->exchange(unused) : closed;
        if (fd >= 0) ::close(fd);
    }

    // False in a process that was forked since.
    bool is_held() const noexcept { return slot_ != nullptr && process_ == ::getpid() && slot_->load() >= 0; }

  private:
    using slot = atomic<int>;  // a descriptor, or one of these
    static constexpr int closed = -1;
    static constexpr int unused = -2;
    struct node {
        slot fd{closed};
        node* next = nullptr;
    };
    // Nodes are never removed: a child forked by another thread may walk the list at any time.
    static atomic<node*>& list_head() noexcept {
        static atomic<node*> out{nullptr};
        return out;
    }

    static slot* acquire_slot() {
        static atomic<bool> is_handled{false};  // only then: without the handler, a child keeps the lock
        if (!is_handled.load()) static_cast<void>(::pthread_atfork(nullptr, nullptr, &close_in_child));
        is_handled.store(true);
        for (node* current = list_head().load(); current != nullptr; current = current->next) {
            int expected = unused;
            if (current->fd.compare_exchange_strong(expected, closed)) return &current->fd;
        }
        node* const added = new node;
        added->next = list_head().load();
        while (!list_head().compare_exchange_strong(added->next, added)) continue;
        return &added->fd;
    }
    static void close_in_child() noexcept {
        for (node* current = list_head().load(); current != nullptr; current = current->next) {
            const int fd = current->fd.load();
            if (fd < 0) continue;
            current->fd.store(closed);
            ::close(fd);
        }
    }

    slot* slot_ = nullptr;
    pid_t process_ = ::getpid();
};

inline bool is_linked(int fd) noexcept {
    struct stat info {};
    return ::fstat(fd, &info) == 0 && info.st_nlink > 0;
}

// A folder in processing/ and its lock. A claim renames the file into it, and so owns it at once.
class spool_owner : public ref_counted {
  public:
    spool_owner(std::string folder_name, const ref<spool_folders>& spool, unique_fd folder, owner_lock lock)
        : name(std::move(folder_name)), folder_(std::move(folder)), spool_(spool), lock_(std::move(lock)) {}
    // Removes a folder without jobs; otherwise other workers recover them. The lock is released last.
    ~spool_owner() override {
        std::vector<std::string> names;
        if (!lock_.is_held()) return;  // a forked child: the parent owns it
        if (!is_linked(folder_.get()) || list_folder(folder_.get(), names) != 0) return;
        for (const std::string& entry : names)
            if (entry != owner_file_name && !is_temporary(entry)) return;
        for (const std::string& entry : names) ::unlinkat(folder_.get(), entry.c_str(), 0);
        ::unlinkat(spool_->processing.get(), name.c_str(), AT_REMOVEDIR);
    }

    int folder() const noexcept { return folder_.get(); }
    bool is_lock_held() const noexcept { return lock_.is_held(); }
    std::string new_temporary_name() { return cat({".tmp.", next_temporary_.fetch_add(1, memory_order::relaxed)}); }

    const std::string name;

  private:
    const unique_fd folder_;
    const ref<spool_folders> spool_;
    const owner_lock lock_;
    atomic<std::uint64_t> next_temporary_{0};
};

// A second lock on our own file must be refused; otherwise locks do not work here.
inline result<void> check_locks_work(int folder) {
    unique_fd again = open_owner_file(folder);
    if (!again) return spool_error("open processing/OWNER/.owner again", errno, errc::system);
    if (try_lock(folder, again) == EWOULDBLOCK) return {};
    return error{errc::unsupported, 0, "spool: file locks do not work on this file system: use a local one"};
}

// Mounts, quota projects and permissions are not visible otherwise. What a killed process leaves of this, the next
// start replaces and removes.
inline result<void> check_renames_work(const spool_folders& spool, int owner) {
    static constexpr const char* own = ".tmp.probe";
    static constexpr const char* there = ".rename-probe";
    for (const spool_target target : spool_targets) {
        const int to = spool.folder(target);
        const unique_fd created(::openat(owner, own, O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
        int errnum = created && ::renameat(owner, own, to, there) == 0 ? 0 : errno;
        // ENOENT: another start has moved it.
        if (errnum == 0 && ::renameat(to, there, owner, own) != 0 && errno != ENOENT) errnum = errno;
        ::unlinkat(owner, own, 0);
        if (errnum == 0) continue;
        ::unlinkat(to, there, 0);
        const std::string path = printable(spool.path, 300);
        error failed = spool_error(cat({"move files between ", path, "/processing and ", path, "/",
                                        spool_target_names[static_cast<std::size_t>(target)]}),
                                   errnum, errnum == EXDEV ? errc::invalid_argument : errc::system);
        if (errnum == EXDEV) failed.text += "; all folders of a spool must be on one mount";
        return failed;
    }
    return {};
}

// errc::busy: another worker's recovery has removed the new folder; try again.
inline result<ref<spool_owner>> try_create_owner(const ref<spool_folders>& spool) {
    const std::string name = cat({static_cast<long>(getpid()), "-", hex_text(random_number())});
    const std::string place = cat({printable(spool->path, 300), "/processing/", name});
    const error removed = {errc::busy, EAGAIN,
                           "spool: other processes keep removing this worker's folder in processing/: stop them"};
    if (::mkdirat(spool->processing.get(), name.c_str(), 0700) != 0)
        return errno == EEXIST ? removed : spool_error("create " + place, errno, errc::system);
    unique_fd folder(open_folder_at(spool->processing.get(), name));
    if (!folder) return errno == ENOENT ? removed : spool_error("open " + place, errno, errc::system);
    const result<void> written = write_new_spool_file(folder.get(), owner_file_name, owner_record());
    if (!written && written.error().sys_errno == ENOENT) return removed;
    if (!written) {
        ::unlinkat(spool->processing.get(), name.c_str(), AT_REMOVEDIR);
        return written.error();
    }
    unique_fd lock = open_owner_file(folder.get());
    if (!lock) return errno == ENOENT ? removed : spool_error("open " + place + "/.owner", errno, errc::system);
    const int errnum = try_lock(folder.get(), lock);
    if (errnum == EWOULDBLOCK || (errnum == 0 && !is_linked(lock.get()))) return removed;
    ref<spool_owner> out = make_ref<spool_owner>(name, spool, std::move(folder), owner_lock(std::move(lock)));
    if (errnum != 0) return spool_error("lock " + place + "/.owner", errnum, errc::unsupported);
    const result<void> works = check_locks_work(out->folder());
    if (!works) return works.error();
    sync_descriptor(spool->processing.get());
    return out;
}

inline result<ref<spool_owner>> create_owner(const ref<spool_folders>& spool) {
    for (int left = 100;; --left) {
        result<ref<spool_owner>> created = try_create_owner(spool);
        if (created || created.error().code != errc::busy || left == 0) return created;
    }
}

enum class owner_state { alive, dead, gone, unknown };

struct owner_check {
    owner_state state = owner_state::alive;
    std::string reason;  // when unknown
    unique_fd folder;    // when dead; its lock keeps other workers from recovering it too
    owner_lock lock;
};

inline owner_check unknown_owner(std::string reason) { return {owner_state::unknown, std::move(reason), {}, {}}; }

// A folder without a lock file: half created, half removed, or changed by hand.
inline owner_check remove_unlocked_if_old(const spool_folders& spool, const std::string& name, int folder) {
    std::vector<std::string> names;
    if (list_folder(folder, names) != 0 || !names.empty()) return unknown_owner("the folder has no lock file .owner");
    struct stat info {};
    const bool is_old = ::fstat(folder, &info) == 0 && age_of(info) > std::chrono::minutes(1);
    if (is_old) ::unlinkat(spool.processing.get(), name.c_str(), AT_REMOVEDIR);
    return {owner_state::gone, {}, {}, {}};
}

// An owner is dead when its lock is free: the kernel releases it only when the process is gone.
inline owner_check lock_if_dead(const spool_folders& spool, const std::string& name) {
    unique_fd folder(open_folder_at(spool.processing.get(), name));
    unique_fd lock = folder ? open_owner_file(folder.get()) : unique_fd();
    if (!lock && errno == ENOENT)
        return folder ? remove_unlocked_if_old(spool, name, folder.get()) : owner_check{owner_state::gone, {}, {}, {}};
    const int errnum = lock ? try_lock(folder.get(), lock) : errno;
    if (errnum == EWOULDBLOCK) return {owner_state::alive, {}, {}, {}};
    if (errnum != 0) return unknown_owner(errno_text(errnum));
    if (!is_linked(lock.get())) return {owner_state::gone, {}, {}, {}};
    owner_lock held(std::move(lock));
    if (may_be_alive_elsewhere(read_own_file(folder.get(), owner_file_name), is_local_folder(folder.get())))
        return unknown_owner(
            "its owner is of another boot or machine, and may be alive: the file system can be shared; if it is dead, "
            "mv its files to request/");
    return {owner_state::dead, {}, std::move(folder), std::move(held)};
}
}  // namespace ojs::detail
