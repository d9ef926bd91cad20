// What waits in request/: which files there are, in the order of their names, and which of them may be run now.
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

// What is known of a file by its name.
struct spool_entry {
    time_point until = time_point::min();  // not to be looked at before
    std::string identity;  // of a file of a queue that is not ours, as long as it is what it was
    std::string queue;     // that queue
};
using spool_entries = std::map<std::string, spool_entry>;

// A file of request/ as it was examined.
struct spool_candidate {
    std::string name;
    struct stat about {};
    std::string text;     // an envelope: the whole file
    std::string sidecar;  // of any file; empty: none
    ojs::job job;
    bool opaque = false;
};

enum class readiness { ready, later, refused, gone, failed };

struct examined {
    readiness what = readiness::ready;
    std::string why;                          // refused: for people
    error failure;                            // failed
    std::chrono::milliseconds look_again{0};  // later: when it will be worth another look
};

inline examined look_later(std::chrono::milliseconds pause) {
    return {readiness::later, {}, {}, pause};
}
inline examined refuse(std::string why) {
    return {readiness::refused, std::move(why), {}, {}};
}

// What is wrong with one file must not hold up the others; what is wrong with us does.
inline examined cannot_examine(const std::string& name, int failed) {
    const bool ours = failed == EMFILE || failed == ENFILE || failed == ENOMEM;
    const auto what = failed == ENOENT ? readiness::gone : ours ? readiness::failed : readiness::refused;
    return {what, errno_text(failed), spool_error(cat({"read request/", printable(name)}), failed), {}};
}

inline constexpr std::chrono::milliseconds look_rarely{5000};  // at what is not likely to change
inline constexpr std::chrono::milliseconds look_soon{100};
inline constexpr std::chrono::milliseconds look_seldom{60000};  // where the kernel tells of what is new

// How long a retry still has to wait. One that would have to wait longer than its delay is due: the clock was set back.
inline std::chrono::milliseconds delay_left(std::string_view object) {
    const std::string_view kept = raw_member(object, "spool");
    std::uint64_t due = 0;
    std::uint64_t delay = 0;
    if (!parse_number(raw_member(kept, "not_before_ms"), any_integer, due))
        return std::chrono::milliseconds(0);
    if (!parse_number(raw_member(kept, "delay_ms"), max_duration_ms, delay)) delay = max_duration_ms;
    const std::int64_t left = static_cast<std::int64_t>(due) - wall_clock_ms();
    return std::chrono::milliseconds(left <= static_cast<std::int64_t>(delay) ? left : 0);
}

inline std::string id_from_name(const std::string& name) {
    const std::size_t size = name.size() < 6 ? 0 : name.size() - 5;
    return size > 0 && name.compare(size, 5, ".json") == 0 ? name.substr(0, size) : name;
}

// The names that wait, kept from one FETCH to the next, and what the kernel says is new among them.
class spool_waiting {
  public:
    // Starts inotify; without it the folder is scanned more often. `forked`: a child needs its own.
    void watch(const std::string& spool_path, bool forked) {
        ready_.clear();
        put_off_.clear();
        next_due_ = time_point::max();
        scanned_ = time_point::min();
        listen(spool_path, forked);
    }
    // To poll for news, from any thread once watch() was called; -1: there is none to be had.
    int watch_fd() const noexcept { return watch_.get(); }

    // Takes in what is new. 0 or the errno of a folder that cannot be read.
    int update(int request) {
        read_news();
        const time_point now = steady_clock::now();
        if (now >= next_due()) look_again_until(now);
        const bool first = scanned_ == time_point::min();
        const std::chrono::milliseconds fresh_for = watched_ >= 0 ? look_rarely : look_soon;
        if (!first && has_ready() && now < scanned_ + fresh_for) return 0;
        if (!first && now < scanned_ + pause_) return 0;
        return scan(request, now);
    }

