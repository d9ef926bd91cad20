// active_threads: how many of a server's threads look for the next event: one for each processor, and more while those wait.
#pragma once

#include <time.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"

namespace ojs::detail {

inline constexpr auto activity_interval = std::chrono::milliseconds(1);

// Every thread that looks for events costs the others a switch between threads for each event. So only some do, and the rest
// is parked. One thread of the server adjusts how many, while needs_adjusting.
class active_threads {
  public:
    // Until then, every thread looks for events.
    void begin(int base, int all) noexcept {
        base_ = allowed_ = base;
        all_ = all;
    }
    void enter() noexcept { ++active_; }
    void leave() noexcept { --active_; }
    // What `wait` returns, once this thread may call it. `nobody_waits`: called where no other thread does by then.
    template <class Wait, class NobodyWaits>
    void* next(Wait wait, NobodyWaits nobody_waits) noexcept {
        if (base_ < all_ && active_.load() > allowed_.load()) park();
        waiting_.fetch_add(1);
        void* const found = wait();
        events_.fetch_add(1);
        if (waiting_.fetch_sub(1) == 1 && base_ < all_ && !is_adjusting_.load() &&
            !is_adjusting_.exchange(true))
            nobody_waits();
        return found;
    }
    bool needs_adjusting() const noexcept { return is_adjusting_.load(); }
    // Every activity_interval. Handlers that wait, rather than compute, are joined by as many threads again.
    void adjust() noexcept {
        const time_point now = steady_clock::now();
        if (!needs_adjusting() || now - adjusted_at_ < activity_interval) return;
        timespec used{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
        const auto computed = std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
        const unsigned events = events_.load();
        const lock_guard held(mutex_);
        const bool stands_still = detail::exchange(seen_events_, events) == events;
        const bool is_idle = (computed - computed_) * 4 < (now - adjusted_at_) * active_.load();
        computed_ = computed;
        adjusted_at_ = now;
        if (detail::exchange(is_first_, false)) return;
        if (waiting_.load() == 0) {
            if (!stands_still && !is_idle) return;
            needed_at_ = now;
            const int twice = active_ * 2;  // 0 while the only thread is replaced by another
            allowed_ = twice < base_ ? base_ : twice < all_ ? twice : all_;
            unparked_.notify_all();
        } else if (allowed_ > base_) {
            if (now - needed_at_ < 10 * activity_interval) return;
            needed_at_ = now;
            --allowed_;
        } else {
            is_first_ = true;
            is_adjusting_ = false;
            // A thread that took the last waiting place meanwhile saw it set.
            if (waiting_.load() == 0) is_adjusting_ = true;
        }
    }
    void stop() noexcept {
        const lock_guard held(mutex_);
        stopped_ = true;
        unparked_.notify_all();
    }

  private:
    void park() noexcept {
        lock_guard held(mutex_);
        if (active_ <= allowed_) return;
        --active_;
        while (active_ >= allowed_ && !stopped_) unparked_.wait(held);
        ++active_;
    }

    int base_ = 0;
    int all_ = 0;
    atomic<int> active_{0};   // neither parked nor ended
    atomic<int> allowed_{0};  // so many may be active
    atomic<int> waiting_{0};
    atomic<unsigned> events_{0};
    atomic<bool> is_adjusting_{false};
    mutex mutex_;  // guards what follows, and the first two where threads park
    condition unparked_;
    bool stopped_ = false;
    bool is_first_ = true;  // there is nothing to compare with yet
    unsigned seen_events_ = 0;
    std::chrono::nanoseconds computed_{0};
    time_point adjusted_at_;
    time_point needed_at_;
};

}  // namespace ojs::detail
