// launcher_events: the last changes in a launcher, each a line of JSON, for whoever follows them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../base/detail/clock.ipp"
#include "../launcher_options.hpp"

namespace ojs::detail {

// Which changes somebody wants; empty: all.
struct event_filter {
    std::string_view group;
    std::string_view process_id;
};

// Numbered from 1. Thread-safe; its mutex is held for no call to anything else.
class launcher_events : public ref_counted {
  public:
    // A process is `now`, and was in `before`.
    void tell(const process_info& now, instance_state before) {
        std::string more = cat({",\"state\":\"", to_string(now.state), "\",\"before\":\"", to_string(before),
                                "\",\"pid\":", now.pid, now.routable ? ",\"routable\":true" : ""});
        if (!now.message.empty()) append(more, {",\"message\":", json_quote(now.message)});
        if (is_over(now.state) && now.shutdown_took.count() > 0)
            append(more, {",\"shutdownMs\":", now.shutdown_took.count()});
        add(now.group, now.id, more);
    }
    // Something of a group: `more` are members of JSON, each after a comma.
    void tell(const std::string& group, const char* event, std::string_view more) {
        add(group, {}, cat({",\"event\":", json_quote(event), more}));
    }

    // The lines after number `after`, if any, and one that says where to go on. False: there were none.
    bool collect(std::uint64_t after, const event_filter& wanted, std::string& out) {
        const lock_guard held(mutex_);
        heard_ = last_;
        heard_at_ = steady_clock::now();
        added_.notify_all();
        const std::size_t before = out.size();
        if (was_missed(after)) append(out, {"{\"missed\":true}\n"});
        for (const entry& each : entries_) {
            if (each.number > after || after > last_) append_wanted(each, wanted, out);
        }
        const bool found = out.size() != before;
        append(out, {"{\"next\":", last_, "}\n"});
        return found;
    }
    // Waits for the next one, whosever it is; false at the deadline.
    bool await_more(std::uint64_t known, time_point deadline) {
        lock_guard held(mutex_);
        while (last_ <= known && !ended_) {
            if (!added_.wait_until(held, deadline)) return last_ > known;
        }
        return last_ > known;
    }
    std::uint64_t last() const {
        const lock_guard held(mutex_);
        return last_;
    }
    bool ended() const {
        const lock_guard held(mutex_);
        return ended_;
    }
    // Nobody waits any more. Who follows, and is between two questions, has until `deadline` to hear of the last.
    void end(time_point deadline) {
        lock_guard held(mutex_);
        ended_ = true;
        added_.notify_all();
        while (heard_ < last_ && steady_clock::now() - heard_at_ < follower_pause) {
            if (!added_.wait_until(held, deadline)) return;
        }
    }

  private:
    static constexpr std::size_t kept = 1024;
    static constexpr std::chrono::seconds follower_pause{2};  // who asks no more in this time has gone
    struct entry {
        std::uint64_t number = 0;
        std::string group;
        std::string process_id;
        std::string line;
    };

    void add(const std::string& group, const std::string& process_id, std::string_view more) {
        entry made;
        made.group = group;
        made.process_id = process_id;
        made.line = cat({",\"time\":\"", utc_timestamp(), "\",\"group\":", json_quote(group)});
        if (!process_id.empty()) append(made.line, {",\"processId\":", json_quote(process_id)});
        append(made.line, {more, "}\n"});
        const lock_guard held(mutex_);
        made.number = ++last_;
        if (entries_.size() == kept) entries_.remove(0);
        entries_.push_back(std::move(made));
        added_.notify_all();
    }
    // Also where it is a number of another launcher, which was there before this one.
    bool was_missed(std::uint64_t after) const noexcept {
        return after > last_ || (!entries_.empty() && after + 1 < entries_[0].number);
    }
    static void append_wanted(const entry& of, const event_filter& wanted, std::string& out) {
        if (!wanted.group.empty() && wanted.group != of.group) return;
        if (!wanted.process_id.empty() && wanted.process_id != of.process_id) return;
        append(out, {"{\"seq\":", of.number, of.line});
    }

    mutable mutex mutex_;
    condition added_;
    array<entry> entries_;
    std::uint64_t last_ = 0;
    std::uint64_t heard_ = 0;  // by somebody
    time_point heard_at_{};
    bool ended_ = false;
};

}  // namespace ojs::detail
