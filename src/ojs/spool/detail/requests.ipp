// The files in request/, in the order of their names, and which of them can be claimed now.
#pragma once

#include <poll.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "../../base/detail/light.hpp"
#include "../../base/duration.hpp"
#include "../../core/detail/wake.hpp"
#include "../spool_transport.hpp"
#include "settle.ipp"

namespace ojs::detail {
struct spool_entry {
    time_point check_at = time_point::min();
    std::string identity;  // of a file of another queue; it is not read again while that stays the same
    std::string queue;     // that queue
};
using spool_entries = std::map<std::string, spool_entry>;

// An examined file of request/.
struct spool_candidate {
    std::string name;
    struct stat info {};
    std::string text;     // of an envelope
    std::string sidecar;  // of an opaque file; empty: none
    ojs::job job;
    bool is_opaque = false;
};

enum class readiness { ready, later, refused, gone, error };

struct examination {
    readiness verdict = readiness::ready;
    std::string reason;                        // refused, or why it waits
    ojs::error failure;                        // error
    std::chrono::milliseconds check_delay{0};  // later
};

inline examination check_later(std::chrono::milliseconds pause) { return {readiness::later, {}, {}, pause}; }
inline examination refuse(std::string reason) { return {readiness::refused, std::move(reason), {}, {}}; }

// A broken file does not block the others; a lack of descriptors or memory does.
inline examination examination_error(const std::string& name, int errnum) {
    const bool is_shortage = errnum == EMFILE || errnum == ENFILE || errnum == ENOMEM;
    const auto verdict = errnum == ENOENT ? readiness::gone : is_shortage ? readiness::error : readiness::refused;
    return {verdict, errno_text(errnum), spool_error(cat({"read request/", printable(name)}), errnum), {}};
}

inline constexpr std::chrono::milliseconds slow_check_interval{5000};  // for what rarely changes
inline constexpr std::chrono::milliseconds fast_check_interval{100};
inline constexpr std::chrono::milliseconds watched_check_interval{60000};  // with inotify
inline constexpr std::chrono::milliseconds hidden_writer_timeout{10000};   // another user's file that changes

// 0 when the retry is due, or when more than its whole delay is left: then the clock was set back.
inline std::chrono::milliseconds remaining_delay(std::string_view object) {
    const std::string_view retry = raw_member(object, "spool");
    std::uint64_t due_ms = 0;
    std::uint64_t delay = 0;
    if (!parse_number(raw_member(retry, "not_before_ms"), max_exact_integer, due_ms))
        return std::chrono::milliseconds(0);
    if (!parse_number(raw_member(retry, "delay_ms"), max_duration_ms, delay)) delay = max_duration_ms;
    const std::int64_t left = static_cast<std::int64_t>(due_ms) - wall_clock_ms();
    return std::chrono::milliseconds(left <= static_cast<std::int64_t>(delay) ? left : 0);
}

// The list of request/, kept from one FETCH to the next and updated by inotify.
class spool_requests {
  public:
    // Starts over, with inotify; without it the folder is scanned more often. `forked`: a child needs its own instance.
    void watch(const std::string& spool_path, bool forked) {
        ready_.clear();
        postponed_.clear();
        next_due_at_ = time_point::max();
        scanned_at_ = time_point::min();
        start_watch(spool_path, forked);
    }
    // Readable when request/ changed. Thread-safe after watch(). -1: no inotify.
    int watch_fd() const noexcept { return inotify_.get(); }

    // Adds new files. 0 or the errno of a folder that cannot be read.
    int update(int request) {
        read_events();
        const time_point now = steady_clock::now();
        if (now >= next_due()) recheck_due(now);
        const bool is_first = scanned_at_ == time_point::min();
        const std::chrono::milliseconds scan_interval =
            watch_descriptor_ >= 0 ? slow_check_interval : fast_check_interval;
        if (!is_first && has_ready() && now < scanned_at_ + scan_interval) return 0;
        if (!is_first && now < scanned_at_ + scan_backoff_) return 0;
        return scan(request, now);
    }

