// beat_schedule: when the next heartbeat is due, and who waits for its answer.
#pragma once

#include <atomic>

#include "../base/sync.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Between those who want a heartbeat and the one thread that sends them.
class beat_schedule {
  public:
    explicit beat_schedule(std::chrono::milliseconds interval)
        : interval_(interval), ask_gap_(interval / 5 < most_ask_gap ? interval / 5 : most_ask_gap) {}

    // A beat at once, or by `when`, besides the regular ones.
    void now() { by(time_point::min()); }
    void by(time_point when) {
        const lock_guard held(mutex_);
        want(when);
    }
    // The same for a handler: however often it asks, beats come no closer than a fifth of the interval, or a second.
    void soon() {
        const lock_guard held(mutex_);
        want(last_began_ == time_point::min() ? last_began_ : last_began_ + ask_gap_);
    }
    // For a claim that began at `since`: it is renewed when half its time is over.
    void cover(time_point since, std::chrono::milliseconds lease) {
        if (lease / 2 < interval_) by(since + lease / 2);
    }
    // Waits for the answer to a beat that begins from now on. All who wait at a time share one.
    result<void> answered(time_point deadline) {
        lock_guard held(mutex_);
        if (finishing_) return last_beat_error();
        const std::uint64_t wanted = begun_ + 1;
        want(time_point::min());
        bool in_time = true;
        while (ended_ < wanted && !finishing_ && in_time) in_time = answered_.wait_until(held, deadline);
        if (ended_ >= wanted) return answer_;
        return in_time ? last_beat_error() : error{errc::timed_out, 0, "no heartbeat was answered in time"};
    }

    // ---- for the thread that beats ----

    // Waits until a beat is due: true; or until finish(): false. One that was asked for by then is still sent: it announces
    // `quiet`.
    bool wait() {
        lock_guard held(mutex_);
        while (steady_clock::now() < due_ && !finishing_) changed_.wait_until(held, due_);
        const time_point now = steady_clock::now();
        if (now < due_ || (finishing_ && !asked_)) return false;
        asked_ = false;
        due_ = now + interval_;
        last_began_ = now;
        ++begun_;
        return true;
    }
    void end(result<void> answer) {
        const lock_guard held(mutex_);
        answer_ = std::move(answer);
        ended_ = begun_;
        answered_.notify_all();
    }
    // Pauses until `when`.
    void pause(time_point when) {
        lock_guard held(mutex_);
        while (changed_.wait_until(held, when)) {
        }
    }

    // Nothing but the last beat from now on, which ends by `deadline`.
    void finish(time_point deadline) {
        const lock_guard held(mutex_);
        last_deadline_ = deadline;
        finishing_ = true;
        changed_.notify_one();
        answered_.notify_all();
    }
    time_point latest(time_point ordinary) const {
        const lock_guard held(mutex_);
        return finishing_ && last_deadline_ < ordinary ? last_deadline_ : ordinary;
    }

  private:
    // With the mutex held. Once the last beat is all that is left, nobody can ask for another one.
    void want(time_point when) {
        if (finishing_ || when >= due_) return;
        asked_ = true;
        due_ = when;
        changed_.notify_one();
    }

    static error last_beat_error() { return {errc::cancelled, 0, "the worker is at its last heartbeat"}; }

    static constexpr std::chrono::milliseconds most_ask_gap{1000};

    const std::chrono::milliseconds interval_;
    const std::chrono::milliseconds ask_gap_;
    mutable mutex mutex_;
    condition changed_;                   // for the thread that beats
    condition answered_;                  // for those who wait for an answer
    time_point due_ = time_point::min();  // the first beat is the registration where there is no route for it
    time_point last_began_ = time_point::min();
    time_point last_deadline_ = time_point::max();
    std::uint64_t begun_ = 0;
    std::uint64_t ended_ = 0;
    result<void> answer_;  // to the one that ended last
    bool asked_ = true;    // the first one is
    bool finishing_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