    // The first name after `last` that is worth a look; null: no more.
    const std::string* next(const std::string& last) const {
        const auto found = ready_.upper_bound(last);
        return found == ready_.end() ? nullptr : &found->first;
    }
    bool has_ready() const noexcept { return !ready_.empty(); }
    void forget(const std::string& name) { ready_.erase(name); }
    void put_off(const std::string& name, std::chrono::milliseconds pause) {
        // A person may put another file in its place, which only the kernel could tell us.
        const std::chrono::milliseconds longest = watched_ >= 0 ? look_seldom : look_rarely;
        spool_entry& entry = (put_off_[name] = std::move(ready_[name]));
        ready_.erase(name);
        entry.until = steady_clock::now() + std::min(pause, longest);
        next_due_ = std::min(next_due_, entry.until);
    }
    // Those put off may be wanted now.
    void look_at_all_again() { look_again_until(time_point::max()); }
    void note_foreign(const std::string& name, std::string identity, std::string queue) {
        const auto found = ready_.find(name);
        if (found != ready_.end()) found->second = {time_point::min(), std::move(identity), std::move(queue)};
    }
    // Null where it is not known to be of another queue.
    const spool_entry* find_foreign(const std::string& name) const {
        const auto found = ready_.find(name);
        return found == ready_.end() || found->second.identity.empty() ? nullptr : &found->second;
    }
    // When the next of those put off is due, or some of them may be.
    time_point next_due() const { return std::max(next_due_, not_before_); }

  private:
    // Never more than a twentieth of the time goes into looking through many names.
    static steady_clock::duration pause_after(steady_clock::duration took) noexcept {
        return took > std::chrono::milliseconds(1) ? took * 20 : steady_clock::duration(0);
    }
    void look_again_until(time_point now) {
        const time_point began = steady_clock::now();
        next_due_ = time_point::max();
        for (auto each = put_off_.begin(); each != put_off_.end();) {
            const auto here = each++;
            if (here->second.until <= now) {
                ready_.insert(put_off_.extract(here));
            } else {
                next_due_ = std::min(next_due_, here->second.until);
            }
        }
        const time_point done = steady_clock::now();
        not_before_ = done + pause_after(done - began);
    }

    // What was put off stays so.
    int scan(int request, time_point now) {
        std::vector<std::string> found;
        const int failed = list_folder(request, found);
        if (failed != 0) return failed;
        spool_entries ready;
        spool_entries put_off;
        next_due_ = time_point::max();
        for (const std::string& name : found) {
            if (name.front() == '.') continue;
            if (const auto later = put_off_.find(name); later != put_off_.end()) {
                put_off.insert(*later);
                next_due_ = std::min(next_due_, later->second.until);
            } else {
                const auto seen = ready_.find(name);
                ready.emplace(name, seen != ready_.end() ? seen->second : spool_entry());
            }
        }
        ready_.swap(ready);
        put_off_.swap(put_off);
        scanned_ = steady_clock::now();
        pause_ = pause_after(scanned_ - now);
        return 0;
    }

#if OJS_SHUTDOWN_USE_INOTIFY
    void listen(const std::string& spool_path, bool forked) {
        if (forked || !detail::exchange(was_open_, true)) {
            unique_fd made(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
            if (watch_ && made) ::dup3(made.get(), watch_.get(), O_CLOEXEC);  // others may know its number
            if (!watch_) watch_ = std::move(made);
            watched_ = -1;
        }
        if (!watch_) return;
        if (watched_ >= 0) ::inotify_rm_watch(watch_.get(), watched_);
        watched_ = ::inotify_add_watch(watch_.get(), cat({spool_path, "/request"}).c_str(),
                                       IN_MOVED_TO | IN_CLOSE_WRITE | IN_ONLYDIR);
    }
    void read_news() {
        alignas(struct inotify_event) char buffer[16 * 1024];
        ssize_t got = 0;
        while (watched_ >= 0 && (got = ::read(watch_.get(), buffer, sizeof buffer)) > 0) {
            for (ssize_t at = 0; at < got;) {
                struct inotify_event event {};
                std::memcpy(&event, buffer + at, sizeof event);
                take_event(event, buffer + at + sizeof event);
                at += static_cast<ssize_t>(sizeof event + event.len);
            }
        }
    }
    void take_event(const struct inotify_event& event, const char* name) {
        if ((event.mask & IN_Q_OVERFLOW) != 0) scanned_ = time_point::min();
        if ((event.mask & IN_IGNORED) != 0 && event.wd == watched_) watched_ = -1;
        if (event.len == 0 || *name == '.') return;
        if (!ready_.insert(put_off_.extract(name)).inserted) ready_.try_emplace(name);
    }
#else
    void listen(const std::string& /*spool_path*/, bool /*forked*/) {}
    void read_news() {}
#endif

    spool_entries ready_;    // to be looked at
    spool_entries put_off_;  // not to be looked at before their time
    time_point next_due_ = time_point::max();
    time_point not_before_ = time_point::min();  // when to look through those put off again at the earliest
    time_point scanned_ = time_point::min();
    steady_clock::duration pause_{0};
    unique_fd watch_;
    int watched_ = -1;
    [[maybe_unused]] bool was_open_ = false;
};

// Judges the files of request/ by themselves.
class spool_examiner {
  public:
    spool_examiner(const spool_options& options, spool_waiting& waiting)
        : options_(options), waiting_(waiting) {}