    // The first name after `last`; null: no more.
    const std::string* next(const std::string& last) const {
        const auto found = ready_.upper_bound(last);
        return found == ready_.end() ? nullptr : &found->first;
    }
    bool has_ready() const noexcept { return !ready_.empty(); }
    void forget(const std::string& name) { ready_.erase(name); }
    void postpone(const std::string& name, std::chrono::milliseconds delay) {
        // Only inotify reports that another file has replaced this one.
        const std::chrono::milliseconds max_delay =
            watch_descriptor_ >= 0 ? watched_check_interval : slow_check_interval;
        spool_entry& entry = (postponed_[name] = std::move(ready_[name]));
        ready_.erase(name);
        entry.check_at = steady_clock::now() + std::min(delay, max_delay);
        next_due_at_ = std::min(next_due_at_, entry.check_at);
    }
    void note_foreign(const std::string& name, std::string identity, std::string queue) {
        const auto found = ready_.find(name);
        if (found != ready_.end()) found->second = {time_point::min(), std::move(identity), std::move(queue)};
    }
    // Null: not known to be of another queue.
    const spool_entry* find_foreign(const std::string& name) const {
        const auto found = ready_.find(name);
        return found == ready_.end() || found->second.identity.empty() ? nullptr : &found->second;
    }
    // When recheck_due() is next worthwhile.
    time_point next_due() const { return std::max(next_due_at_, next_recheck_at_); }

  private:
    // Long lists take at most a twentieth of the time.
    static steady_clock::duration backoff_after(steady_clock::duration elapsed) noexcept {
        return elapsed > std::chrono::milliseconds(1) ? elapsed * 20 : steady_clock::duration(0);
    }
    void recheck_due(time_point now) {
        const time_point began = steady_clock::now();
        next_due_at_ = time_point::max();
        for (auto next = postponed_.begin(); next != postponed_.end();) {
            const auto current = next++;
            if (current->second.check_at <= now) {
                ready_.insert(postponed_.extract(current));
            } else {
                next_due_at_ = std::min(next_due_at_, current->second.check_at);
            }
        }
        const time_point ended = steady_clock::now();
        next_recheck_at_ = ended + backoff_after(ended - began);
    }

    // Postponed files stay postponed.
    int scan(int request, time_point now) {
        std::vector<std::string> found;
        const int errnum = list_folder(request, found);
        if (errnum != 0) return errnum;
        spool_entries ready;
        spool_entries postponed;
        next_due_at_ = time_point::max();
        for (const std::string& name : found) {
            if (name.front() == '.') {
                remove_abandoned(request, name);
                continue;
            }
            if (const auto later = postponed_.find(name); later != postponed_.end()) {
                postponed.insert(*later);
                next_due_at_ = std::min(next_due_at_, later->second.check_at);
            } else {
                const auto seen = ready_.find(name);
                ready.emplace(name, seen != ready_.end() ? seen->second : spool_entry());
            }
        }
        ready_.swap(ready);
        postponed_.swap(postponed);
        scanned_at_ = steady_clock::now();
        scan_backoff_ = backoff_after(scanned_at_ - now);
        return 0;
    }

#if OJS_SHUTDOWN_USE_INOTIFY
    void start_watch(const std::string& spool_path, bool forked) {
        if (forked || !detail::exchange(has_watched_, true)) {
            unique_fd created(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
            if (inotify_ && created) ::dup3(created.get(), inotify_.get(), O_CLOEXEC);  // watcher polls it
            if (!inotify_) inotify_ = std::move(created);
            watch_descriptor_ = -1;
        }
        if (!inotify_) return;
        if (watch_descriptor_ >= 0) ::inotify_rm_watch(inotify_.get(), watch_descriptor_);
        watch_descriptor_ = ::inotify_add_watch(inotify_.get(), cat({spool_path, "/request"}).c_str(),
                                                IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR);
    }
    void read_events() {
        alignas(struct inotify_event) char buffer[16 * 1024];
        ssize_t got = 0;
        while (watch_descriptor_ >= 0 && (got = ::read(inotify_.get(), buffer, sizeof buffer)) > 0) {
            for (ssize_t at = 0; at < got;) {
                struct inotify_event event {};
                std::memcpy(&event, buffer + at, sizeof event);
                apply_event(event, buffer + at + sizeof event);
                at += static_cast<ssize_t>(sizeof event + event.len);
            }
        }
    }
    void apply_event(const struct inotify_event& event, const char* name) {
        if ((event.mask & IN_Q_OVERFLOW) != 0) scanned_at_ = time_point::min();
        if ((event.mask & IN_IGNORED) != 0 && event.wd == watch_descriptor_) watch_descriptor_ = -1;
        if (event.len == 0 || *name == '.') return;
        if (!ready_.insert(postponed_.extract(name)).inserted) ready_.try_emplace(name);
    }
#else
    void start_watch(const std::string& /*spool_path*/, bool /*forked*/) {}
    void read_events() {}
#endif

    spool_entries ready_;
    spool_entries postponed_;  // until their check_at
    time_point next_due_at_ = time_point::max();
    time_point next_recheck_at_ = time_point::min();
    time_point scanned_at_ = time_point::min();
    steady_clock::duration scan_backoff_{0};
    unique_fd inotify_;
    int watch_descriptor_ = -1;
    [[maybe_unused]] bool has_watched_ = false;
};

// Decides for each file of request/ whether it can be claimed.
class spool_examiner {
  public:
    spool_examiner(const spool_options& options, spool_requests& requests) : options_(options), requests_(requests) {}

