// job_tally: counts what becomes of jobs; report_limits: how long a stop lets them be reported.
#pragma once

#include "../../base/log.hpp"
#include "../transport.hpp"
#include "../worker.hpp"
#include "active_job.ipp"

namespace ojs::detail {

// The counts behind worker::report(), the log and the metrics. Thread-safe.
class job_tally {
  public:
    job_tally(const job_table& jobs, mutex& guard) : jobs_(jobs), mutex_(guard) {}

    void count_claimed(std::size_t jobs) noexcept { claimed_.fetch_add(jobs); }
    void count_interrupted() noexcept {
        const unique_lock held(mutex_);
        ++count(job_status::interrupted);
    }
    // How a claim ended; the first call counts. A stop that comes second finds the count, and the name, complete.
    void end_claim(active_job& job, job_status status) noexcept {
        const unique_lock held(mutex_);
        count_end(job, status);
    }
    // The stop no longer waits for the jobs that are left.
    void end_all_unreported() noexcept {
        jobs_.for_each([this](active_job& job) { count_end(job, job_status::unreported); });
    }
    // A claim without a usable job. `name` is its id, or why it has none.
    void add_unreported(std::string_view name) noexcept {
        count_claimed(1);
        const unique_lock held(mutex_);
        ++count(job_status::unreported);
        add_name(name);
    }
    void set_steps(std::vector<step_result> steps) {
        const unique_lock held(mutex_);
        steps_.swap(steps);
    }

    std::uint64_t unreported() const noexcept {
        const unique_lock held(mutex_);
        return count(job_status::unreported);
    }
    worker_report report() const {
        std::vector<std::string> stuck = jobs_.stuck_ids();
        const unique_lock held(mutex_);
        return {claimed_,
                count(job_status::completed),
                count(job_status::failed),
                count(job_status::interrupted),
                count(job_status::requeued),
                count(job_status::gone),
                names_,
                std::move(stuck),
                steps_};
    }

  private:
    static constexpr std::size_t max_names = 10000;  // a backend that sends many must not grow the worker

    std::uint64_t& count(job_status status) noexcept { return counts_[static_cast<std::size_t>(status)]; }
    const std::uint64_t& count(job_status status) const noexcept {
        return counts_[static_cast<std::size_t>(status)];
    }
    // With the guard held.
    void count_end(active_job& job, job_status status) noexcept {
        if (!job.flags.add(job_flags::counted)) return;
        ++count(status);
        if (status == job_status::unreported) add_name(job.job.id);
    }
    void add_name(std::string_view name) noexcept {
        if (names_.size() < max_names) attempt([&] { names_.emplace_back(name); });
    }

    const job_table& jobs_;
    atomic<std::uint64_t> claimed_{0};
    mutex& mutex_;  // guards the rest
    std::uint64_t counts_[static_cast<std::size_t>(job_status::unreported) + 1] = {};
    std::vector<std::string> names_;  // of the unreported
    std::vector<step_result> steps_;
};

// When a stop ends reporting, and when a failed report is retried; max() before the stop. Thread-safe.
class report_limits {
  public:
    explicit report_limits(state_lock& state) : state_(state) {}

    time_point deadline() const noexcept { return deadline_.load(memory_order::acquire); }
    bool are_over() const { return deadline() != never && steady_clock::now() >= deadline(); }
    void set_deadline(time_point when) {
        deadline_.store(when, memory_order::release);
        retry_now();
    }
    // Then FAILs stop waiting for checkpoint requests in flight: the FAIL carries the checkpoint too.
    time_point checkpoint_deadline() const noexcept {
        return checkpoint_deadline_.load(memory_order::acquire);
    }
    void set_checkpoint_deadline(time_point when) noexcept {
        checkpoint_deadline_.store(when, memory_order::release);
    }

    // Ends every wait_for_retry(), including one about to start whose `seen` is out of date.
    void retry_now() {
        const unique_lock held(state_.guard);
        changes_.fetch_add(1);
        state_.changed.notify_all();
    }
    std::uint32_t changes() const noexcept { return changes_; }
    // Blocks until `until`, the deadline or retry_now(); not at all if changes() is no longer `seen`.
    void wait_for_retry(time_point until, std::uint32_t seen) {
        unique_lock held(state_.guard);
        const time_point end = deadline();
        while (changes_ == seen && state_.changed.wait_until(held, until < end ? until : end)) {
        }
    }

  private:
    state_lock& state_;
    atomic<time_point> deadline_{time_point::max()};
    atomic<time_point> checkpoint_deadline_{time_point::max()};
    atomic<std::uint32_t> changes_{0};
};

}  // namespace ojs::detail
