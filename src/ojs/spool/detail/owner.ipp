// Who owns the claimed files of a spool: a folder for each transport, and a lock that dies with its process.
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

inline constexpr const char* owner_file = ".owner";

inline std::string hex_text(std::uint64_t number) {
    char text[20];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(number));
    return text;
}

// For people, except for the boot: the lock alone says whether the owner lives.
inline std::string owner_record() {
    const process_stat self = read_stat("", "self");
    char host[256] = "";
    static_cast<void>(gethostname(host, sizeof host - 1));
    return cat({"{\"pid\":", static_cast<long>(getpid()),
                ",\"start_time\":", json_quote(self.pid == 0 ? std::string() : cat({self.start_ticks})),
                ",\"boot_id\":", json_quote(boot_id()),
                ",\"pid_namespace\":", json_quote(proc_link("", "self/ns/pid")),
                ",\"host\":", json_quote(host), ",\"since\":", json_quote(utc_timestamp()), "}\n"});
}

// Of one machine: a free lock means a dead owner. Networks, clusters, hypervisors and FUSE may not tell.
inline bool is_local_type(std::uint32_t type) noexcept {
    // ext2 to ext4, XFS, btrfs, tmpfs, ramfs, overlayfs, F2FS, ZFS, bcachefs, reiserfs, JFS, NILFS2, UBIFS, JFFS2, FAT,
    // exFAT, NTFS 3
    static constexpr std::uint32_t local[] = {0xef53,     0x58465342, 0x9123683e, 0x01021994, 0x858458f6,
                                              0x794c7630, 0xf2f52010, 0x2fc12fc1, 0xca451a4e, 0x52654973,
                                              0x3153464a, 0x3434,     0x24051905, 0x72b6,     0x4d44,
                                              0x2011bab0, 0x7366746e};
    return std::find(std::begin(local), std::end(local), type) != std::end(local);
}

inline bool is_of_one_machine(int folder) noexcept {
#ifdef __linux__
    struct statfs about {};
    return ::fstatfs(folder, &about) == 0 && is_local_type(static_cast<std::uint32_t>(about.f_type));
#elif defined(MNT_LOCAL)
    struct statfs about {};
    return ::fstatfs(folder, &about) == 0 && (about.f_flags & MNT_LOCAL) != 0;
#else
    static_cast<void>(folder);
    return false;
#endif
}

// Whether the owner that left this record may be alive although its lock is to be had.
inline bool may_be_elsewhere(const std::string& record, bool of_one_machine) {
    std::string boot;
    raw_string(raw_member(record, "boot_id"), boot);
    return !of_one_machine && (boot.empty() || boot != boot_id());
}

inline bool is_temporary(std::string_view name) noexcept {
    return name.substr(0, 5) == ".tmp.";
}