    examination examine(const spool_folders& spool, const std::string& name, const std::vector<std::string>& queues,
                        spool_candidate& out) const {
        const int folder = spool.request();
        if (is_known_foreign(folder, name, queues)) return check_later(watched_check_interval);
        spool_file file = open_spool_file(folder, name);
        if (!file.refused.empty()) return refuse(std::move(file.refused));
        if (file.sys_errno != 0) return examination_error(name, file.sys_errno);
        // A file server's clock may be a little ahead of ours.
        const std::chrono::milliseconds age = age_of(file.info);
        const bool is_fresh = age > -options_.incomplete_timeout && age < options_.incomplete_timeout;
        const auto size = static_cast<std::uint64_t>(file.info.st_size);
        std::string queue;
        if (!options_.accept_any_file && size > peek_size && size <= max_spool_file_size &&
            is_foreign(peek(file.fd.get()), queues, queue))
            return leave_to_others(name, file.info, queue, is_fresh);
        const writers writing = find_writers(file.fd.get());
        if (writing == writers::some && age < std::chrono::minutes(1)) return check_later(fast_check_interval);
        if (writing == writers::some) return refuse("a process has had the file open for writing for over a minute");
        out.name = name;
        out.info = file.info;
        examination wait = wait_for_writer(writing, file.info, age);
        if (options_.accept_any_file)
            return writing != writers::none && wait.verdict == readiness::later ? wait : examine_any(spool, out);
        if (size <= max_spool_file_size && !read_all(file.fd.get(), out.text)) return examination_error(name, errno);
        if (is_foreign(out.text, queues, queue)) return leave_to_others(name, file.info, queue, is_fresh);
        const examination result = examine_envelope(size, std::move(wait), out);
        const bool is_of_other_queue =
            result.verdict == readiness::ready && out.job.malformed.empty() && !contains(queues, out.job.queue);
        return is_of_other_queue ? leave_to_others(name, file.info, out.job.queue, is_fresh) : result;
    }

  private:
    examination examine_any(const spool_folders& spool, spool_candidate& out) const {
        out.is_opaque = true;
        out.sidecar = read_sidecar(spool.request(), out.name, out.info);
        // A person who moved it back from failed/ left the hidden sidecar there.
        if (out.sidecar.empty()) out.sidecar = read_sidecar(spool.folder(spool_target::failed), out.name, out.info);
        const std::chrono::milliseconds left = remaining_delay(out.sidecar);
        if (left.count() > 0) return check_later(left);
        if (!read_json_string(raw_member(out.sidecar, "id"), out.job.id) || out.job.id.empty()) out.job.id = out.name;
        out.job.type = "file";
        out.job.queue = "default";
        return {};
    }

    // Bytes that are read of a large file to find its queue.
    static constexpr std::size_t peek_size = 4096;
    static std::string peek(int fd) {
        char start[peek_size];
        const ssize_t got = ::pread(fd, start, sizeof start, 0);
        return std::string(start, got > 0 ? static_cast<std::size_t>(got) : 0);
    }

    // Whether `text`, the start of a file, names a queue that is not ours. It may be malformed.
    static bool is_foreign(std::string_view text, const std::vector<std::string>& queues, std::string& queue) {
        return read_json_string(raw_member(text, "queue"), queue) && !queue.empty() && !contains(queues, queue);
    }
    bool is_known_foreign(int folder, const std::string& name, const std::vector<std::string>& queues) const {
        const spool_entry* known = requests_.find_foreign(name);
        struct stat info {};
        return known != nullptr && !contains(queues, known->queue) && stat_at(folder, name, info) &&
               identity_of(info) == known->identity;
    }
    // A fresh file may change without a new time stamp, and is read once more.
    examination leave_to_others(const std::string& name, const struct stat& info, const std::string& queue,
                                bool is_fresh) const {
        if (is_fresh) return check_later(slow_check_interval);
        requests_.note_foreign(name, identity_of(info), queue);
        return check_later(watched_check_interval);
    }

