// beat_schedule: when the next heartbeat is due, and which thread sends it.
#pragma once

#include <string>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"

namespace ojs::detail {

// Numbers the beats; the registration is 0. The sender thread sends them; the helper thread sends one that is
// due while another has waited for its response for max_response_wait. Thread-safe.
class beat_schedule {
  public:
    static constexpr std::uint64_t last_beat = ~std::uint64_t{0};
    static constexpr std::uint64_t no_beat = last_beat - 1;  // the thread ends
    static constexpr std::chrono::milliseconds max_request_gap{1000};

    explicit beat_schedule(std::chrono::milliseconds interval) : interval_(interval) {}

    // From the begin of that beat to the next. The first one is shorter, at random: it spreads the beats of workers
    // that started together.
    std::chrono::milliseconds gap_after(std::uint64_t beat) const noexcept {
        return beat == 1 ? first_gap_ : interval_;
    }
    void request_by(time_point when) {
        const unique_lock held(mutex_);
        request(when);
    }
    // For handlers, which may call it often: limits the rate.
    void request_soon() {
        const unique_lock held(mutex_);
        request(latest_begun_at_ + detail::min(interval_ / 5, max_request_gap));
    }
    // Requests a beat when half of a lease that began at `since` is over.
    void request_renewal(time_point since, std::chrono::milliseconds lease) {
        if (lease / 2 < interval_) request_by(since + lease / 2);
    }
    // FETCH starts after it. [WP 3.1]
    bool registration_tried() const noexcept { return registration_tried_; }
    // Waits for the response to a new beat; concurrent callers share one.
    result<void> await_response(time_point deadline) {
        unique_lock held(mutex_);
        const std::uint64_t number = begun_count_ + 1;
        request(time_point::min());
        while (latest_.number < number && !is_finishing() && response_received_.wait_until(held, deadline)) {
        }
        if (latest_.number >= number) return latest_.response;
        if (is_finishing()) return error{errc::cancelled, 0, "only the last heartbeat follows"};
        return error{errc::timed_out, 0, "no response to a heartbeat in time"};
    }

    // Waits until a beat is due and returns its number. A beat requested before finish() is still sent: it
    // announces `quiet`. The last one waits for those in flight, up to max_response_wait. The helper is never
    // notified: it wakes up when the beat after the next is due.
    std::uint64_t await_next(bool is_helper) {
        unique_lock held(mutex_);
        while (!last_begun_) {
            const time_point now = steady_clock::now();
            const time_point may_begin = may_begin_at(is_helper, now);
            const bool is_due = now >= due_at();
            if (is_due && now >= may_begin) return begin_beat(now);
            if (is_finishing() && !is_due && (!in_flight() || now >= last_due_at_.load()))
                return begin_last();
            const time_point next_at = detail::min(due_at(), last_due_at_.load());
            schedule_changed_.wait_until(held, detail::max(may_begin, next_at));
        }
        return no_beat;
    }
    // Ends a beat that reported `state`. errc::cancelled: it was not sent, because its state was outdated.
    void end_beat(std::uint64_t number, result<void> response, std::string state) noexcept {
        const unique_lock held(mutex_);
        --beats_in_flight_;
        if (number == 0) registration_tried_ = true;
        if (requested_at_ != time_point::max() || is_finishing()) schedule_changed_.notify_all();
        if (number == last_beat || (!response && response.error().code == errc::cancelled)) return;
        // An overtaken beat may have arrived last: send the current state again.
        if (number < latest_.number && state != latest_.state) request(time_point::min());
        if (number <= latest_.number) return;  // a later one has ended
        latest_.number = number;
        if (response) latest_.state.swap(state);
        latest_.response = std::move(response);
        response_received_.notify_all();
    }
    // Whether this state is new to the backend.
    bool is_new_state(const std::string& state) const {
        const unique_lock held(mutex_);
        return state != latest_.state;
    }
    // Queries about jobs delay no beat. False: others are in flight, or finish() was called.
    bool begin_queries() {
        const unique_lock held(mutex_);
        return !is_finishing() && !detail::exchange(querying_, true);
    }
    void end_queries() {
        const unique_lock held(mutex_);
        querying_ = false;
        if (is_finishing()) schedule_changed_.notify_all();
    }
    bool is_finishing() const noexcept { return last_due_at_.load() != time_point::max(); }
    bool has_last_begun() const noexcept { return last_begun_; }
    bool all_finished() const {
        const unique_lock held(mutex_);
        return last_begun_ && !in_flight();
    }

    // Only the last beat follows; it ends by `deadline`.
    void finish(time_point deadline) {
        const unique_lock held(mutex_);
        const time_point now = steady_clock::now();
        last_due_at_ = detail::min(now + (deadline - now) / 2, now + max_response_wait);
        deadline_ = deadline;
        schedule_changed_.notify_all();
        response_received_.notify_all();
    }
    time_point cap_deadline(time_point deadline) const noexcept {
        return detail::min(deadline, deadline_.load());
    }

  private:
    // The mutex is held in all of these.
    bool in_flight() const noexcept { return beats_in_flight_ > 0 || querying_; }
    time_point due_at() const noexcept {
        return is_finishing() ? requested_at_
                              : detail::min(requested_at_, latest_begun_at_ + gap_after(begun_count_));
    }
    void request(time_point when) {
        if (is_finishing() || when >= requested_at_) return;
        requested_at_ = when;
        schedule_changed_.notify_all();
    }
    // The backend must see beats in order, so none overtakes a fresh one or the registration.
    time_point may_begin_at(bool is_helper, time_point now) const noexcept {
        if (is_finishing()) return time_point::min();
        if (begun_count_ > 0 && beats_in_flight_ > 0) return latest_begun_at_ + max_response_wait;
        return is_helper ? detail::max(now, due_at()) + interval_ + max_response_wait : time_point::min();
    }
    std::uint64_t begin_beat(time_point now) noexcept {
        requested_at_ = time_point::max();
        latest_begun_at_ = now;
        ++beats_in_flight_;
        return ++begun_count_;
    }
    std::uint64_t begin_last() noexcept {
        last_begun_ = true;
        ++beats_in_flight_;
        schedule_changed_.notify_all();
        return last_beat;
    }

    static constexpr std::chrono::milliseconds max_response_wait{250};

    const std::chrono::milliseconds interval_;
    const std::chrono::milliseconds first_gap_ = interval_ - random_half(interval_);
    mutable mutex mutex_;
    condition schedule_changed_;
    condition response_received_;
    time_point requested_at_ = time_point::min();  // the first beat at once
    std::uint64_t begun_count_ = 0;
    time_point latest_begun_at_ = time_point::min();
    int beats_in_flight_ = 1;  // the registration
    bool querying_ = false;
    struct {
        std::uint64_t number = 0;
        std::string state;  // of the latest that succeeded
        result<void> response;
    } latest_;  // of those that have ended
    // Set with the mutex held.
    atomic<time_point> last_due_at_{time_point::max()};  // max(): finish() was not called
    atomic<time_point> deadline_{time_point::max()};     // of the last beat
    atomic<bool> last_begun_{false};
    atomic<bool> registration_tried_{false};
};

}  // namespace ojs::detail
