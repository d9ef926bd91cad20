// fetch_schedule: when the next FETCH is due.
#pragma once

#include "../../base/detail/backoff.hpp"
#include "../../base/duration.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// At once while jobs come or news do, then by the poll interval; after a failure, when its pause is over. The pool's mutex
// guards it.
class fetch_schedule {
  public:
    explicit fetch_schedule(std::chrono::milliseconds interval) : interval_(interval) {}

    time_point due() const noexcept { return due_; }

    // There may be work before that; not while the backend is failing.
    void expect_work() noexcept {
        ++news_;
        if (!backing_off_) due_ = time_point::min();
    }
    std::uint64_t news() const noexcept { return news_; }

    // After a FETCH that was sent when the news were `news`. False: it failed, and is to be told of.
    bool plan(const result<std::size_t>& got, std::uint64_t news) {
        const time_point now = steady_clock::now();
        if (backing_off_ && now < due_) return true;  // another FETCH, that overlapped with this one, failed
        backing_off_ = !got && got.error().code != errc::cancelled;
        if (backing_off_) {
            const std::chrono::milliseconds pause = pauses_.next();
            due_ = deadline_after(got.error().retry_after > pause ? got.error().retry_after : pause);
            return false;
        }
        pauses_.reset();
        const bool more_to_expect = news != news_ || (got && *got > 0);
        due_ = more_to_expect ? time_point::min() : now + interval_;
        return true;
    }

  private:
    const std::chrono::milliseconds interval_;
    time_point due_ = time_point::min();
    std::uint64_t news_ = 0;
    bool backing_off_ = false;
    backoff pauses_{std::chrono::milliseconds(100), std::chrono::milliseconds(10000)};
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
