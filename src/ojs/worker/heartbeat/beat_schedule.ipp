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
    void by(time_point when) {
        const unique_lock held(mutex_);
        ask(when);
    }
    // The same for a handler, which may ask often: a fifth of the interval, or a second, lies between beats.
    void request_soon() {
        const unique_lock held(mutex_);
        ask(began_ + detail::min(interval_ / 5, max_ask_gap));
    }
    // For a claim that began at `since`: it is renewed when half its time is over.
    void cover(time_point since, std::chrono::milliseconds lease) {
        if (lease / 2 < interval_) by(since + lease / 2);
    }
    // No FETCH goes out before. [WP 3.1]
    bool registration_tried() const noexcept { return registration_tried_; }
    // Waits for the answer to a beat that begins from now on. All who wait at a time share one.
    result<void> answered(time_point deadline) {
        unique_lock held(mutex_);
        const std::uint64_t wanted = begun_ + 1;
        ask(time_point::min());
        while (heard_.number < wanted && !finishing() && answered_.wait_until(held, deadline)) {
        }
        if (heard_.number >= wanted) return heard_.answer;
        if (finishing()) return error{errc::cancelled, 0, "the worker is at its last heartbeat"};
        return error{errc::timed_out, 0, "no heartbeat was answered in time"};
    }

    // Waits for a beat to send, and returns its number. One that was asked for before finish() is still sent:
    // it announces `quiet`. The last one is sent once, when no other is in flight, or after a moment. No beat
    // wakes the helper: it wakes by itself when the beat after the next is due.
    std::uint64_t next(bool helper) {
        unique_lock held(mutex_);
        while (!over_) {
            const time_point now = steady_clock::now();
            const time_point free = free_at(helper, now);
            const bool is_due = now >= due();
            if (is_due && now >= free) return begin(now);
            if (finishing() && !is_due && (!in_flight() || now >= last_due_.load())) return begin_last();
            const time_point wanted = detail::min(due(), last_due_.load());
            changed_.wait_until(held, detail::max(free, wanted));
        }
        return no_beat;
    }
    // The answer to a beat, which said `state`; errc::cancelled: it was not sent, as another one is wanted.
    void end(std::uint64_t number, result<void> answer, std::string state) noexcept {
        const unique_lock held(mutex_);
        --beats_in_flight_;
        if (number == 0) registration_tried_ = true;
        if (asked_ != time_point::max() || finishing()) changed_.notify_all();
        if (number == last_beat || (!answer && answer.error().code == errc::cancelled)) return;
        // One that was overtaken may have come to the backend last: it hears once more what is true.
        if (number < heard_.number && state != heard_.state) ask(time_point::min());
        if (number <= heard_.number) return;  // a later one says more
        heard_.number = number;
        if (answer) heard_.state.swap(state);
        heard_.answer = std::move(answer);
        answered_.notify_all();
    }
    // Whether this state is new to the backend.
    bool is_news(const std::string& state) const {
        const unique_lock held(mutex_);
        return state != heard_.state;
    }
    // Around queries about jobs, which delay no beat. False: others are in flight, or finish() was called.
    bool begin_queries() {
        const unique_lock held(mutex_);
        return !finishing() && !detail::exchange(querying_, true);
    }
    void end_queries() {
        const unique_lock held(mutex_);
        querying_ = false;
        if (finishing()) changed_.notify_all();
    }
    // Whether finish() was called; whether the last beat has begun; whether it has ended, and all others.
    bool finishing() const noexcept { return last_due_.load() != time_point::max(); }
    bool is_over() const noexcept { return over_; }
    bool all_finished() const {
        const unique_lock held(mutex_);
        return over_ && !in_flight();
    }

    // Nothing but the last beat from now on, which ends by `deadline`.
    void finish(time_point deadline) {
        const unique_lock held(mutex_);
        const time_point now = steady_clock::now();
        last_due_ = detail::min(now + (deadline - now) / 2, now + max_wait);
        deadline_ = deadline;
        changed_.notify_all();
        answered_.notify_all();
    }
    // When a call must end that may take until `ordinary`.
    time_point deadline(time_point ordinary) const noexcept {
        return detail::min(ordinary, deadline_.load());
    }

  private:
    // All with the mutex held.
    bool in_flight() const noexcept { return beats_in_flight_ > 0 || querying_; }
    time_point due() const noexcept { return finishing() ? asked_ : detail::min(asked_, began_ + interval_); }
    void ask(time_point when) {
        if (finishing() || when >= asked_) return;
        asked_ = when;
        changed_.notify_all();
    }
    // From when on this thread may begin a beat that is due. One in flight is not overtaken before it took
    // long: the backend might see the two in the other order. The first beat follows the registration.
    time_point free_at(bool helper, time_point now) const noexcept {
        if (finishing()) return time_point::min();
        if (begun_ > 0 && beats_in_flight_ > 0) return began_ + max_wait;
        return helper ? detail::max(now, due()) + interval_ + max_wait : time_point::min();
    }
    std::uint64_t begin(time_point now) noexcept {
        asked_ = time_point::max();
        began_ = now;
        ++beats_in_flight_;
        return ++begun_;
    }
    std::uint64_t begin_last() noexcept {
        over_ = true;
        ++beats_in_flight_;
        changed_.notify_all();
        return last_beat;
    }

    static constexpr std::chrono::milliseconds max_ask_gap{1000};
    static constexpr std::chrono::milliseconds max_wait{250};  // for an answer, before another beat

    const std::chrono::milliseconds interval_;
    mutable mutex mutex_;
    condition changed_;                     // for the threads that beat
    condition answered_;                    // for those who wait for an answer
    time_point asked_ = time_point::min();  // besides the regular beats; the first one at once
    std::uint64_t begun_ = 0;
    time_point began_ = time_point::min();  // the latest of them
    int beats_in_flight_ = 1;               // the registration
    bool querying_ = false;
    struct {
        std::uint64_t number = 0;
        std::string state;  // in the latest that was answered without an error
        result<void> answer;
    } heard_;  // of the latest that has ended
    // Set with the mutex held.
    atomic<time_point> last_due_{time_point::max()};  // of the last beat, once nothing else may follow
    atomic<time_point> deadline_{time_point::max()};  // for its answer
    atomic<bool> over_{false};                        // the last beat has begun
    atomic<bool> registration_tried_{false};
};

}  // namespace ojs::detail