inline unique_fd open_owner_file(int folder, int access = O_RDONLY) {
    return unique_fd(::openat(folder, owner_file, access | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

inline int lock_now(int fd) noexcept {
    while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EINTR) return errno;
    }
    return 0;
}

// 0 or the errno; EWOULDBLOCK: it is held. NFS wants the file writable, which elsewhere blocks a remount,ro.
inline int try_lock(int folder, unique_fd& lock) {
    const int failed = lock_now(lock.get());
    if (failed != EBADF) return failed;
    lock = open_owner_file(folder, O_RDWR);
    return lock ? lock_now(lock.get()) : errno;
}

// ---- locks and fork() ----

// A forked child shares the lock, and would hold it for a dead owner: so fork() closes ours in the child.
// After clone(2) or _Fork(), which run no handlers, jobs come back late, never early. POSIX record locks are
// lost with any other descriptor of the file, and a pid may be out of sight: a live worker's jobs could be
// taken.
class owner_lock {
  public:
    owner_lock() = default;
    explicit owner_lock(unique_fd locked) : place_(free_place()) { place_->store(locked.release()); }
    owner_lock(owner_lock&& other) noexcept : place_(detail::exchange(other.place_, nullptr)) {}
    owner_lock& operator=(owner_lock&& other) noexcept {
        detail::swap(place_, other.place_);
        return *this;
    }
    ~owner_lock() {
        const int fd = place_ != nullptr ? place_->exchange(unused) : lost;
        if (fd >= 0) ::close(fd);
    }

    // False in a process that was forked since.
    bool is_held() const noexcept { return place_ != nullptr && place_->load() >= 0; }

  private:
    using place = atomic<int>;  // a descriptor, or one of these
    static constexpr int lost = -1;
    static constexpr int unused = -2;
    struct node {
        place fd{lost};
        node* next = nullptr;
    };
    // Only ever added to, as another thread may fork at any time, whose child must be able to walk it.
    static atomic<node*>& first() noexcept {
        static atomic<node*> out{nullptr};
        return out;
    }

    static place* free_place() {
        static const int handled = ::pthread_atfork(nullptr, nullptr, &close_in_child);
        static_cast<void>(handled);  // without it, a lock lasts for longer
        for (node* each = first().load(); each != nullptr; each = each->next) {
            int expected = unused;
            if (each->fd.compare_exchange_strong(expected, lost)) return &each->fd;
        }
        node* const added = new node;
        added->next = first().load();
        while (!first().compare_exchange_weak(added->next, added)) continue;
        return &added->fd;
    }
    static void close_in_child() noexcept {
        for (node* each = first().load(); each != nullptr; each = each->next) {
            const int fd = each->fd.load();
            if (fd < 0) continue;
            each->fd.store(lost);
            ::close(fd);
        }
    }

    place* place_ = nullptr;
};

inline bool is_linked(int fd) noexcept {
    struct stat about {};
    return ::fstat(fd, &about) == 0 && about.st_nlink > 0;
}

// A folder in processing/ and its lock. What is claimed is renamed into it, and so owned from that instant on.
class spool_owner : public ref_counted {
  public:
    spool_owner(std::string its_name, const ref<spool_folders>& spool, unique_fd folder, owner_lock lock)
        : name(std::move(its_name)), folder_(std::move(folder)), spool_(spool), lock_(std::move(lock)) {}
    // Takes the folder away if no job is in it; else others recover what is. The lock goes last.
    ~spool_owner() override {
        std::vector<std::string> names;
        if (!lock_.is_held()) return;  // we were forked: it is another process's
        if (!is_linked(folder_.get()) || list_folder(folder_.get(), names) != 0) return;
        for (const std::string& each : names)
            if (each != owner_file && !is_temporary(each)) return;
        for (const std::string& each : names) ::unlinkat(folder_.get(), each.c_str(), 0);
        ::unlinkat(spool_->processing.get(), name.c_str(), AT_REMOVEDIR);
    }

    int folder() const noexcept { return folder_.get(); }
    bool is_ours() const noexcept { return lock_.is_held(); }
    std::string new_temporary_name() {
        return cat({".tmp.", temporary_.fetch_add(1, memory_order::relaxed)});
    }

    const std::string name;

  private:
    const unique_fd folder_;
    const ref<spool_folders> spool_;
    const owner_lock lock_;
    atomic<std::uint64_t> temporary_{0};
};

// Another lock on our own file must be refused, or locks mean nothing on this file system.
inline result<void> check_locks_work(int folder) {
    unique_fd again = open_owner_file(folder);
    if (!again) return spool_error("open its own lock file", errno, errc::system);
    if (try_lock(folder, again) == EWOULDBLOCK) return {};
    return error{errc::unsupported, 0,
                 "spool: the file system has no locks that work, so nobody could tell whose a job is"};
}

// Makes a folder of a name that nobody has. errc::busy: someone who looked for dead owners was quicker; try again.
inline result<ref<spool_owner>> try_make_owner(const ref<spool_folders>& spool) {
    const std::string name = cat({static_cast<long>(getpid()), "-", hex_text(random_number())});
    const error taken = {errc::busy, 0, "spool: the folder was taken away"};
    if (::mkdirat(spool->processing.get(), name.c_str(), 0700) != 0)
        return errno == EEXIST ? taken : spool_error("make a folder in processing/", errno, errc::system);
    unique_fd folder(open_folder_at(spool->processing.get(), name));
    if (!folder)
        return errno == ENOENT ? taken : spool_error("open a folder in processing/", errno, errc::system);
    const result<void> written = write_new_spool_file(folder.get(), owner_file, owner_record());
    if (!written && written.error().sys_errno == ENOENT) return taken;
    if (!written) {
        ::unlinkat(spool->processing.get(), name.c_str(), AT_REMOVEDIR);
        return written.error();
    }
    unique_fd lock = open_owner_file(folder.get());
    if (!lock) return errno == ENOENT ? taken : spool_error("open its lock file", errno, errc::system);
    const int failed = try_lock(folder.get(), lock);
    if (failed == EWOULDBLOCK || (failed == 0 && !is_linked(lock.get()))) return taken;
    ref<spool_owner> out = make_ref<spool_owner>(name, spool, std::move(folder), owner_lock(std::move(lock)));
    if (failed != 0) return spool_error("lock a file in processing/", failed, errc::unsupported);
    const result<void> works = check_locks_work(out->folder());
    if (!works) return works.error();
    sync_descriptor(spool->processing.get());
    return out;
}

inline result<ref<spool_owner>> make_owner(const ref<spool_folders>& spool) {
    for (int left = 100;; --left) {
        result<ref<spool_owner>> made = try_make_owner(spool);
        if (made || made.error().code != errc::busy || left == 0) return made;
    }
}

// ---- other owners ----

enum class owner_state { alive, dead, gone, owner_unknown };

struct judged_owner {
    owner_state state = owner_state::alive;
    std::string why;   // owner_unknown
    unique_fd folder;  // dead: with its lock, which keeps others from recovering it at the same time
    owner_lock lock;
};

inline judged_owner owner_unknown(std::string why) {
    return {owner_state::owner_unknown, std::move(why), {}, {}};
}

// A folder without a lock file: half made or half taken away, or somebody has meddled with it.
inline judged_owner judge_unlocked(const spool_folders& spool, const std::string& name, int folder) {
    std::vector<std::string> names;
    if (list_folder(folder, names) != 0 || !names.empty()) return owner_unknown("it has no lock file");
    struct stat about {};
    const bool old = ::fstat(folder, &about) == 0 && age_of(about) > std::chrono::minutes(1);
    if (old) ::unlinkat(spool.processing.get(), name.c_str(), AT_REMOVEDIR);
    return {owner_state::gone, {}, {}, {}};
}

// Checked, never guessed: dead is whose lock can be had, and the kernel gives it away only when its process is gone.
inline judged_owner judge_owner(const spool_folders& spool, const std::string& name) {
    unique_fd folder(open_folder_at(spool.processing.get(), name));
    unique_fd lock = folder ? open_owner_file(folder.get()) : unique_fd();
    if (!lock && errno == ENOENT)
        return folder ? judge_unlocked(spool, name, folder.get())
                      : judged_owner{owner_state::gone, {}, {}, {}};
    const int failed = lock ? try_lock(folder.get(), lock) : errno;
    if (failed == EWOULDBLOCK) return {owner_state::alive, {}, {}, {}};
    if (failed != 0) return owner_unknown(errno_text(failed));
    if (!is_linked(lock.get())) return {owner_state::gone, {}, {}, {}};
    owner_lock held(std::move(lock));
    if (may_be_elsewhere(read_own_file(folder.get(), owner_file), is_of_one_machine(folder.get())))
        return owner_unknown(
            "it is of another boot or machine, on a file system that machines may share: it may be alive "
            "there");
    return {owner_state::dead, {}, std::move(folder), std::move(held)};
}

}  // namespace ojs::detail
