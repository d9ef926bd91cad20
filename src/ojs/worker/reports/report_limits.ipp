// report_limits: until when a stop lets jobs be reported, and when a failed report is tried again.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/duration.hpp"

namespace ojs::detail {

// time_point::max() until the stop begins. Thread-safe.
class report_limits {
  public:
    // Settling calls give up at this moment.
    time_point deadline() const noexcept { return deadline_.load(memory_order::acquire); }
    void set(time_point when) {
        deadline_.store(when, memory_order::release);
        retry_now();
    }
    // Ends every pause.
    void retry_now() {
        const lock_guard held(mutex_);
        ++changes_;
        changed_.notify_all();
    }
    std::uint32_t changes() const noexcept { return changes_; }
    // No FAIL waits for a checkpoint under way after this moment: what it holds goes with the FAIL anyway.
    time_point saves() const noexcept { return saves_.load(memory_order::acquire); }
    void set_saves(time_point when) noexcept { saves_.store(when, memory_order::release); }

    // Between two attempts of a settling call. set() and retry_now() end it, also those since changes() was `seen`.
    void pause(time_point until, std::uint32_t seen) {
        lock_guard held(mutex_);
        const time_point last = deadline();
        while (changes_ == seen && changed_.wait_until(held, until < last ? until : last)) {
        }
    }

  private:
    atomic<time_point> deadline_{time_point::max()};
    atomic<time_point> saves_{time_point::max()};
    atomic<std::uint32_t> changes_{0};
    mutex mutex_;
    condition changed_;
};

}  // namespace ojs::detail
