// running_jobs: the jobs that have a thread, until that is home again.
#pragma once

#include <unistd.h>

#include "../../core/detail/wake.hpp"
#include "active_job.ipp"
#include "placed_list.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// When the supervisor looks at the jobs next. It says so before it goes through them, and again after: so either it sees
// what others have set, or they see that it has to be woken. Thread-safe.
class next_look {
  public:
    explicit next_look(wake& supervisor) : supervisor_(supervisor) {}

    void by(steady_clock::rep when) {
        if (when < at_) supervisor_.notify();
    }
    void begins() noexcept { at_ = never; }
    void ends(steady_clock::rep next) noexcept { at_ = next; }

  private:
    wake& supervisor_;
    atomic<steady_clock::rep> at_{never};
};

// The pool's mutex guards all but count().
class running_jobs {
  public:
    void add(const ref<active_job>& job) {
        jobs_.add(job);
        ++count_;
    }
    void remove(const active_job& job) {
        jobs_.remove(job);
        --count_;
    }
    // Without the mutex, from a thread that the stop has lowered and that is about to end: its job stays listed.
    void leave_lowered(active_job& job) noexcept {
        job.home = true;
        --count_;
    }
    array<ref<active_job>> all() const {
        array<ref<active_job>> out;
        for (const ref<active_job>& each : jobs_.all()) {
            if (!each->home) out.push_back(each);
        }
        return out;
    }
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
            if (!each->home && (each->cancel.token().seen() || !each->runner.is_inside())) return true;
        }
        return false;
    }
    // Whether somebody has asked that since the last time, and wants to know of a change.
    bool was_asked() noexcept { return detail::exchange(asked_, false); }

    // Handlers may be busy without an end: from now on they run below what reports them, where they are more than there
    // are processors. Allocates nothing: until it is done, the allocator's locks are theirs as well.
    void lower() {
        if (static_cast<long>(jobs_.all().size()) <= ::sysconf(_SC_NPROCESSORS_ONLN)) return;
        const ahead_of_all here;  // they are thousands perhaps, each with as many turns as this thread
        for (const ref<active_job>& job : jobs_.all()) job->lower_handler();
    }

  private:
    placed_list<active_job> jobs_;
    atomic<std::size_t> count_{0};
    bool asked_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
