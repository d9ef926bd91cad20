// watcher: the thread that waits for new entries. It claims none.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "../../base/detail/sync.hpp"
#include "../../core/cancel_token.hpp"
#include "connection.ipp"

namespace ojs::detail {
namespace redis {
class watcher {
  public:
    explicit watcher(pool& from) : pool_(from) {}
    ~watcher() { stop(); }

    // Without a thread the worker polls.
    void start(function<void()> callback) {
        stopped_ = cancel_source();
        result<ojs::detail::thread> started = ojs::detail::thread::start(
            [this, callback = std::move(callback), stop = stopped_.token()] { run(callback, stop); },
            {0, false, "ojs-redis"});
        if (started) thread_ = std::move(*started);
    }
    // Once it has returned, the callback is no longer called.
    void stop() {
        stopped_.cancel(cancel_reason::cancelled);
        thread_.join();
    }
    // The keys of streams with new entries since the last call.
    std::set<std::string> take_news() {
        const std::lock_guard<std::mutex> held(mutex_);
        return std::exchange(news_, {});
    }
    // FETCHes have come to these entries: later ones are news. If one was full, the worker fetches again by itself.
    void watch(words keys, words entries, bool is_full) {
        const std::lock_guard<std::mutex> held(mutex_);
        keys_ = std::move(keys);
        entries_ = std::move(entries);
        is_armed_ = true;
        is_full_ = is_full;
        armed_.notify_one();
    }

  private:
    static constexpr std::chrono::milliseconds block{5000}, pause{1000}, full_pause{50};

    void run(const function<void()>& callback, const cancel_token& stop) {
        const result<int> stop_fd = stop.fd();
        if (!stop_fd) return;
        connection_ptr on;
        for (words command; await_position(stop, command);) {
            if (on && !pool_.is_usable(*on)) on.reset();
            if (!on) {
                result<connection_ptr> made = pool_.connect(deadline_after(pause), *stop_fd);
                if (made) on = std::move(*made);
            }
            const result<reply> got =
                on ? on->call(command, deadline_after(2 * block), *stop_fd) : result<reply>(error{});
            if (!got && on) pool_.leave(*on);
            const bool failed = !got || got->is_error;
            if (failed && !stop.sleep_for(pause)) return;
            if (failed || !add_news(got->texts)) continue;
            command.clear();
            callback();
        }
    }
    // False: none. A text that a stream has as well does no harm.
    bool add_news(const words& texts) {
        const std::lock_guard<std::mutex> held(mutex_);
        bool out = false;
        for (const std::string& key : keys_) {
            if (std::find(texts.begin(), texts.end(), key) == texts.end()) continue;
            news_.insert(key);
            out = true;
        }
        return out;
    }
    // False: stopped. A plain XREAD from the last delivered entry returns at once if there is a later one.
    bool await_position(const cancel_token& stop, words& command) {
        std::unique_lock<std::mutex> lock(mutex_);
        if (command.empty() && !stop.wait(armed_, lock, [this] { return is_armed_; })) return false;
        if (!exchange(is_armed_, false)) return !stop.cancelled();
        command = {"XREAD", "COUNT", "1", "BLOCK", cat({block.count()}), "STREAMS"};
        command.insert(command.end(), keys_.begin(), keys_.end());
        command.insert(command.end(), entries_.begin(), entries_.end());
        const time_point not_before = is_full_ ? deadline_after(full_pause) : time_point::min();
        lock.unlock();
        return stop.sleep_until(not_before);
    }

    pool& pool_;
    cancel_source stopped_;
    ojs::detail::thread thread_;
    std::mutex mutex_;  // of all below
    std::condition_variable armed_;
    bool is_armed_ = false;
    bool is_full_ = false;
    words keys_;
    words entries_;
    std::set<std::string> news_;
};
}  // namespace redis
}  // namespace ojs::detail
