// beat_schedule: when the next heartbeat is due, and who waits for its answer.
#pragma once

#include <string>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"

namespace ojs::detail {

struct beat_turn {
    enum class kind { beat, last, leave } what = kind::leave;
    std::uint64_t number = 0;  // of a beat, from 1
};

// Between those who want a heartbeat and the threads that send them: one, and a spare one for what is due while a beat
// is on its way.
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
    // No FETCH goes out before. [WP 3.1]
    bool registration_tried() const noexcept { return registration_tried_; }
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

    // Waits for something to do. A beat that was asked for before finish() is still sent: it announces `quiet`. The last
    // one is sent once, and gives those on their way a moment. Nobody is woken for a beat that begins: the spare thread
    // looks by itself, when the one after it is due.
    beat_turn wait(bool spare) {
        lock_guard held(mutex_);
        for (;;) {
            if (last_begun_) return {};
            const time_point now = steady_clock::now();
            const time_point next = next_turn(spare);
            const bool due = now >= due_ && (!finishing_ || asked_);
            if (due && now >= next) return begin(now);
            if (finishing_ && !due && (on_their_way_ + queries_ == 0 || now >= last_due_)) {
                last_begun_ = true;
                changed_.notify_all();
                return {beat_turn::kind::last, 0};
            }
            const time_point wanted = finishing_ ? last_due_ : due_;
            const time_point earliest = next < wanted ? wanted : next;
            const time_point look = (now < due_ ? due_ : now) + interval_ + most_yielding;
            changed_.wait_until(held, earliest < look ? earliest : look);
        }
    }
    // The registration, tried before the first beat, counts as one on its way until then.
    void note_registration_tried() {
        const lock_guard held(mutex_);
        --on_their_way_;
        registration_tried_ = true;
        changed_.notify_all();
    }
    // The answer to that beat, which said `state`; errc::cancelled: it was not sent, as another one is wanted.
    void end(std::uint64_t number, result<void> answer, std::string state) noexcept {
        const lock_guard held(mutex_);
        --on_their_way_;
        if (asked_ || finishing_) changed_.notify_all();
        const bool sent = answer || answer.error().code != errc::cancelled;
        // One that was overtaken may have come to the backend last: it hears once more what is true.
        if (sent && number < ended_ && state != told_) want(time_point::min());
        if (!sent || number <= ended_) return;  // a later one says more
        if (answer) told_.swap(state);
        answer_ = std::move(answer);
        ended_ = number;
        answered_.notify_all();
    }
    // Whether the backend has not been told this state.
    bool is_news(const std::string& state) const {
        const lock_guard held(mutex_);
        return state != told_;
    }
    bool any_on_its_way() const {
        const lock_guard held(mutex_);
        return on_their_way_ + queries_ > 0;
    }
    // Around a query about a job, in parallel with the beats. False: only the last beat may follow.
    bool begin_query() {
        const lock_guard held(mutex_);
        queries_ += finishing_ ? 0 : 1;
        return !finishing_;
    }
    void end_query() {
        const lock_guard held(mutex_);
        --queries_;
        if (finishing_) changed_.notify_all();
    }
    // Whether no beat but the last may be sent any more.
    bool last_begun() const {
        const lock_guard held(mutex_);
        return last_begun_;
    }
    void pause(time_point when) {
        lock_guard held(mutex_);
        while (changed_.wait_until(held, when)) {
        }
    }

    // Nothing but the last beat from now on, which ends by `deadline`.
    void finish(time_point deadline) {
        const lock_guard held(mutex_);
        const time_point now = steady_clock::now();
        const auto moment = (deadline - now) / 2;
        last_deadline_ = deadline;
        last_due_ = now + (moment < most_yielding ? moment : most_yielding);
        finishing_ = true;
        changed_.notify_all();
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
        changed_.notify_all();
    }
    // With the mutex held. From when on this thread may begin a beat that is due. One on its way is not overtaken before
    // it took long: the backend might see the two in the other order. The spare thread is for that alone, and the first
    // beat comes after the registration, unless the end does.
    time_point next_turn(bool spare) const noexcept {
        if (finishing_) return time_point::min();
        if (on_their_way_ == 0 || begun_ == 0) return spare ? time_point::max() : time_point::min();
        return last_began_ + most_yielding;
    }
    // With the mutex held.
    beat_turn begin(time_point now) {
        asked_ = false;
        due_ = now + interval_;
        last_began_ = now;
        ++on_their_way_;
        return {beat_turn::kind::beat, ++begun_};
    }

    static error last_beat_error() { return {errc::cancelled, 0, "the worker is at its last heartbeat"}; }

    static constexpr std::chrono::milliseconds most_ask_gap{1000};
    static constexpr std::chrono::milliseconds most_yielding{250};  // of a beat to those on their way

    const std::chrono::milliseconds interval_;
    const std::chrono::milliseconds ask_gap_;
    mutable mutex mutex_;
    condition changed_;                   // for the threads that beat
    condition answered_;                  // for those who wait for an answer
    time_point due_ = time_point::min();  // the first beat is the registration where there is no route for it
    time_point last_began_ = time_point::min();
    time_point last_deadline_ = time_point::max();
    time_point last_due_ = time_point::max();
    std::uint64_t begun_ = 0;
    std::uint64_t ended_ = 0;  // the latest of those that have
    int queries_ = 0;          // about jobs, in flight
    int on_their_way_ = 1;     // see note_registration_tried()
    std::string told_;         // the state in it
    result<void> answer_;      // to it
    bool asked_ = true;        // the first one is
    bool finishing_ = false;
    bool last_begun_ = false;
    atomic<bool> registration_tried_{false};
};

}  // namespace ojs::detail
