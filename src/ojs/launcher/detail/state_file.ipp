#pragma once

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../base/detail/files.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/proc.ipp"
#include "../../base/detail/sync.hpp"
#include "../../coordinator/detail/socket_folder.ipp"
#include "../../net/json_view.hpp"
#include "state_file.hpp"

namespace ojs::detail {

inline constexpr std::size_t longest_state_file = 4 * 1024 * 1024;
// Between two looks at processes that are not our children, so that nothing tells of their end.
inline constexpr int between_strangers = 10;  // ms
// A child that a killed launcher was about to start holds its lock until it sees that.
inline constexpr std::chrono::milliseconds lock_patience{500};

inline error state_error(const std::string& path, const char* what, int failed) {
    return {errc::system, failed,
            cat({"state file ", printable(path, 300), ": cannot ", what, ": ", errno_text(failed)})};
}

inline error bad_state(const std::string& path, const char* why) {
    return {errc::invalid_argument, 0, cat({"state file ", printable(path, 300), ": ", why})};
}

OJS_SHUTDOWN_INLINE std::uint64_t start_ticks_of(pid_t pid) {
    const process_stat about = read_stat("", cat({static_cast<long>(pid)}));
    return about.state == 'Z' || about.state == 'X' ? 0 : about.start_ticks;
}

// A number that another process has is another's group as well: ours had ended before. A number that no process has is held
// by the rest of our group; or, had it ended and the numbers gone round, by one of our session that lost its leader too.
inline bool is_still_there(const state_entry& entry) {
    if (entry.start_ticks == 0) return false;
    const process_stat leader = read_stat("", cat({static_cast<long>(entry.pid)}));
    if (leader.pid != 0 && leader.start_ticks != entry.start_ticks) return false;
    if (leader.pid != 0 && leader.state != 'Z' && leader.state != 'X') return true;
    for (const pid_t pid : all_processes("")) {
        const bool member = ::getpgid(pid) == entry.pid && ::getsid(pid) == entry.session;
        if (member && start_ticks_of(pid) != 0) return true;
    }
    return false;
}

// Which numbers of processes are meant. The kernel uses the name of a namespace again, but not with an init of that age.
inline std::string pid_namespace() {
    return cat({proc_link("", "self/ns/pid"), "@", read_stat("", "1").start_ticks});
}

inline bool take_lock(int fd) noexcept {
    const time_point deadline = deadline_after(lock_patience);
    while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EINTR && (errno != EWOULDBLOCK || steady_clock::now() >= deadline)) return false;
        ::poll(nullptr, 0, between_strangers);
    }
    return true;
}

// The lock is a file of its own: the state is replaced, and a lock on what was replaced holds nobody off.
OJS_SHUTDOWN_INLINE result<state_file> state_file::open(std::string path) {
    state_file out;
    out.path_ = std::move(path);
    const std::string lock_path = out.path_ + ".lock";
    out.lock_ =
        unique_fd(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!out.lock_) return state_error(out.path_, "open its lock", errno);
    struct stat about {};
    if (::fstat(out.lock_.get(), &about) != 0) return state_error(out.path_, "look at its lock", errno);
    if (!S_ISREG(about.st_mode) || about.st_uid != ::geteuid())
        return bad_state(out.path_, "its lock is another user's, or no file");
    if (!take_lock(out.lock_.get())) {
        if (errno != EWOULDBLOCK) return state_error(out.path_, "lock it", errno);
        return error{errc::busy, 0,
                     cat({"state file ", printable(out.path_, 300), ": another launcher has it"})};
    }
    const result<void> known = out.read();
    if (!known) return known.error();
    return result<state_file>(std::move(out));
}

inline bool read_entry(std::string_view json, state_entry& out) {
    std::uint64_t pid = 0;
    std::uint64_t session = 0;
    const bool whole = raw_string(raw_member(json, "id"), out.id) &&
                       raw_string(raw_member(json, "group"), out.group) &&
                       raw_string(raw_member(json, "address"), out.address) &&
                       parse_number(raw_member(json, "pid"), 0x7fffffff, pid) &&
                       parse_number(raw_member(json, "session"), 0x7fffffff, session) &&
                       parse_number(raw_member(json, "start_ticks"), UINT64_MAX, out.start_ticks);
    out.pid = static_cast<pid_t>(pid);
    out.session = static_cast<pid_t>(session);
    return whole && pid > 1;  // a signal to group 0 is one to ours, and to 1 one to all
}

