// launcher_context: the routing hooks, the events and the other state that all groups of a launcher share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../base/detail/clock.ipp"
#include "../launcher_options.hpp"
#include "instance.hpp"
#include "state_file.ipp"

namespace ojs::detail {
inline constexpr std::chrono::milliseconds hook_timeout{1000};

// Calls the routing hooks in a thread of its own. Only a shutdown waits for them, up to hook_timeout.
class routing_hooks : public ref_counted {
  public:
    enum class kind { routable, unroutable, changed };

    routing_hooks(function<void(const process_info&)> routable, function<void(const process_info&)> unroutable,
                  function<void(const process_info&)> changed, const logger& log,
                  function<void()> after_unroutable_hook = nullptr)
        : hooks_{std::move(routable), std::move(unroutable), std::move(changed)},
          log_(log),
          after_unroutable_hook_(std::move(after_unroutable_hook)) {}
    ~routing_hooks() override { stop(); }

    result<void> start() {
        if (!hooks_[0] && !hooks_[1] && !hooks_[2]) return {};
        result<thread> started = thread::start([this] { run(); }, {0, false, "ojs-routing"});
        if (!started) return started.error();
        thread_ = std::move(*started);
        running_ = true;
        return {};
    }
    // Calls the remaining hooks first.
    void stop() {
        {
            const unique_lock held(mutex_);
            ending_ = true;
        }
        posted_.notify_all();
        thread_.join();
    }

    // Returns a number for was_called(); 0: there is no hook.
    std::uint64_t post(kind hook, const process_info& info) {
        if (!running_ || !hooks_[static_cast<int>(hook)]) return 0;
        const unique_lock held(mutex_);
        queue_.push_back({hook, info});
        posted_.notify_all();
        return ++posted_count_;
    }
    bool was_called(std::uint64_t number) {
        const unique_lock held(mutex_);
        return called_count_ >= number;
    }
    // Waits until the hooks posted so far have returned.
    void await_calls(time_point deadline) {
        unique_lock held(mutex_);
        const std::uint64_t last = posted_count_;
        while (called_count_ < last && call_returned_.wait_until(held, deadline)) continue;
        if (called_count_ >= last) return;
        held.unlock();
        log_.write(log_level::warn, "a routing hook has not returned in time; shutting down without it");
    }

  private:
    struct entry {
        kind hook = kind::changed;
        process_info process;
    };

    void run() {
        unique_lock held(mutex_);
        for (;;) {
            while (queue_.empty() && !ending_) posted_.wait(held);
            if (queue_.empty()) return;
            array<entry> all;
            all.swap(queue_);
            for (const entry& posted : all) {
                held.unlock();
                call(posted);
                held.lock();
                ++called_count_;
                call_returned_.notify_all();
                if (after_unroutable_hook_ && posted.hook == kind::unroutable) after_unroutable_hook_();
            }
        }
    }
    void call(const entry& posted) const {
        try {
            hooks_[static_cast<int>(posted.hook)](posted.process);
        } catch (...) {
            static constexpr const char* names[] = {"on_routable", "on_unroutable", "on_change"};
            log_.write(log_level::error, "a routing hook threw",
                       {field("hook", names[static_cast<int>(posted.hook)]), field("process_id", posted.process.id),
                        field("error", thrown_text())});
        }
    }

