// running_jobs: the jobs that have a thread, until that is home again.
#pragma once

#include "../../core/detail/wake.hpp"
#include "../threads/pool_threads.ipp"
#include "active_job.ipp"

namespace ojs::detail {

// When the supervisor looks at the jobs next. It says so before it goes through them, and again after: so either it sees
// what others have set, or they see that it has to be woken. Thread-safe.
class next_look {
  public:
    explicit next_look(wake& supervisor) : supervisor_(supervisor) {}

    void by(time_point when) {
        if (when < at_.load()) supervisor_.notify();
    }
    void begins() noexcept { at_ = never; }
    void ends(time_point next) noexcept { at_ = next; }

  private:
    wake& supervisor_;
    atomic<time_point> at_{never};
};

// The pool's mutex guards all but count().
class running_jobs {
  public:
    explicit running_jobs(std::size_t most) { jobs_.make_room(most); }
    void add(const ref<active_job>& job) noexcept {
        jobs_.add(job);
        ++count_;
    }
    void remove(const active_job& job) {
        jobs_.remove(job);
        --count_;
    }
    const array<ref<active_job>>& all() const noexcept { return jobs_.all(); }
    const atomic<std::size_t>& count() const noexcept { return count_; }

    // Whether a handler is at work, or its thread not yet home; and whether one of them may be about to be: it knows of its
    // cancellation, or the handler has returned and what is left to do is ours.
    bool any() noexcept {
        asked_ = true;
        return count_ > 0;
    }
    bool any_returning() {
        asked_ = true;
        for (const ref<active_job>& each : jobs_.all()) {
            if (each->cancel.token().seen() || !each->runner.is_inside()) return true;
        }
        return false;
    }
    // Whether somebody has asked that since the last time, and wants to know of a change.
    bool was_asked() noexcept { return detail::exchange(asked_, false); }

  private:
    placed_list<active_job> jobs_;
    atomic<std::size_t> count_{0};
    bool asked_ = false;
};

}  // namespace ojs::detail
