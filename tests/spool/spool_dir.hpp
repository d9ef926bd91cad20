// A spool directory for a test, what is done to it from outside, and short ways to look at it.
#pragma once
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "../worker/recorder.hpp"
#include "files.hpp"
#include "text.hpp"

namespace spool_test {

using namespace ojs;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
using test::holds;
using test::read_file;
using test::temporary_folder;
using test::write_file;

// Whatever the umask is.
inline void make_folder(const fs::path& path) {
    REQUIRE(::mkdir(path.c_str(), 0700) == 0);
}

// As if it had last been changed an hour ago.
inline void make_old(const fs::path& path) {
    const timespec times[2] = {{::time(nullptr) - 3600, 0}, {::time(nullptr) - 3600, 0}};
    REQUIRE(::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0);
}

// A spool directory and what the test does to it from outside.
class spool_dir {
  public:
    explicit spool_dir(fs::path where = {}) : path(where.empty() ? own_.path() / "spool" : where) {
        options.directory = path.string();
        options.recovery_interval = 0ms;
        options.on_event = [this](const spool_event& event) {
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
    void put(const std::string& name, const std::string& text) {
        write_file(path / "request" / ".cp", text);
        fs::rename(path / "request" / ".cp", path / "request" / name);
    }
    fetch_request asking(std::size_t count = 1) {
        fetch_request out;
        out.worker = &worker;
        out.count = count;
        return out;
    }
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
    // Visible names, sorted.
    std::vector<std::string> names(const std::string& folder) const {
        std::vector<std::string> out;
        for (const auto& each : fs::directory_iterator(path / folder)) {
            const std::string name = each.path().filename();
            if (name.front() != '.') out.push_back(name);
        }
        std::sort(out.begin(), out.end());
        return out;
    }
    std::vector<std::string> hidden(const std::string& folder) const {
        std::vector<std::string> out;
        for (const auto& each : fs::directory_iterator(path / folder)) {
            const std::string name = each.path().filename();
            if (name.front() == '.') out.push_back(name);
        }
        return out;
    }
    std::string read(const std::string& name) const { return read_file(path / name); }
    std::vector<spool_event> events() {
        const std::lock_guard<std::mutex> held(mutex_);
        return events_;
    }
    int event_count(spool_event_kind kind) {
        int out = 0;
        for (const spool_event& each : events()) out += each.kind == kind ? 1 : 0;
        return out;
    }
    // All that is left of owners.
    std::size_t owners() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(path / "processing"), {}));
    }

  private:
    temporary_folder own_;
    std::mutex mutex_;
    std::vector<spool_event> events_;

  public:
    const fs::path path;
    spool_options options;
    worker_identity worker;
};

using names = std::vector<std::string>;

inline std::string member(const std::string& object, const char* key) {
    return std::string(detail::raw_member(object, key));
}

inline std::string spool_path(const job& claimed) {
    std::string out;
    REQUIRE(detail::raw_string(detail::raw_member(claimed.meta_json, "spool_path"), out));
    return out;
}

inline job_error boom(bool retryable = true) {
    return {"handler_error", "boom \"x\"", retryable, "{\"n\":1}"};
}

inline settled accept(const result<settled>& answer) {
    REQUIRE_MESSAGE(answer, answer.error().text);
    return *answer;
}

// Bytes that are no JSON, no text and not even UTF-8.
inline const std::string odd_bytes("\0\xff\xfe{\"type\":\n", 12);

inline fail_request hand_back(const std::string& id, std::string checkpoint = {}) {
    return {id, boom(), true, std::move(checkpoint)};
}

}  // namespace spool_test