OJS_SHUTDOWN_INLINE result<void> state_file::read() {
    const small_file file = read_small_file(path_, longest_state_file);
    if (file.status == file_status::missing) return {};
    if (file.status == file_status::unreadable) return state_error(path_, "read it", file.sys_errno);
    if (file.status != file_status::read || file.is_cut) return bad_state(path_, "it is no state file");
    if (file.owner != ::geteuid()) return bad_state(path_, "it is another user's");
    if (!is_json_object(file.text)) return bad_state(path_, "it is no JSON object");
    std::string_view folders = raw_member(file.text, "socket_folders");
    std::string_view each;
    while (next_raw_element(folders, each)) {
        folders_.emplace_back();
        static_cast<void>(raw_string(each, folders_.back()));
    }
    std::string boot;
    if (!raw_string(raw_member(file.text, "boot_id"), boot)) return bad_state(path_, "it names no boot");
    std::string numbers;
    if (!raw_string(raw_member(file.text, "pid_namespace"), numbers))
        return bad_state(path_, "it names no PID namespace");
    if (boot != boot_id() || numbers != pid_namespace()) return {};
    const std::string_view all = raw_member(file.text, "processes");
    std::string_view rest = all;
    while (next_raw_element(rest, each)) {
        state_entry entry;
        if (!read_entry(each, entry)) return bad_state(path_, "an entry is not whole");
        if (is_still_there(entry)) left_behind_.push_back(std::move(entry));
    }
    return raw_walk_ended(rest, '[', ']') ? result<void>() : bad_state(path_, "it has no list of processes");
}

OJS_SHUTDOWN_INLINE result<void> state_file::write(const std::vector<state_entry>& now) {
    std::string text = cat({"{\"boot_id\":", json_quote(boot_id()),
                            ",\"pid_namespace\":", json_quote(pid_namespace()), ",\"processes\":["});
    const char* before = "\n";
    const std::vector<state_entry>* const lists[] = {&left_behind_, &now};
    for (const std::vector<state_entry>* list : lists) {
        for (const state_entry& each : *list) {
            append(text, {before, "{\"id\":", json_quote(each.id), ",\"group\":", json_quote(each.group),
                          ",\"address\":", json_quote(each.address), ",\"pid\":", static_cast<long>(each.pid),
                          ",\"session\":", static_cast<long>(each.session),
                          ",\"start_ticks\":", each.start_ticks, "}"});
            before = ",\n";
        }
    }
    text += "],\"socket_folders\":[";
    before = "";
    for (const std::string& each : folders_) {
        append(text, {before, json_quote(each)});
        before = ",";
    }
    text += "]}\n";
    const std::string fresh = path_ + ".new";
    if (::unlink(fresh.c_str()) != 0 && errno != ENOENT) return state_error(path_, "replace it", errno);
    const int failed = write_new_file(AT_FDCWD, fresh, text);
    if (failed != 0) return state_error(path_, "write it", failed);
    return ::rename(fresh.c_str(), path_.c_str()) == 0 ? result<void>()
                                                       : state_error(path_, "replace it", errno);
}

OJS_SHUTDOWN_INLINE void state_file::remove_folders() {
    if (!left_behind_.empty()) return;
    for (const std::string& each : folders_) remove_own_folder(each);
    folders_.clear();
}

// It may have moved to another group of its session.
inline void signal_left_behind(const state_entry& entry, int number) {
    if (!is_still_there(entry)) return;
    ::kill(-entry.pid, number);
    const bool moved = start_ticks_of(entry.pid) == entry.start_ticks && ::getpgid(entry.pid) != entry.pid;
    if (moved) ::kill(entry.pid, number);
}

inline void forget_ended(std::vector<state_entry>& entries) {
    std::vector<state_entry> left;
    for (state_entry& each : entries) {
        if (is_still_there(each)) left.push_back(std::move(each));
    }
    entries.swap(left);
}