    const function<void(const process_info&)> hooks_[3];
    const logger& log_;
    const function<void()> after_unroutable_hook_;
    bool running_ = false;
    mutex mutex_;
    condition posted_;
    condition call_returned_;
    array<entry> queue_;
    std::uint64_t posted_count_ = 0;
    std::uint64_t called_count_ = 0;
    bool ending_ = false;
    thread thread_;
};

// Selects changes; an empty field selects all.
struct event_filter {
    std::string_view group;
    std::string_view process_id;
};

// The last changes, numbered from 1. Thread-safe; calls nothing with its mutex held.
class launcher_events : public ref_counted {
  public:
    void record_change(const process_info& now, instance_state before) {
        std::string more = cat({",\"state\":\"", to_string(now.state), "\",\"before\":\"", to_string(before),
                                "\",\"pid\":", now.pid, now.routable ? ",\"routable\":true" : ""});
        if (!now.message.empty()) append(more, {",\"message\":", json_quote(now.message)});
        if (is_final(now.state) && now.shutdown_duration.count() > 0)
            append(more, {",\"shutdownMs\":", now.shutdown_duration.count()});
        add(now.group, now.id, more);
    }
    // `more`: JSON members, each after a comma.
    void record_event(const std::string& group, const char* event, std::string_view more) {
        add(group, {}, cat({",\"event\":", json_quote(event), more}));
    }

    // Appends the changes after number `after`, and a line with the next number. False: there were none.
    bool collect(std::uint64_t after, const event_filter& filter, std::string& out) {
        const unique_lock held(mutex_);
        read_ = last_;
        read_at_ = steady_clock::now();
        added_.notify_all();
        const std::size_t before = out.size();
        const bool is_foreign = after > last_;  // the number of an earlier launcher
        const bool is_missed = !entries_.empty() && after + 1 < entries_[0].number;
        if (is_foreign || is_missed) append(out, {"{\"missed\":true}\n"});
        for (const entry& change : entries_) {
            const bool in_group = filter.group.empty() || filter.group == change.group;
            const bool of_process = filter.process_id.empty() || filter.process_id == change.process_id;
            const bool is_new = is_foreign || change.number > after;
            if (is_new && in_group && of_process) append(out, {"{\"seq\":", change.number, change.line});
        }
        const bool found = out.size() != before;
        append(out, {"{\"next\":", last_, "}\n"});
        return found;
    }
    // Waits for a change of any process; false at the deadline.
    bool await_more(std::uint64_t known, time_point deadline) {
        unique_lock held(mutex_);
        while (last_ <= known && !ended_ && added_.wait_until(held, deadline)) continue;
        return last_ > known;
    }
    std::uint64_t last() const {
        const unique_lock held(mutex_);
        return last_;
    }
    bool ended() const {
        const unique_lock held(mutex_);
        return ended_;
    }
    // Ends all waits. A follower that is between two requests has until `deadline` to read the last change.
    void end(time_point deadline) {
        unique_lock held(mutex_);
        ended_ = true;
        added_.notify_all();
        while (read_ < last_ && steady_clock::now() - read_at_ < follower_timeout) {
            if (!added_.wait_until(held, deadline)) return;
        }
    }

  private:
    static constexpr std::size_t max_events = 1024;
    static constexpr std::chrono::seconds follower_timeout{2};  // a follower without requests is gone
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
        made.line = cat({",\"time\":\"", utc_text(), "\",\"group\":", json_quote(group)});
        if (!process_id.empty()) append(made.line, {",\"processId\":", json_quote(process_id)});
        append(made.line, {more, "}\n"});
        const unique_lock held(mutex_);
        made.number = ++last_;
        if (entries_.size() == max_events) entries_.remove(0);
        entries_.push_back(std::move(made));
        added_.notify_all();
    }

    mutable mutex mutex_;
    condition added_;
    array<entry> entries_;
    std::uint64_t last_ = 0;
    std::uint64_t read_ = 0;  // the last number that a follower has read
    time_point read_at_{};
    bool ended_ = false;
};

struct launcher_context : ref_counted {
    instance_starter starter;
    ref<ojs::detail::routing_hooks> routing;
    ref<launcher_events> events = make_ref<launcher_events>();
    logger log;
    ref<state_file> state;  // may be null
    const lifecycle* life = nullptr;
    function<void()> wake;  // wakes the supervisor
    std::string socket_folder;
    std::string launcher_address;
};
}  // namespace ojs::detail