    examined examine(const spool_folders& spool, const std::string& name,
                     const std::vector<std::string>& queues, spool_candidate& out) const {
        const int folder = spool.request();
        if (is_known_foreign(folder, name, queues)) return look_later(look_seldom);
        spool_file file = open_spool_file(folder, name);
        if (!file.refused.empty()) return refuse(std::move(file.refused));
        if (file.sys_errno != 0) return cannot_examine(name, file.sys_errno);
        // Fresh also where its clock, that of a file server perhaps, is a little ahead of ours.
        const std::chrono::milliseconds age = age_of(file.about);
        const bool fresh = age > -options_.settle_time && age < options_.settle_time;
        const std::size_t size = static_cast<std::size_t>(file.about.st_size);
        std::string queue;
        if (!options_.any_file && size > peeked && size <= max_spool_job_size &&
            is_foreign(peek(file.fd.get()), queues, queue))
            return leave_to_others(name, file.about, queue, fresh);
        const int writing = is_open_for_writing(file.fd.get());
        if (writing == 1 && age < std::chrono::minutes(1)) return look_later(look_soon);
        if (writing == 1) return refuse("somebody has had it open for writing for long");
        out.name = name;
        out.about = file.about;
        const std::chrono::milliseconds settles_in = fresh ? options_.settle_time - age : look_rarely;
        if (options_.any_file) return writing < 0 && fresh ? look_later(settles_in) : examine_any(spool, out);
        if (size <= max_spool_job_size && !read_whole(file.fd.get(), out.text))
            return cannot_examine(name, errno);
        if (is_foreign(out.text, queues, queue)) return leave_to_others(name, file.about, queue, fresh);
        const examined look = examine_envelope(size, settles_in, fresh, out);
        const bool theirs =
            look.what == readiness::ready && out.job.malformed.empty() && !contains(queues, out.job.queue);
        return theirs ? leave_to_others(name, file.about, out.job.queue, fresh) : look;
    }

  private:
    examined examine_any(const spool_folders& spool, spool_candidate& out) const {
        out.opaque = true;
        out.sidecar = read_sidecar(spool.request(), out.name, out.about);
        // Moved back from failed/ by a person, who sees no hidden file.
        if (out.sidecar.empty())
            out.sidecar = read_sidecar(spool.end(spool_end::failed), out.name, out.about);
        const std::chrono::milliseconds left = delay_left(out.sidecar);
        if (left.count() > 0) return look_later(left);
        out.job.id = out.name;
        out.job.type = "file";
        out.job.queue = "default";
        return {};
    }

    // ---- other queues ----

    // At most so much is read of a large file only to see whose it is.
    static constexpr std::size_t peeked = 4096;
    static std::string peek(int fd) {
        char start[peeked];
        const ssize_t got = ::pread(fd, start, sizeof start, 0);
        return std::string(start, got > 0 ? static_cast<std::size_t>(got) : 0);
    }

