// routing: tells the program which processes may be given work, in order and from one thread.
#pragma once

#include "../launcher_options.hpp"

namespace ojs::detail {

inline constexpr std::chrono::milliseconds max_hook_time{1000};

// Nothing of ours waits for a hook, but a shutdown, and that for max_hook_time.
class routing : public ref_counted {
  public:
    enum class kind { routable, unroutable, changed };

    // `on_unrouted` is called after each `unroutable`.
    routing(function<void(const process_info&)> routable, function<void(const process_info&)> unroutable,
            function<void(const process_info&)> changed, const logger& log,
            function<void()> on_unrouted = nullptr)
        : hooks_{std::move(routable), std::move(unroutable), std::move(changed)},
          log_(log),
          on_unrouted_(std::move(on_unrouted)) {}
    ~routing() override { stop(); }

    result<void> start() {
        if (!hooks_[0] && !hooks_[1] && !hooks_[2]) return {};
        result<thread> started = thread::start([this] { run(); }, {0, 0, false, "ojs-routing"});
        if (!started) return started.error();
        thread_ = std::move(*started);
        running_ = true;
        return {};
    }
    // What was posted is still called.
    void stop() {
        {
            const lock_guard held(mutex_);
            ending_ = true;
        }
        posted_.notify_all();
        thread_.join();
    }

    // The number of the entry, for was_called(); 0: there is no hook.
    std::uint64_t post(kind what, const process_info& of) {
        if (!running_ || !hooks_[static_cast<int>(what)]) return 0;
        const lock_guard held(mutex_);
        queue_.push_back({what, of});
        posted_.notify_all();
        return ++count_;
    }
    bool was_called(std::uint64_t number) {
        const lock_guard held(mutex_);
        return called_ >= number;
    }
    // Until everything posted so far was called.
    void await_calls(time_point deadline) {
        lock_guard held(mutex_);
        const std::uint64_t wanted = count_;
        while (called_ < wanted && call_ended_.wait_until(held, deadline)) {
        }
        if (called_ >= wanted) return;
        held.unlock();
        log_.write(log_level::warn, "a hook of the routing takes long, processes are shut down without it");
    }

  private:
    struct entry {
        kind what = kind::changed;
        process_info of;
    };

    void run() {
        lock_guard held(mutex_);
        for (;;) {
            while (queue_.empty() && !ending_) posted_.wait(held);
            if (queue_.empty()) return;
            array<entry> all;
            all.swap(queue_);
            for (const entry& each : all) {
                held.unlock();
                call(each);
                held.lock();
                ++called_;
                call_ended_.notify_all();
                if (on_unrouted_ && each.what == kind::unroutable) on_unrouted_();
            }
        }
    }
    void call(const entry& of) const {
        try {
            hooks_[static_cast<int>(of.what)](of.of);
        } catch (...) {
            pass_on_thread_end();
            log_.write(log_level::error, "a routing hook threw", {field("process_id", of.of.id)});
        }
    }

    const function<void(const process_info&)> hooks_[3];
    const logger& log_;
    const function<void()> on_unrouted_;
    bool running_ = false;  // before anything is posted
    mutex mutex_;
    condition posted_;
    condition call_ended_;
    array<entry> queue_;
    std::uint64_t count_ = 0;
    std::uint64_t called_ = 0;
    bool ending_ = false;
    thread thread_;
};

}  // namespace ojs::detail
