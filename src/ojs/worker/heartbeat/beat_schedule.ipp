// beat_schedule: when the next heartbeat is due, which thread sends it, and who waits for its answer.
#pragma once

#include <string>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"

namespace ojs::detail {

// Beats are numbered; the registration is number 0. Two threads send them: the sender all of them, the helper
// those that are due while one is unanswered for 250 ms. Thread-safe.
class beat_schedule {
  public:
    static constexpr std::uint64_t last_beat = ~std::uint64_t{0};
    static constexpr std::uint64_t no_beat = last_beat - 1;  // the thread ends

    explicit beat_schedule(std::chrono::milliseconds interval) : interval_(interval) {}

    // A beat by then, besides the regular ones.
    void request_by(time_point when) {
        const unique_lock held(mutex_);
        request(when);
    }
    // The same for a handler, which may ask often: a fifth of the interval, or a second, lies between beats.
    void request_soon() {
        const unique_lock held(mutex_);
        request(latest_begun_at_ + detail::min(interval_ / 5, max_request_gap));
    }
    // For a claim that began at `since`: it is renewed when half its time is over.
    void cover(time_point since, std::chrono::milliseconds lease) {
        if (lease / 2 < interval_) request_by(since + lease / 2);
    }
    // No FETCH goes out before. [WP 3.1]
    bool registration_tried() const noexcept { return registration_tried_; }
    // Waits for the answer to a beat that begins from now on. All who wait at a time share one.
    result<void> await_response(time_point deadline) {
        unique_lock held(mutex_);
        const std::uint64_t number = begun_count_ + 1;
        request(time_point::min());
        while (latest_ended_.number < number && !is_finishing() &&
               response_received_.wait_until(held, deadline)) {
        }
        if (latest_ended_.number >= number) return latest_ended_.response;
        if (is_finishing()) return error{errc::cancelled, 0, "the worker is at its last heartbeat"};
        return error{errc::timed_out, 0, "no heartbeat was answered in time"};
    }

    // Waits for a beat to send, and returns its number. One that was asked for before finish() is still sent:
    // it announces `quiet`. The last one is sent once, when no other is in flight, or after a moment. No beat
    // wakes the helper: it wakes by itself when the beat after the next is due.
    std::uint64_t await_next(bool is_helper) {
        unique_lock held(mutex_);
        while (!last_begun_) {
            const time_point now = steady_clock::now();
            const time_point may_begin = may_begin_at(is_helper, now);
            const bool is_due = now >= due_at();
            if (is_due && now >= may_begin) return begin_beat(now);
            if (is_finishing() && !is_due && (!in_flight() || now >= last_due_at_.load()))
                return begin_last_beat();
            const time_point next_at = detail::min(due_at(), last_due_at_.load());
            schedule_changed_.wait_until(held, detail::max(may_begin, next_at));
        }
        return no_beat;
    }
    // The answer to a beat, which said `state`; errc::cancelled: it was not sent, as another one is wanted.
    void end_beat(std::uint64_t number, result<void> response, std::string state) noexcept {
        const unique_lock held(mutex_);
        --beats_in_flight_;
        if (number == 0) registration_tried_ = true;
        if (requested_at_ != time_point::max() || is_finishing()) schedule_changed_.notify_all();
        if (number == last_beat || (!response && response.error().code == errc::cancelled)) return;
        // One that was overtaken may have come to the backend last: it hears once more what is true.
        if (number < latest_ended_.number && state != latest_ended_.state) request(time_point::min());
        if (number <= latest_ended_.number) return;  // a later one says more
        latest_ended_.number = number;
        if (response) latest_ended_.state.swap(state);
        latest_ended_.response = std::move(response);
        response_received_.notify_all();
    }
    // Whether this state is new to the backend.
    bool is_new_state(const std::string& state) const {
        const unique_lock held(mutex_);
        return state != latest_ended_.state;
    }
    // Around queries about jobs, which delay no beat. False: others are in flight, or finish() was called.
    bool begin_queries() {
        const unique_lock held(mutex_);
        return !is_finishing() && !detail::exchange(querying_, true);
    }
    void end_queries() {
        const unique_lock held(mutex_);
        querying_ = false;
        if (is_finishing()) schedule_changed_.notify_all();
    }
    // Whether finish() was called; whether the last beat has begun; whether it has ended, and all others.
    bool is_finishing() const noexcept { return last_due_at_.load() != time_point::max(); }
    bool has_last_begun() const noexcept { return last_begun_; }
    bool all_finished() const {
        const unique_lock held(mutex_);
        return last_begun_ && !in_flight();
    }

    // Nothing but the last beat from now on, which ends by `deadline`.
    void finish(time_point deadline) {
        const unique_lock held(mutex_);
        const time_point now = steady_clock::now();
        last_due_at_ = detail::min(now + (deadline - now) / 2, now + max_response_wait);
        deadline_ = deadline;
        schedule_changed_.notify_all();
        response_received_.notify_all();
    }
    // When a call must end that may take until `ordinary`.
    time_point cap_deadline(time_point deadline) const noexcept {
        return detail::min(deadline, deadline_.load());
    }

  private:
    // All with the mutex held.
    bool in_flight() const noexcept { return beats_in_flight_ > 0 || querying_; }
    time_point due_at() const noexcept {
        return is_finishing() ? requested_at_ : detail::min(requested_at_, latest_begun_at_ + interval_);
    }
    void request(time_point when) {
        if (is_finishing() || when >= requested_at_) return;
        requested_at_ = when;
        schedule_changed_.notify_all();
    }
    // From when on this thread may begin a beat that is due. One in flight is not overtaken before it took
    // long: the backend might see the two in the other order. The first beat follows the registration.
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
    std::uint64_t begin_last_beat() noexcept {
        last_begun_ = true;
        ++beats_in_flight_;
        schedule_changed_.notify_all();
        return last_beat;
    }

    static constexpr std::chrono::milliseconds max_request_gap{1000};
    static constexpr std::chrono::milliseconds max_response_wait{250};  // for an answer, before another beat

    const std::chrono::milliseconds interval_;
    mutable mutex mutex_;
    condition schedule_changed_;                   // for the threads that beat
    condition response_received_;                  // for those who wait for an answer
    time_point requested_at_ = time_point::min();  // besides the regular beats; the first one at once
    std::uint64_t begun_count_ = 0;
    time_point latest_begun_at_ = time_point::min();  // the latest of them
    int beats_in_flight_ = 1;                         // the registration
    bool querying_ = false;
    struct {
        std::uint64_t number = 0;
        std::string state;  // in the latest that was answered without an error
        result<void> response;
    } latest_ended_;  // of the latest that has ended
    // Set with the mutex held.
    atomic<time_point> last_due_at_{time_point::max()};  // of the last beat, once nothing else may follow
    atomic<time_point> deadline_{time_point::max()};     // for its answer
    atomic<bool> last_begun_{false};                     // the last beat has begun
    atomic<bool> registration_tried_{false};
};

}  // namespace ojs::detail
