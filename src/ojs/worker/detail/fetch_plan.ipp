// fetch_plan: when a worker fetches, and how many jobs, as functions of facts and the time.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/error.hpp"
#include "../../stop/job.hpp"

namespace ojs::detail {
// After a FETCH that found nothing. Soon after a job, the next is likely. `rare`: for a job whose announcement is lost.
inline std::chrono::milliseconds empty_pause(steady_clock::duration since_job, bool is_work_announced,
                                             std::chrono::milliseconds usual, std::chrono::milliseconds rare) noexcept {
    const bool is_idle = since_job > std::chrono::minutes(1);
    if (is_idle || is_work_announced) return is_idle && is_work_announced ? detail::max(usual, rare) : usual;
    const auto eighth = std::chrono::duration_cast<std::chrono::milliseconds>(since_job / 8);
    return detail::min(usual,
                       detail::max(std::chrono::milliseconds(10), detail::min(eighth, std::chrono::milliseconds(250))));
}

// When the next FETCH is due: at once while jobs arrive or are expected. Guarded by the machine's mutex.
class fetch_schedule {
  public:
    fetch_schedule(std::chrono::milliseconds usual, std::chrono::milliseconds rare) : usual_(usual), rare_(rare) {}

    time_point due() const noexcept { return due_; }

    // There may be work earlier. Ignored while the backend fails.
    void note_work_hint() noexcept {
        ++hints_;
        if (!backing_off_) due_ = time_point::min();
    }
    std::uint64_t hints() const noexcept { return hints_; }

    // After a FETCH that was sent when hints() was `seen_hints`. False: it failed and is to be logged.
    bool schedule_next(const result<std::size_t>& fetched, std::uint64_t seen_hints, bool is_work_announced,
                       time_point now) {
        if (backing_off_ && now < due_) return true;  // a FETCH that overlapped with this one failed
        backing_off_ = !fetched && fetched.error().code != errc::cancelled;
        if (backing_off_) {
            due_ = deadline_after(backoff_.next(fetched.error().retry_after));
            return false;
        }
        backoff_.reset();
        const bool more_expected = seen_hints != hints_ || (fetched && *fetched > 0);
        if (fetched && *fetched > 0) latest_job_at_ = now;
        due_ = more_expected ? time_point::min()
                             : now + empty_pause(now - latest_job_at_, is_work_announced, usual_, rare_);
        return true;
    }

  private:
    const std::chrono::milliseconds usual_;  // poll_interval
    const std::chrono::milliseconds rare_;   // heartbeat_interval
    time_point due_ = time_point::min();
    time_point latest_job_at_ = time_point();  // the start of the clock: none
    std::uint64_t hints_ = 0;
    bool backing_off_ = false;
    backoff backoff_{std::chrono::milliseconds(100), std::chrono::seconds(10)};
};

// How many jobs a FETCH asks for at most. Guarded by the machine's mutex. [WIRE 7]
class fetch_limit {
  public:
    std::size_t max_count() const noexcept { return limit_; }

    // Each lost response may use up an attempt of all its jobs, and one of them may make each response unreadable: for a
    // minute, its neighbours are not fetched with it again. Where one job alone failed, the number was not the cause.
    void note(std::size_t asked, const result<std::size_t>& fetched, time_point now) noexcept {
        const errc failure = fetched ? errc::cancelled : fetched.error().code;
        const bool is_unreadable = failure == errc::bad_response;
        if (fetched) {
            if (*fetched >= asked && asked >= limit_ && now >= grows_at_) limit_ = asked * 2;
        } else if (is_unreadable || failure == errc::timed_out || failure == errc::disconnected ||
                   failure == errc::system) {
            limit_ = is_unreadable ? 1 : detail::max<std::size_t>(asked / 2, 1);
            if (asked > 1) grows_at_ = now + std::chrono::minutes(1);
        }
    }

  private:
    std::size_t limit_ = ~std::size_t{0};
    time_point grows_at_ = time_point::min();
};
}  // namespace ojs::detail
