// replacement_threads: rolling replacements that nobody waits for.
#pragma once

#include "../../base/detail/atomic.hpp"
#include "rolling_replace.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Each in a thread of its own.
class replacement_threads {
  public:
    ~replacement_threads() { join(); }

    // Returns when it has begun. Errors: as rolling_replacement::begin().
    result<void> start(const ref<process_group>& group, const group_options& wanted,
                       const rolling_options& how) {
        const lock_guard held(mutex_);
        forget_ended();
        const ref<task> added = make_ref<task>(group, wanted, how);
        const result<void> begun = added->work.begin();
        if (!begun) return begun;
        result<thread> started = thread::start([added] { added->run(); }, {0, 0, false, "ojs-rolling"});
        if (!started) {
            added->work.give_up();
            return started.error();
        }
        added->runner = std::move(*started);
        tasks_.push_back(added);
        return {};
    }
    // They end with their groups' stop_starting().
    void join() {
        const lock_guard held(mutex_);
        for (const ref<task>& each : tasks_) each->runner.join();
        tasks_.clear();
    }

  private:
    struct task : ref_counted {
        task(const ref<process_group>& of, const group_options& wanted, const rolling_options& how)
            : group(of), work(*group, wanted, how, {}) {}
        void run() {
            static_cast<void>(work.go_on());
            ended.store(true, memory_order::release);
        }

        const ref<process_group> group;
        rolling_replacement work;
        atomic<bool> ended{false};
        thread runner;
    };

    void forget_ended() {
        for (std::size_t i = 0; i < tasks_.size();) {
            if (tasks_[i]->ended.load(memory_order::acquire)) {
                tasks_[i]->runner.join();
                tasks_.remove(i);
            } else {
                ++i;
            }
        }
    }

    mutex mutex_;
    array<ref<task>> tasks_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
