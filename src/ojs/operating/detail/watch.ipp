// watch: lets a thread wait for something in a worker to come about; while nobody waits, saying so costs one atomic.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"

namespace ojs::detail {

class watch {
  public:
    // Something may have come about. Both sides begin with a read-modify-write of the same atomic, so that either the
    // waiter sees what happened before this, or this sees the waiter.
    void announce() noexcept {
        if (waiting_.fetch_add(0, memory_order::acq_rel) == 0) return;
        const lock_guard held(mutex_);
        changed_.notify_all();
    }

    // Waits until `holds()`, which is asked under a lock after every announce(); false at the deadline.
    template <class Condition>
    bool await(time_point deadline, Condition holds) {
        waiting_.fetch_add(1, memory_order::acq_rel);
        bool held_true = false;
        {
            lock_guard held(mutex_);
            bool in_time = true;
            while (!(held_true = holds()) && in_time) in_time = changed_.wait_until(held, deadline);
        }
        waiting_.fetch_sub(1, memory_order::acq_rel);
        return held_true;
    }

  private:
    atomic<unsigned> waiting_{0};
    mutex mutex_;
    condition changed_;
};

}  // namespace ojs::detail
