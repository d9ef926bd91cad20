// A launcher within this program, with one group.
#pragma once
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "../support/events.hpp"
#include "bench.hpp"
#include "ojs_launcher.hpp"

namespace bench {

using namespace std::chrono_literals;

// Percent of the rounds to run: fewer for a quick impression.
inline int share_of(int count) {
    const char* const percent = ::getenv("OJS_BENCH_PERCENT");
    const int out = percent == nullptr ? count : count * std::atoi(percent) / 100;
    return std::max(out, 1);
}

// A launcher's log records of level warn and above.
class log_lines {
  public:
    ojs::log_options options() {
        ojs::log_options out;
        out.level = ojs::log_level::warn;
        out.hook = [this](const ojs::log_record& record) {
            const std::lock_guard<std::mutex> held(mutex_);
            ++count_;
            lines_.push_back("\n" + ojs::format_log_record(record, ojs::log_format::text));
            if (lines_.size() > 5) lines_.erase(lines_.begin());
        };
        return out;
    }
    // How many, and the last of them.
    std::string text() const {
        const std::lock_guard<std::mutex> held(mutex_);
        std::string out = std::to_string(count_) + " warnings of the launcher";
        for (const std::string& each : lines_) out += each;
        return out;
    }

  private:
    mutable std::mutex mutex_;
    int count_ = 0;
    std::vector<std::string> lines_;
};

inline constexpr const char* group_name = "group";

// A launcher in this process, with one group.
class fleet {
  public:
    using hook = std::function<void(const ojs::process_info&)>;

    explicit fleet(const ojs::group_options& group, hook on_routable = {}, hook on_unroutable = {},
                   hook on_change = {})
        : group_(group),
          launcher_(options_for(std::move(on_routable), std::move(on_unroutable), std::move(on_change))) {
        const ojs::result<void> started = launcher_.start();
        if (!started) throw failure(started.error().text);
        if (!ready_.wait_for(group_.desired)) fail("the group was not ready");
    }

    ojs::launcher* operator->() { return &launcher_; }
    // Milliseconds a whole replacement took.
    double replace(int surge) { return replace(group_, surge); }
    double replace(ojs::group_options to, int surge) {
        to.max_surge = surge;
        const std::int64_t began = monotonic_ns();
        const auto report = launcher_.rolling_replace(group_name, to);
        if (!report) fail(report.error().text);
        if (report->replaced != group_.desired) fail(report->failed_id + " " + report->error);
        return static_cast<double>(monotonic_ns() - began) / 1e6;
    }
    // A replacement of which so many become and stay ready, and the next one does as `fault` says; it is taken back.
    void fail_to_replace(int good, const std::string& fault = "exit 3") {
        ojs::group_options to = group_;
        to.min_ready_time = 1s;
        to.health_check_timeout = 2s;
        const std::string bad = std::string(group_name) + "-" + std::to_string(last_number() + good + 1);
        to.process.child.command = {"/bin/sh", "-c",
                                    "test $OJS_PROCESS_ID != " + bad + " && exec \"$0\" \"$@\"; " + fault};
        for (const std::string& each : group_.process.child.command) to.process.child.command.push_back(each);
        const auto report = launcher_.rolling_replace(group_name, to);
        if (!report) fail(report.error().text);
        if (!report->rolled_back || report->mixed || report->failed_id != bad)
            fail("rolled back not because of " + bad + " but of " + report->failed_id + " " + report->error);
    }
    void stop() {
        launcher_.request_stop();
        if (!launcher_.wait(ojs::deadline_after(guard))) fail("the launcher did not end");
        if (launcher_.exit_code() != 0) fail("the launcher left some behind");
    }
    std::string warnings() const { return log_.text(); }

  private:
    int last_number() const {
        const auto now = launcher_.group(group_name);
        int out = 0;
        for (const ojs::process_info& each : now->processes)
            out = std::max(out, std::stoi(each.id.substr(each.id.rfind('-') + 1)));
        return out;
    }
    ojs::launcher_options options_for(hook on_routable, hook on_unroutable, hook on_change) {
        ojs::launcher_options out;
        out.groups = {group_};
        out.log = log_.options();
        out.on_routable = [this, forward = std::move(on_routable)](const ojs::process_info& of) {
            if (forward) forward(of);
            ready_.add();
        };
        if (on_unroutable) out.on_unroutable = std::move(on_unroutable);
        if (on_change) out.on_change = std::move(on_change);
        return out;
    }
    [[noreturn]] void fail(const std::string& why) const { throw failure(why + "; " + log_.text()); }

    const ojs::group_options group_;
    log_lines log_;
    test::counter ready_;
    ojs::launcher launcher_;
};

// Polls are far apart: what counts is pushed, or seen by the end of the process.
inline ojs::group_options group_of(int size, std::vector<std::string> command) {
    ojs::group_options out;
    out.name = group_name;
    out.desired = size;
    out.min_healthy = size;
    out.min_ready_time = 50ms;
    out.process.child.command = std::move(command);
    out.process.child.output = ojs::child_stream::null();
    out.process.child.errors = ojs::child_stream::null();
    return out;
}

}  // namespace bench