template <class Hastened>
void await_ended(std::vector<state_entry>& entries, std::chrono::milliseconds limit, Hastened hastened) {
    const time_point deadline = deadline_after(limit);
    for (;;) {
        forget_ended(entries);
        if (entries.empty() || steady_clock::now() >= deadline || hastened()) return;
        ::poll(nullptr, 0, between_strangers);
    }
}

inline void tell_left_behind(const logger& log, log_level level, const char* text, const state_entry& which) {
    log.write(level, text,
              {field("process_id", which.id), field("group", which.group),
               field("pid", static_cast<long>(which.pid))});
}

OJS_SHUTDOWN_INLINE std::size_t state_file::end_left_behind(std::chrono::milliseconds grace,
                                                            std::chrono::milliseconds patience,
                                                            const logger& log, const lifecycle& life) {
    const std::size_t out = left_behind_.size();
    for (const state_entry& each : left_behind_) {
        tell_left_behind(log, log_level::warn, "process left behind by an earlier launcher, sending SIGTERM",
                         each);
        signal_left_behind(each, SIGTERM);
        signal_left_behind(each, SIGCONT);
    }
    await_ended(left_behind_, grace, [&] { return life.phase() >= phase::stopping; });
    for (const state_entry& each : left_behind_) {
        tell_left_behind(log, log_level::warn, "SIGTERM timeout, sending SIGKILL", each);
        signal_left_behind(each, SIGKILL);
    }
    await_ended(left_behind_, patience, [&] { return life.state().exit_now; });
    for (const state_entry& each : left_behind_)
        tell_left_behind(log, log_level::error, "SIGKILL did not end the process", each);
    return out;
}

// Thread-safe. Processes come and go in many threads, and each change is on disk before it goes on.
class state_ledger : public ref_counted {
  public:
    explicit state_ledger(logger log) : log_(std::move(log)) {}

    // As state_file::open(), and what an earlier launcher left is ended, or only told where `ends` is false.
    result<void> open(const std::string& path, bool ends, std::chrono::milliseconds grace,
                      std::chrono::milliseconds patience, const lifecycle& life) {
        result<state_file> opened = state_file::open(path);
        if (!opened) return opened.error();
        const lock_guard held(mutex_);
        file_ = std::move(*opened);
        if (ends) file_.end_left_behind(grace, patience, log_, life);
        for (const state_entry& each : file_.left_behind())
            tell_left_behind(log_, log_level::warn, "process left behind by an earlier launcher still runs",
                             each);
        file_.remove_folders();
        const result<void> written = file_.write(entries_);
        is_open_ = static_cast<bool>(written);
        return written;
    }
    // For a successor, where we are killed.
    result<void> add_folder(const std::string& path) {
        const lock_guard held(mutex_);
        file_.add_folder(path);
        return file_.write(entries_);
    }
    // Before it becomes its program: whenever we are killed, it stands there or ends by itself.
    result<void> add(state_entry of) {
        const lock_guard held(mutex_);
        if (!is_open_) return error{errc::cancelled, 0, "the launcher has ended"};
        of.session = ::getsid(0);
        of.start_ticks = start_ticks_of(of.pid);
        entries_.push_back(std::move(of));
        result<void> written = file_.write(entries_);
        if (!written) entries_.pop_back();
        return written;
    }
    void remove(const std::string& id) {
        const lock_guard held(mutex_);
        for (std::size_t i = entries_.size(); i-- > 0;) {
            if (entries_[i].id == id) entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(i));
        }
        if (!is_open_) return;
        const result<void> written = file_.write(entries_);
        if (!written)
            log_.write(log_level::warn, "state file not written", {field("error", written.error().text)});
    }
    // Lets go of the file, with whoever still runs in it.
    void close() {
        const lock_guard held(mutex_);
        is_open_ = false;
        file_ = state_file();
    }

  private:
    const logger log_;
    mutex mutex_;
    state_file file_;
    std::vector<state_entry> entries_;
    bool is_open_ = false;
};

}  // namespace ojs::detail
