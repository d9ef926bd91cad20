// job_tally: what became of a worker's jobs, as report(), the log and parts tell it.
#pragma once

#include "../../base/detail/atomic.hpp"
#include "../../base/detail/sync.hpp"
#include "../worker.hpp"
#include "verdict.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Thread-safe.
class job_tally {
  public:
    void note_claimed() noexcept { count_one(claimed_); }
    void note(job_end how) noexcept { count_one(ends_[static_cast<std::size_t>(how)]); }
    // A job nobody could be told about, by its id or by why it has none. A backend that goes on like that must not grow the
    // worker: the log has them all.
    void name_unreported(std::string_view name) {
        count_one(unreported_count_);
        const lock_guard held(mutex_);
        if (unreported_.size() < most_unreported) attempt([&] { unreported_.emplace_back(name); });
    }
    void add_stuck(const std::string& id) {
        const lock_guard held(mutex_);
        attempt([&] { stuck_.push_back(id); });
    }
    void remove_stuck(const std::string& id) {
        const lock_guard held(mutex_);
        std::size_t i = 0;
        while (i < stuck_.size() && stuck_[i] != id) ++i;
        if (i < stuck_.size()) stuck_.erase(stuck_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::vector<std::string> stuck() const {
        const lock_guard held(mutex_);
        return stuck_;
    }
    void set_steps(std::vector<step_result> steps) {
        const lock_guard held(mutex_);
        steps_.swap(steps);
    }

    std::uint64_t claimed() const noexcept { return read_counter(claimed_); }
    std::uint64_t count(job_end how) const noexcept {
        return read_counter(ends_[static_cast<std::size_t>(how)]);
    }
    std::uint64_t unreported() const noexcept { return read_counter(unreported_count_); }
    worker_report report() const {
        const lock_guard held(mutex_);
        return {claimed(),
                count(job_end::completed),
                count(job_end::failed),
                count(job_end::interrupted),
                count(job_end::handed_back),
                count(job_end::gone),
                unreported_,
                stuck_,
                steps_};
    }

  private:
    static constexpr std::size_t most_unreported = 10000;

    counter claimed_{0};
    counter ends_[job_end_count] = {};
    counter unreported_count_{0};
    mutable mutex mutex_;
    std::vector<std::string> unreported_;
    std::vector<std::string> stuck_;
    std::vector<step_result> steps_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