    // Whether what has been read of a file says a queue that is not ours. It need not be JSON: others will see to that.
    static bool is_foreign(std::string_view text, const std::vector<std::string>& queues,
                           std::string& queue) {
        return raw_string(raw_member(text, "queue"), queue) && !queue.empty() && !contains(queues, queue);
    }
    bool is_known_foreign(int folder, const std::string& name, const std::vector<std::string>& queues) const {
        const spool_entry* known = waiting_.find_foreign(name);
        struct stat about {};
        return known != nullptr && !contains(queues, known->queue) && stat_at(folder, name, about) &&
               identity_of(about) == known->identity;
    }
    // A fresh file may change within the tick of its clock, and is read once more.
    examined leave_to_others(const std::string& name, const struct stat& about, const std::string& queue,
                             bool fresh) const {
        if (fresh) return look_later(look_rarely);
        waiting_.note_foreign(name, identity_of(about), queue);
        return look_later(look_seldom);
    }

    // ---- envelopes ----

    static examined examine_envelope(std::size_t size, std::chrono::milliseconds settles_in, bool fresh,
                                     spool_candidate& out) {
        const std::string fault = envelope_fault(std::max(out.text.size(), size), out.text);
        if (!fault.empty()) return fresh ? look_later(settles_in) : make_malformed(fault, out);
        const std::chrono::milliseconds left = delay_left(out.text);
        if (left.count() > 0) return look_later(left);
        out.job = read_job(out.text);
        if (out.job.id.empty()) out.job.id = id_from_name(out.name);
        if (out.job.queue.empty()) out.job.queue = "default";
        return {};
    }

    // It is claimed like any job, and FAILed by whoever would run it.
    static examined make_malformed(const std::string& fault, spool_candidate& out) {
        out.opaque = true;
        out.text.clear();
        out.job.id = id_from_name(out.name);
        out.job.queue = "default";
        out.job.malformed = fault;
        return {};
    }

    const spool_options& options_;
    spool_waiting& waiting_;
};

// A thread that waits for the kernel to tell of a new file, or for one that was put off to be due.
class spool_watcher {
  public:
    // Where that is not to be had the worker polls, and finds it a little later.
    void start(function<void()> tell, int news_fd) {
        if (changed_.fd() < 0) {  // once: a FETCH under way may use it
            result<wake> made = wake::create();
            if (!made) return;
            changed_ = std::move(*made);
        }
        running_.store(true, memory_order::release);
        const auto work = [this, tell, news_fd] { run(tell, news_fd); };
        result<thread> started = thread::start(work, {256 * 1024, 0, false, "ojs-spool"});
        if (started) thread_ = std::move(*started);
        if (!started) running_.store(false, memory_order::release);
    }

    void stop() {
        if (!running_.exchange(false, memory_order::acq_rel)) return;
        changed_.notify();
        thread_.join();
    }

    // A FETCH has taken in all news, and `due` is when the next file that it has put off is worth another look.
    void looked(time_point due) {
        const bool is_earlier = due < due_.exchange(due, memory_order::acq_rel);
        const bool told = told_.exchange(false, memory_order::acq_rel);
        if ((told || is_earlier) && running_.load(memory_order::acquire)) changed_.notify();
    }

  private:
    // Tells once, and then waits until a FETCH has looked: a busy worker needs no more news.
    void run(const function<void()>& tell, int news_fd) {
        while (running_.load(memory_order::acquire)) {
            const bool told = told_.load(memory_order::acquire);
            const time_point due = due_.load(memory_order::acquire);
            pollfd waits[2] = {{changed_.fd(), POLLIN, 0}, {told ? -1 : news_fd, POLLIN, 0}};
            ::poll(waits, 2, poll_timeout(told ? time_point::max() : due));
            if (waits[0].revents != 0) {
                changed_.clear();
                continue;
            }
            told_.store(true, memory_order::release);
            tell();
        }
    }

    wake changed_;
    thread thread_;
    atomic<bool> running_{false};
    atomic<bool> told_{false};
    atomic<time_point> due_{time_point::max()};
};

}  // namespace ojs::detail
