// job_tally: what the backend is told about a job, and what became of all jobs, as report(), the log and parts tell it.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/log.hpp"
#include "../../core/cancel_token.hpp"
#include "../transport.hpp"
#include "../worker.hpp"

namespace ojs::detail {

// What the backend was told of a job, or that it had taken it back. More are unreported, by name.
enum class job_end : std::uint8_t { completed, failed, interrupted, handed_back, gone };
inline constexpr std::size_t job_end_count = 5;

// What to tell the backend about a job, and what that makes of it.
struct verdict {
    bool ack = false;
    std::string result_json;  // ACK
    job_error failure;        // FAIL
    std::string checkpoint;   // FAIL: JSON; empty: none
    bool requeue = false;     // FAIL
    job_end end = job_end::completed;
    const char* message = "job completed";
    log_level level = log_level::debug;
    cancel_reason reason = cancel_reason::none;  // of an interruption
    int signal = 0;                              // behind it, if there is one
};

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

}  // namespace ojs::detail