    // Until when an incomplete file may become complete. Another user's takes longer, as its writer is not visible.
    examination wait_for_writer(writers writing, const struct stat& info, std::chrono::milliseconds age) const {
        const bool is_hidden = writing == writers::hidden;
        const std::chrono::milliseconds timeout =
            is_hidden ? std::max(options_.incomplete_timeout, hidden_writer_timeout) : options_.incomplete_timeout;
        if (age <= -timeout || age >= timeout) return {};
        examination out = check_later(timeout - age);
        if (is_hidden)
            out.reason = cat({"user ", static_cast<unsigned>(info.st_uid),
                              " may still be writing the file, unseen by the kernel; it is claimed once unchanged for ",
                              format_duration(timeout), ", or at once if a complete file is moved there"});
        return out;
    }

    static examination examine_envelope(std::uint64_t size, examination wait, spool_candidate& out) {
        const std::string fault = envelope_fault(std::max<std::uint64_t>(out.text.size(), size), out.text);
        if (!fault.empty()) return wait.verdict == readiness::later ? wait : make_malformed(fault, out);
        const std::chrono::milliseconds left = remaining_delay(out.text);
        if (left.count() > 0) return check_later(left);
        out.job = read_job(out.text);
        if (out.job.id.empty()) out.job.id = id_from_name(out.name);
        if (out.job.queue.empty()) out.job.queue = "default";
        return {};
    }

    // The worker claims it like any job, and FAILs it.
    static examination make_malformed(const std::string& fault, spool_candidate& out) {
        out.is_opaque = true;
        out.text.clear();
        out.job.id = id_from_name(out.name);
        out.job.queue = "default";
        out.job.malformed = fault;
        return {};
    }

    const spool_options& options_;
    spool_requests& requests_;
};

// A thread that waits for a new file, or for a postponed one to become due.
class spool_watcher {
  public:
    // Without a thread the worker finds new files when it polls.
    void start(function<void()> on_work, int watch_fd) {
        if (wake_.fd() < 0) {  // once: a FETCH may use it now
            result<wake> created = wake::create();
            if (!created) return;
            wake_ = std::move(*created);
        }
        running_.store(true, memory_order::release);
        const auto work = [this, on_work, watch_fd] { run(on_work, watch_fd); };
        result<thread> started = thread::start(work, {256 * 1024, false, "ojs-spool"});
        if (started) thread_ = std::move(*started);
        if (!started) running_.store(false, memory_order::release);
    }

    void stop() {
        if (!running_.exchange(false, memory_order::acq_rel)) return;
        wake_.notify();
        thread_.join();
    }

    // After a FETCH has read all events. `due`: when its next postponed file is due.
    void on_fetched(time_point due) {
        const bool is_earlier = due < next_due_at_.exchange(due, memory_order::acq_rel);
        const bool was_notified = notified_.exchange(false, memory_order::acq_rel);
        if ((was_notified || is_earlier) && running_.load(memory_order::acquire)) wake_.notify();
    }

  private:
    // Notifies once, then waits for a FETCH: a busy worker needs no more notifications.
    void run(const function<void()>& on_work, int watch_fd) {
        while (running_.load(memory_order::acquire)) {
            const bool notified = notified_.load(memory_order::acquire);
            const time_point due = next_due_at_.load(memory_order::acquire);
            pollfd polled[2] = {{wake_.fd(), POLLIN, 0}, {notified ? -1 : watch_fd, POLLIN, 0}};
            ::poll(polled, 2, poll_timeout(notified ? time_point::max() : due));
            if (polled[0].revents != 0) {
                wake_.clear();
                continue;
            }
            notified_.store(true, memory_order::release);
            on_work();
        }
    }

    wake wake_;
    thread thread_;
    atomic<bool> running_{false};
    atomic<bool> notified_{false};
    atomic<time_point> next_due_at_{time_point::max()};
};
}  // namespace ojs::detail
