// fetch_plan: when a worker fetches, and how many jobs.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../transport_scheme.ipp"

namespace ojs::detail {
// After a FETCH that found nothing. Soon after a job, the next is likely. `rare`: for a job whose announcement is lost.
inline milliseconds empty_pause(steady_clock::duration since_job, bool is_work_announced, milliseconds usual,
                                milliseconds rare) noexcept {
    const bool is_idle = since_job > std::chrono::minutes(1);
    if (is_idle || is_work_announced) return is_idle && is_work_announced ? max(usual, rare) : usual;
    const auto eighth = std::chrono::duration_cast<milliseconds>(since_job / 8);
    return min(usual, max(milliseconds(10), min(eighth, milliseconds(250))));
}

// When the next FETCH is due: at once while jobs arrive or are expected. Guarded by the machine's mutex.
class fetch_schedule {
  public:
    fetch_schedule(milliseconds usual, milliseconds rare) : usual_(usual), rare_(rare) {}

    time_point due() const noexcept { return due_; }

    // There may be work earlier. Ignored while the backend fails.
    void note_work_hint() noexcept {
        ++hints_;
        if (!backing_off_) due_ = time_point::min();
    }
    std::uint64_t hints() const noexcept { return hints_; }

    // After a FETCH that was sent when hints() was `seen`. False: it failed: log it.
    bool schedule_next(const result<std::size_t>& fetched, std::uint64_t seen, bool is_announced, time_point now) {
        if (backing_off_ && now < due_) return true;  // one that overlapped with it failed
        backing_off_ = !fetched && fetched.error().code != errc::cancelled;
        if (backing_off_) {
            due_ = deadline_after(backoff_.next(fetched.error().retry_after));
            return false;
        }
        backoff_.reset();
        const bool found = fetched && *fetched > 0;
        if (found) latest_job_at_ = now;
        if (latest_job_at_ == time_point()) is_announced = false;
        due_ = found || seen != hints_ ? time_point::min()
                                       : now + empty_pause(now - latest_job_at_, is_announced, usual_, rare_);
        return true;
    }

  private:
    const milliseconds usual_;  // poll_interval
    const milliseconds rare_;   // heartbeat_interval
    time_point due_ = time_point::min();
    time_point latest_job_at_ = time_point();  // none
    std::uint64_t hints_ = 0;
    bool backing_off_ = false;
    backoff backoff_{milliseconds(100), std::chrono::seconds(10)};
};

// The backend may have processed the request. [WIRE 7]
constexpr bool may_have_claimed(const error& failure) noexcept {
    return failure.code == errc::bad_response || failure.code == errc::timed_out ||
           failure.code == errc::disconnected || failure.code == errc::system;
}

// How many jobs a FETCH asks for at most: one, and twice as many after each response that has them all; but so few that
// four times the largest of late fit into a response. Guarded by the machine's mutex. [WIRE 8]
class fetch_limit {
  public:
    // A size counts in full for `memory`, in which the jobs of a lost response come back; then for half, and so on.
    explicit fetch_limit(steady_clock::duration memory) noexcept : memory_(memory) {}

    std::size_t max_count() const noexcept {
        return max<std::size_t>(min(limit_, room / max<std::size_t>(largest_, 1)), 1);
    }
    void note_size(std::size_t bytes, time_point now) noexcept {
        if (bytes < largest_ && now < halves_at_) return;
        largest_ = max(bytes, largest_ / 2);
        halves_at_ = now + memory_;
    }
    // A job that makes each response unreadable must not use up its neighbours' attempts: it is fetched alone.
    void note(std::size_t asked, const result<std::size_t>& fetched, time_point now) noexcept {
        if (fetched && *fetched >= asked && asked >= limit_) limit_ = asked * 2;
        if (fetched || !may_have_claimed(fetched.error())) return;
        const std::size_t max_safe = fetched.error().code == errc::bad_response ? 1 : max_count() / 2;
        if (max_safe > 0) note_size(room / max_safe, now);
        limit_ = 1;
    }

  private:
    static constexpr std::size_t room = max_worker_response / 4;
    const steady_clock::duration memory_;
    std::size_t limit_ = 1;
    std::size_t largest_ = 0;  // in bytes
    time_point halves_at_ = time_point::min();
};
}  // namespace ojs::detail
