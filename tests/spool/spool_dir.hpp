// A spool directory for a test, what is done to it from outside, and short ways to look at it.
#pragma once
#include <sys/syscall.h>

#include "recorder.hpp"

namespace spool_test {
namespace fs = std::filesystem;
using test::read_file;
using test::temporary_folder;
using test::write_file;

// Whatever the umask is.
inline void make_folder(const fs::path& path) { REQUIRE(::mkdir(path.c_str(), 0700) == 0); }

// As if it had last been changed an hour ago.
inline void make_old(const fs::path& path) {
    const timespec times[2] = {{::time(nullptr) - 3600, 0}, {::time(nullptr) - 3600, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

// Another user, of this thread alone; owns `folders`. Needs root.
class as_user {
  public:
    explicit as_user(uid_t user, std::initializer_list<fs::path> folders, std::vector<gid_t> groups = {})
        : before_(::geteuid()) {
        effective_ = ::getuid() == 0;
        if (!effective_) MESSAGE("skipped: needs root");
        if (!effective_) return;
        for (const fs::path& folder : folders) REQUIRE(::chown(folder.c_str(), user, user) == 0);
        if (!groups.empty()) REQUIRE(::syscall(SYS_setgroups, groups.size(), groups.data()) == 0);
        set_user(user);
    }
    ~as_user() {
        if (effective_) set_user(before_);
    }
    bool is_effective() const { return effective_; }

  private:
    static void set_user(uid_t user) { REQUIRE(::syscall(SYS_setresuid, -1, user, -1) == 0); }
    const uid_t before_;
    bool effective_ = false;
};

inline const std::string noop = R"({"type":"noop","args":[]})";

// How the messages begin.
namespace spool_event_kind {
inline constexpr const char* refused = "cannot claim the spool file";
inline constexpr const char* recovered = "a dead worker's job was recovered";
inline constexpr const char* owner_unknown = "jobs of another worker stay in processing/";
inline constexpr const char* result_dropped = "a completed job is settled without its result";
}  // namespace spool_event_kind

class spool_dir {
  public:
    explicit spool_dir(fs::path where = {}, bool accept_any_file = false,
                       std::vector<std::chrono::milliseconds> retry_delays = spool_options().retry_delays)
        : path(where.empty() ? own_.path() / "spool" : where) {
        options.directory = path.string();
        options.accept_any_file = accept_any_file;
        options.retry_delays = std::move(retry_delays);
        options.recovery_interval = 0ms;
        options.log = [this](const log_record& event) {
            const std::lock_guard<std::mutex> held(mutex_);
            events_.push_back(event);
        };
        worker.queues = {"default"};
    }

    transport_ref open() {
        result<transport_ref> out = open_spool(options);
        REQUIRE_MESSAGE(out, out.error().text);
        return *out;
    }
    // cp to a hidden name, then mv.
    void put(const std::string& name, const std::string& text = noop) {
        write_file(path / "request" / ".cp", text);
        fs::rename(path / "request" / ".cp", path / "request" / name);
    }
    fetch_request asking(std::size_t count = 1) { return {{&worker, nullptr}, count, {}}; }
    std::vector<job> fetch(transport& from, std::size_t count = 1) {
        result<std::vector<job>> got = from.fetch(asking(count), deadline_after(10s));
        REQUIRE_MESSAGE(got, got.error().text);
        return *got;
    }
    // Without inotify a FETCH finds nothing for a while after one that took its time; a worker asks again, and so do we.
    job fetch_one(transport& from) {
        const time_point end = deadline_after(test::hang_guard);
        std::vector<job> got = fetch(from);
        while (got.empty() && steady_clock::now() < end) got = fetch(from);
        REQUIRE(got.size() == 1);
        return got.front();
    }
    job claim(transport& by, const std::string& name, const std::string& text = noop) {
        put(name, text);
        return fetch_one(by);
    }
    // What a worker that died left behind: a folder with a free lock, and these files.
    fs::path leave_dead_worker(std::initializer_list<std::pair<std::string, std::string>> files) {
        if (!fs::exists(path)) static_cast<void>(open());
        const fs::path out = path / "processing" / "1-dead";
        fs::create_directory(out);
        write_file(out / ".owner", "{}");
        for (const auto& [name, text] : files) write_file(out / name, text);
        return out;
    }
    // All that is in request/, done/ and failed/, sorted: "done/a request/.about.b request/b".
    std::string listing() const {
        std::string out;
        for (const char* folder : {"done", "failed", "request"}) {
            std::vector<std::string> all = hidden(folder);  // which sort before others
            for (const std::string& each : names(folder)) all.push_back(each);
            for (const std::string& each : all) out += (out.empty() ? "" : " ") + std::string(folder) + "/" + each;
        }
        return out;
    }
    // Sorted.
    std::vector<std::string> names(const std::string& folder) const { return all_of(folder, false); }
    std::vector<std::string> hidden(const std::string& folder) const { return all_of(folder, true); }
    std::string read(const std::string& name) const { return read_file(path / name); }
    std::vector<log_record> events() {
        const std::lock_guard<std::mutex> held(mutex_);
        return events_;
    }
    int event_count(const std::string& start) {
        int out = 0;
        for (const log_record& each : events()) out += holds(each.message, start) ? 1 : 0;
        return out;
    }
    std::size_t owners() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(path / "processing"), {}));
    }

  private:
    std::vector<std::string> all_of(const std::string& folder, bool are_hidden) const {
        std::vector<std::string> out;
        for (const auto& each : fs::directory_iterator(path / folder)) {
            const std::string name = each.path().filename();
            if ((name.front() == '.') == are_hidden) out.push_back(name);
        }
        std::sort(out.begin(), out.end());
        return out;
    }

    temporary_folder own_;
    std::mutex mutex_;
    std::vector<log_record> events_;

  public:
    const fs::path path;
    spool_options options;
    worker_identity worker;
};

// With a transport, which is what the calls without one go to.
struct opened_dir : spool_dir {
    explicit opened_dir(bool accept_any_file = false,
                        std::vector<std::chrono::milliseconds> retry_delays = spool_options().retry_delays)
        : spool_dir({}, accept_any_file, std::move(retry_delays)), transport(open()) {}
    explicit opened_dir(fs::path where, bool accept_any_file = false)
        : spool_dir(std::move(where), accept_any_file), transport(open()) {}
    operator ojs::transport&() const { return *transport; }
    using spool_dir::claim;
    using spool_dir::fetch;
    using spool_dir::fetch_one;
    std::vector<job> fetch(std::size_t count = 1) { return spool_dir::fetch(*transport, count); }
    job fetch_one() { return spool_dir::fetch_one(*transport); }
    job claim(const std::string& name, const std::string& text = noop) {
        return spool_dir::claim(*transport, name, text);
    }
    const transport_ref transport;
};

using names = std::vector<std::string>;

inline std::string member(const std::string& object, const char* key) {
    return std::string(detail::raw_member(object, key));
}

inline std::string spool_path(const job& claimed) {
    std::string out;
    REQUIRE(detail::read_json_string(detail::raw_member(claimed.meta_json, "spool_path"), out));
    return out;
}

inline job_error boom(bool retryable = true) { return {"handler_error", "boom \"x\"", retryable, "{\"n\":1}"}; }

inline settle_result accept(const result<settle_result>& answer) {
    REQUIRE_MESSAGE(answer, answer.error().text);
    return *answer;
}

inline settle_result ack(transport& to, const std::string& id, const std::string& result = "") {
    return accept(to.ack({{{}, id}, result}, deadline_after(10s)));
}
inline settle_result fail(transport& to, const std::string& id, const job_error& why = boom(),
                          const std::string& checkpoint = "") {
    return accept(to.fail({{{}, id}, why, false, checkpoint}, deadline_after(10s)));
}
inline settle_result requeue(transport& to, const std::string& id) {
    return accept(to.fail({{{}, id}, boom(), true, ""}, deadline_after(10s)));
}

// Bytes that are no JSON, no text and not even UTF-8.
inline const std::string odd_bytes("\0\xff\xfe{\"type\":\n", 12);
}  // namespace spool_test
