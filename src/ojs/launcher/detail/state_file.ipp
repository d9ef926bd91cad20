// state_file: the folder of a launcher's sockets, and the record of its processes for its successor.
#pragma once

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "../../base/detail/files.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/proc.ipp"
#include "../../coordinator/detail/coordinator_body.hpp"
#include "../../process/child_process.ipp"
#include "../../process/detail/out_of_memory.hpp"

namespace ojs::detail {
inline constexpr const char* private_folder_prefix = "/ojs-launcher-";

// Removes the folder and its sockets if it is a launcher's private folder: ours, and 0700.
inline void remove_private_folder(const std::string& path) {
    struct stat found {};
    const bool ours = ::lstat(path.c_str(), &found) == 0 && (found.st_mode | S_ISGID) == (S_IFDIR | S_ISGID | 0700) &&
                      found.st_uid == ::geteuid() && path.find(private_folder_prefix) != std::string::npos;
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

    // Creates the given folder if it does not exist, and checks that it is ours; without one, makes a private folder
    // below $XDG_RUNTIME_DIR or /tmp. Both 0700.
    result<void> open(const std::string& given) {
        path_ = given;
        if (given.empty()) return make_private();
        if (::mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) return failure(errno);
        const result<void> safe = check_folder(path_, false);
        if (safe) return {};
        return error{safe.error().code, safe.error().sys_errno, "socket_folder: " + safe.error().text};
    }
    const std::string& path() const noexcept { return path_; }
    bool is_private() const noexcept { return private_; }
    // Whether bind(2) takes the path of a socket with this length of name.
    bool fits_socket(std::size_t name_length) const noexcept {
        return path_.size() + 1 + name_length < sizeof(sockaddr_un::sun_path);
    }
    // Removes a private folder, with the sockets of killed processes.
    void remove() {
        if (exchange(private_, false)) remove_private_folder(path_);
    }

  private:
    result<void> make_private() {
        const char* const runtime = ::getenv("XDG_RUNTIME_DIR");
        path_ = cat({runtime != nullptr && *runtime == '/' ? runtime : "/tmp", private_folder_prefix, "XXXXXX"});
        private_ = ::mkdtemp(path_.data()) != nullptr;
        if (private_) return {};
        return failure(errno);
    }
    result<void> failure(int sys_errno) const {
        return error{errc::system, sys_errno, cat({"socket_folder ", path_, ": ", errno_text(sys_errno)})};
    }

    std::string path_;
    bool private_ = false;
};

struct state_entry {
    std::string id;
    std::string group;
    std::string address;           // of its coordinator
    std::int32_t pid = 0;          // also of its process group
    std::int32_t session = 0;      // session of the launcher
    std::int64_t start_ticks = 0;  // since boot; distinguishes it from a later process with the same pid
};
struct launcher_state {
    std::string boot_id;
    std::string pid_namespace;
    std::vector<state_entry> processes;
    std::vector<std::string> socket_folders;
};
inline message_view json_fields(state_entry& message, adl_tag) {
    return {"state_entry",
            {item("id", message.id), item("group", message.group), item("address", message.address),
             item("pid", message.pid), item("session", message.session), item("start_ticks", message.start_ticks)}};
}
inline message_view json_fields(launcher_state& message, adl_tag) {
    return {"launcher_state",
            {item("boot_id", message.boot_id), item("pid_namespace", message.pid_namespace),
             item("processes", message.processes), item("socket_folders", message.socket_folders)}};
}

inline constexpr std::size_t max_state_file = 4 * 1024 * 1024;
// The exit of processes that are not our children must be polled.
inline constexpr int orphan_poll_ms = 10;  // ms
// A child that a killed launcher was starting holds the lock until it notices.
inline constexpr std::chrono::milliseconds lock_timeout{500};

// Identifies one boot of one machine; empty if unknown.
inline std::string boot_id() { return std::string(trim_blanks(proc_file("", "sys/kernel/random/boot_id"), "\n")); }

// 0: no such process runs, or there is no /proc.
inline std::int64_t start_ticks_of(pid_t pid) {
    const process_facts about = read_stat("", cat({static_cast<long>(pid)}));
    return about.state == 'Z' || about.state == 'X' ? 0 : static_cast<std::int64_t>(about.start_ticks);
}

// A pid that another process has is also another's group: ours has ended. A pid without a process belongs to the
// rest of our group; or, after the pids wrapped around, to a group of our session that lost its leader too.
inline bool is_alive(const state_entry& entry) {
    if (entry.start_ticks == 0) return false;
    const process_facts leader = read_stat("", cat({static_cast<long>(entry.pid)}));
    if (leader.pid != 0 && static_cast<std::int64_t>(leader.start_ticks) != entry.start_ticks) return false;
    if (leader.pid != 0 && leader.state != 'Z' && leader.state != 'X') return true;
    for (const pid_t pid : all_processes()) {
        const bool member = ::getpgid(pid) == entry.pid && ::getsid(pid) == entry.session;
        if (member && start_ticks_of(pid) != 0) return true;
    }
    return false;
}

// Identifies a PID namespace. The kernel reuses its inode number, but not with an init of the same age.
inline std::string pid_namespace() {
    struct stat here {};
    if (!OJS_SHUTDOWN_USE_PROC || ::stat("/proc/self/ns/pid", &here) != 0) return {};
    return cat({"pid:[", here.st_ino, "]@", read_stat("", "1").start_ticks});
}

// The leader may have moved to another group of its session.
inline void signal_orphan(const state_entry& entry, int number) {
    if (!is_alive(entry)) return;
    ::kill(-entry.pid, number);
    const bool moved = start_ticks_of(entry.pid) == entry.start_ticks && ::getpgid(entry.pid) != entry.pid;
    if (moved) ::kill(entry.pid, number);
}

inline void erase_exited(std::vector<state_entry>& entries) {
    const auto has_ended = [](const state_entry& entry) { return !is_alive(entry); };
    entries.erase(std::remove_if(entries.begin(), entries.end(), has_ended), entries.end());
}

template <class Predicate>
void await_exit(std::vector<state_entry>& entries, std::chrono::milliseconds timeout, Predicate is_interrupted) {
    const time_point deadline = deadline_after(timeout);
    for (;;) {
        erase_exited(entries);
        if (entries.empty() || steady_clock::now() >= deadline || is_interrupted()) return;
        ::poll(nullptr, 0, orphan_poll_ms);
    }
}

inline void log_entry(const logger& log, log_level level, const char* text, const state_entry& which) {
    log.write(level, text,
              {field("process_id", which.id), field("group", which.group), field("pid", static_cast<long>(which.pid))});
}

// Replaces the file atomically: a crash leaves the old or the new state. Returns 0 or an errno.
inline int replace_file(const std::string& path, std::string_view text) {
    const std::string new_path = path + ".new";
    if (::unlink(new_path.c_str()) != 0 && errno != ENOENT) return errno;
    const unique_fd file(::open(new_path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file) return errno;
    {
        const write_signals_blocked blocked;
        if (!write_text(file.get(), text, never)) return errno;
    }
    if (::fsync(file.get()) != 0 && errno != EINVAL) return errno;  // a file system may have none
    return ::rename(new_path.c_str(), path.c_str()) == 0 ? 0 : errno;
}

// Thread-safe after begin(). A thread of its own writes the newest state, as the disk may not answer: only add(),
// add_folder() and write() wait until a change is on disk. Orphans are not adopted: a launcher can only wait for its
// children.
class state_file : public ref_counted {
  public:
    using writer = int (*)(const std::string& path, std::string_view text);
    state_file(std::string path, logger log, writer replace = replace_file)
        : path_(std::move(path)), log_(std::move(log)), replace_(replace) {}

    // Locks the file until close(). errc::busy: another launcher has the lock. errc::invalid_argument: the file is
    // invalid or another user's. It may name processes, so it is not overwritten.
    static result<ref<state_file>> open(const std::string& path, logger log = logger(), writer replace = replace_file) {
        const ref<state_file> out = make_ref<state_file>(path, std::move(log), replace);
        result<void> opened = out->take_lock();
        if (opened) opened = out->read();
        return opened ? result<ref<state_file>>(out) : opened.error();
    }
    // Processes that a predecessor left since boot, including groups without their leader.
    const std::vector<state_entry>& orphans() const noexcept { return orphans_; }
    // Sends SIGTERM to the groups of all orphans, SIGKILL after `grace` or when `life` is stopping. Returns their
    // number. Those that outlive `kill_time`, or a third stop signal, stay in orphans().
    std::size_t reap_orphans(std::chrono::milliseconds grace, std::chrono::milliseconds kill_time,
                             const lifecycle& life) {
        const std::size_t out = orphans_.size();
        for (const state_entry& entry : orphans_) {
            log_entry(log_, log_level::warn, "orphan of an earlier launcher; sending SIGTERM", entry);
            signal_orphan(entry, SIGTERM);
            signal_orphan(entry, SIGCONT);
        }
        await_exit(orphans_, grace, [&] { return life.phase() >= phase::stopping; });
        for (const state_entry& entry : orphans_) {
            log_entry(log_, log_level::error, "orphan still running after SIGTERM; sending SIGKILL", entry);
            signal_orphan(entry, SIGKILL);
        }
        await_exit(orphans_, kill_time, [&] { return life.state().stop_signals >= 3; });
        for (const state_entry& entry : orphans_)
            log_entry(log_, log_level::error, "SIGKILL did not end the process", entry);
        return out;
    }
    // Logs the orphans that are left; if there are none, removes their folders. Writes the file.
    result<void> begin() {
        for (const state_entry& entry : orphans_)
            log_entry(log_, log_level::warn, "orphan of an earlier launcher still runs", entry);
        if (orphans_.empty()) {
            for (const std::string& each : folders_) remove_private_folder(each);
            folders_.clear();
        }
        return write({});
    }

    // Records a folder for a successor to remove.
    result<void> add_folder(const std::string& path) {
        unique_lock held(mutex_);
        folders_.push_back(path);
        return commit(held);
    }
    // Called before exec(): if we are killed, the child is recorded or exits by itself. errc::cancelled: `interrupt_fd`
    // became readable first.
    result<void> add(state_entry entry, int interrupt_fd = -1) {
        entry.session = ::getsid(0);
        entry.start_ticks = start_ticks_of(entry.pid);
        const std::string id = entry.id;
        unique_lock held(mutex_);
        if (closed_) return error{errc::cancelled, 0, "the launcher has ended"};
        entries_.push_back(std::move(entry));
        result<void> written = commit(held, interrupt_fd);
        if (!written) erase(id);
        return written;
    }
    // Returns at once.
    void remove(const std::string& id) {
        const unique_lock held(mutex_);
        erase(id);
        ++wanted_;
        if (!closed_) static_cast<void>(start_writing());
    }
    result<void> write(std::vector<state_entry> now) {
        unique_lock held(mutex_);
        entries_ = std::move(now);
        return commit(held);
    }
    // Unlocks the file, and keeps the processes that still run in it. While a write hangs, the lock stays.
    void close() {
        unique_lock held(mutex_);
        closed_ = true;
        const time_point deadline = deadline_after(lock_timeout);
        while (writing_ && written_.wait_until(held, deadline)) continue;
        if (!writing_) lock_ = unique_fd();
    }

  private:
    error failure(const char* verb, int failed) const {
        return {errc::system, failed,
                cat({"state file ", printable(path_, 300), ": cannot ", verb, ": ", errno_text(failed)})};
    }
    error refusal(std::string_view why) const {
        return {errc::invalid_argument, 0, cat({"state file ", printable(path_, 300), ": ", why})};
    }
    // The lock is a separate file, as each write replaces the state file.
    result<void> take_lock() {
        constexpr int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
        lock_ = unique_fd(::open((path_ + ".lock").c_str(), flags, 0600));
        if (!lock_) return failure("open its lock", errno);
        struct stat about {};
        if (::fstat(lock_.get(), &about) != 0) return failure("inspect its lock", errno);
        if (!S_ISREG(about.st_mode)) return refusal("the .lock file is not a regular file: remove it");
        if (about.st_uid != ::geteuid()) return refusal("the .lock file belongs to another user: remove it");
        const time_point deadline = deadline_after(lock_timeout);
        while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
            if (errno != EINTR && errno != EWOULDBLOCK) return failure("lock it", errno);
            if (steady_clock::now() >= deadline)
                return error{errc::busy, EWOULDBLOCK,
                             refusal("another launcher uses it; stop that launcher, or set another state_file").text};
            ::poll(nullptr, 0, orphan_poll_ms);
        }
        return {};
    }
    result<void> read() {
        const result<small_file> file = read_small_file(path_, max_state_file);
        if (!file && is_missing(file.error())) return {};
        if (!file && file.error().sys_errno != 0) return failure("read it", file.error().sys_errno);
        if (!file) return refusal("not a regular file; move it away to start without it");
        if (file->text.size() > max_state_file)
            return refusal(cat({"larger than ", max_state_file, " bytes; move the file away to start without it"}));
        if (file->info.st_uid != ::geteuid())
            return refusal("belongs to another user; the launcher reads only its own user's file");
        const result<launcher_state> state = read_message<launcher_state>(file->text);
        if (!state) return refusal("not the state of a launcher; move the file away to start without it");
        folders_ = state->socket_folders;
        if (state->boot_id.empty() || state->pid_namespace.empty())
            return refusal("boot_id or pid_namespace is missing; move the file away to start without it");
        if (state->boot_id != boot_id() || state->pid_namespace != pid_namespace()) return {};
        for (const state_entry& entry : state->processes) {
            // kill() takes group 0 as our own and -1 as all processes. Session 0 is outside our namespace.
            if (entry.id.empty() || entry.pid <= 1 || entry.session < 0)
                return refusal("an entry has no id, pid or session; move the file away to start without it");
            if (is_alive(entry)) orphans_.push_back(entry);
        }
        return {};
    }
    void erase(const std::string& id) {
        const auto has_id = [&](const state_entry& entry) { return entry.id == id; };
        entries_.erase(std::remove_if(entries_.begin(), entries_.end(), has_id), entries_.end());
    }
    // Waits until the state, or a newer one, has been written.
    result<void> commit(unique_lock& held, int interrupt_fd = -1) {
        const std::uint64_t number = ++wanted_;
        result<void> started = start_writing();
        if (!started) return started;
        pollfd interrupt{interrupt_fd, POLLIN, 0};
        while (tried_ < number) {
            if (interrupt_fd >= 0 && ::poll(&interrupt, 1, 0) > 0)
                return error{errc::cancelled, 0, "cancelled before the process was recorded in the state file"};
            written_.wait_until(held, deadline_after(std::chrono::milliseconds(orphan_poll_ms)));
        }
        return failed_ == 0 ? result<void>() : failure("write it", failed_);
    }
    // The thread ends when there is nothing to write: none waits for the disk that does not have to.
    result<void> start_writing() {
        if (writing_) return {};
        const ref<state_file> self(this);
        result<thread> started = thread::start([self] { self->write_newest(); }, {256 * 1024, false, "ojs-state"});
        if (!started) return started.error();
        started->detach();
        writing_ = true;
        return {};
    }
    void write_newest() {
        unique_lock held(mutex_);
        while (tried_ < wanted_) {
            const std::uint64_t number = wanted_;
            std::string text;
            const bool known = attempt([&] {
                launcher_state now{boot_id(), pid_namespace(), orphans_, folders_};
                for (const state_entry& entry : entries_) now.processes.push_back(entry);
                text = write_message(std::move(now)) + "\n";
            });
            const bool is_news = failed_ == 0;
            held.unlock();
            const int failed = known ? replace_(path_, text) : ENOMEM;
            if (failed != 0 && is_news)
                attempt([&] {
                    log_.write(log_level::warn,
                               "cannot write the state file; the next launcher may not find its processes",
                               {field("error", failure("write it", failed).text)});
                });
            held.lock();
            tried_ = number;
            failed_ = failed;
            written_.notify_all();
        }
        writing_ = false;
        written_.notify_all();
    }

    const std::string path_;
    const logger log_;
    const writer replace_;
    unique_fd lock_;
    mutex mutex_;  // never held during a write
    condition written_;
    std::vector<state_entry> orphans_;
    std::vector<state_entry> entries_;
    std::vector<std::string> folders_;
    std::uint64_t wanted_ = 0;  // number of the newest state
    std::uint64_t tried_ = 0;   // of the last one that was written, or could not be
    int failed_ = 0;            // the errno of that write, or 0
    bool writing_ = false;
    bool closed_ = false;
};
}  // namespace ojs::detail
