// beat_schedule: when the next heartbeat is due.
#pragma once

#include <string>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "active_job.ipp"

namespace ojs::detail {

// The input of plan_beat(). The registration is part of the first heartbeat.
struct beat_facts {
    std::chrono::milliseconds interval{0};
    std::chrono::milliseconds first_gap{0};       // to the second heartbeat
    time_point requested_at = time_point::min();  // the first at once
    time_point begun_at = time_point::min();      // the latest
    std::uint64_t begun = 0;                      // its number
    int unanswered = 0;
    int calls = 0;                   // the unanswered, and queries about jobs after a heartbeat
    time_point last_due_at = never;  // set: only the last one follows those requested before
    atomic<bool> registration_tried{false};
    atomic<bool> last_begun{false};
};
enum class beat_action : std::uint8_t { wait, send, send_last, end };
struct beat_plan {
    beat_action action;
    time_point until = never;  // for `wait`: without a change
};
inline constexpr std::chrono::milliseconds max_response_wait{250};

// The backend must see heartbeats in order, but a changed state is announced though one hangs: a second is sent once the
// first has waited for its response for max_response_wait. The last one waits for all calls until last_due_at.
inline beat_plan plan_beat(const beat_facts& beats, time_point now) noexcept {
    if (beats.last_begun) return {beat_action::end};
    const bool finishing = beats.last_due_at != never;
    time_point due = beats.requested_at;
    if (!finishing)
        due = detail::min(due, beats.begun_at + (beats.begun == 1 ? beats.first_gap : beats.interval));
    if (!finishing && beats.unanswered > 0)
        due = beats.registration_tried ? detail::max(due, beats.begun_at + max_response_wait) : never;
    if (beats.unanswered > 1) due = never;
    if (now >= due) return {beat_action::send};
    if (finishing && (beats.calls == 0 || now >= beats.last_due_at)) return {beat_action::send_last};
    return {beat_action::wait, detail::min(due, beats.last_due_at)};
}

// Numbers the heartbeats, and keeps what is known of them. Thread-safe.
class beat_schedule {
  public:
    static constexpr std::chrono::milliseconds max_request_gap{1000};

    beat_schedule(state_lock& state, std::chrono::milliseconds interval) : state_(state) {
        facts_.interval = interval;
        // At random, to spread the heartbeats of workers that started together.
        facts_.first_gap = interval - random_half(interval);
    }

    void request_by(time_point when) {
        const unique_lock held(state_.guard);
        request(when);
    }
    // For handlers, which may call it often: limits the rate.
    void request_soon() {
        const unique_lock held(state_.guard);
        request(facts_.begun_at + detail::min(facts_.interval / 5, max_request_gap));
    }
    // Requests a beat when half of a lease that began at `since` is over.
    void request_renewal(time_point since, std::chrono::milliseconds lease) {
        if (lease / 2 < facts_.interval) request_by(since + lease / 2);
    }
    // Waits until a new beat has ended; concurrent callers share one.
    void request_and_await(time_point deadline) {
        unique_lock held(state_.guard);
        const std::uint64_t number = facts_.begun + 1;
        request(time_point::min());
        while (ended_ < number && !is_finishing() && state_.changed.wait_until(held, deadline)) {
        }
    }

    const beat_facts& facts() const noexcept { return facts_; }
    // Waits until the calling thread is to send a heartbeat, whose number it sets, or to end. The helper is for when the
    // other thread hangs, also in a callback: while no call is in progress, it acts only when the heartbeat after the next
    // is due.
    beat_action await_next(bool is_helper, std::uint64_t& number) noexcept {
        unique_lock held(state_.guard);
        for (;;) {
            const bool may_be_late = is_helper && facts_.calls == 0 && !is_finishing();
            const auto late =
                may_be_late ? facts_.interval + max_response_wait : std::chrono::milliseconds(0);
            const time_point now = steady_clock::now();
            beat_plan plan = plan_beat(facts_, now - late);
            // The first is the other thread's, which registers the worker.
            if (may_be_late && facts_.begun == 0) plan = {beat_action::wait};
            if (plan.action == beat_action::end) return plan.action;
            if (plan.action != beat_action::wait) {
                number = begin_call(plan.action, now);
                return plan.action;
            }
            state_.beat_due.wait_until(held, plan.until == never ? never : plan.until + late);
        }
    }
    // errc::cancelled: it was not sent, because its state was outdated. `failure`: null if it succeeded.
    void end_beat(std::uint64_t number, const error* failure, std::string state) noexcept {
        const unique_lock held(state_.guard);
        --facts_.unanswered;
        if (facts_.requested_at != never || is_finishing()) state_.beat_due.notify_all();
        if (failure != nullptr && failure->code == errc::cancelled) return;
        // An overtaken beat may have arrived last: send the current state again.
        if (number < ended_ && state != sent_state_) request(time_point::min());
        if (number <= ended_) return;  // a later one has ended
        ended_ = number;
        if (failure == nullptr) sent_state_.swap(state);
        state_.changed.notify_all();
    }
    // The thread has ended the heartbeat's callbacks, too.
    void end_call() noexcept {
        const unique_lock held(state_.guard);
        --facts_.calls;
        if (is_finishing()) state_.beat_due.notify_all();
    }
    // Queries about jobs, by one thread at a time. False: another one does, or only the last heartbeat follows.
    bool begin_queries() noexcept {
        const unique_lock held(state_.guard);
        if (is_finishing() || detail::exchange(querying_, true)) return false;
        ++facts_.calls;
        return true;
    }
    void end_queries() noexcept {
        {
            const unique_lock held(state_.guard);
            querying_ = false;
        }
        end_call();
    }

    // FETCH starts after it. [WP 3.1]
    bool registration_tried() const noexcept { return facts_.registration_tried; }
    void note_registration_tried() {
        const unique_lock held(state_.guard);
        facts_.registration_tried = true;
        state_.beat_due.notify_all();
    }
    // Whether this state is new to the backend.
    bool is_new_state(const std::string& state) const {
        const unique_lock held(state_.guard);
        return state != sent_state_;
    }
    bool has_last_begun() const noexcept { return facts_.last_begun; }
    std::size_t calls_in_flight() const {
        const unique_lock held(state_.guard);
        return static_cast<std::size_t>(facts_.calls);
    }
    bool all_finished() const { return has_last_begun() && calls_in_flight() == 0; }

    // Only the last beat follows; it ends by `deadline`.
    void finish(time_point deadline) {
        const unique_lock held(state_.guard);
        const time_point now = steady_clock::now();
        facts_.last_due_at = detail::min(now + (deadline - now) / 2, now + max_response_wait);
        deadline_ = deadline;
        state_.beat_due.notify_all();
        state_.changed.notify_all();
    }
    bool is_finishing() const noexcept { return deadline_.load() != never; }
    time_point cap_deadline(time_point deadline) const noexcept {
        return detail::min(deadline, deadline_.load());
    }

  private:
    // With the guard held.
    void request(time_point when) {
        if (is_finishing() || when >= facts_.requested_at) return;
        facts_.requested_at = when;
        state_.beat_due.notify_all();
    }
    std::uint64_t begin_call(beat_action action, time_point now) noexcept {
        facts_.last_begun = action == beat_action::send_last;
        if (facts_.last_begun) state_.beat_due.notify_all();  // the other thread ends
        facts_.requested_at = never;
        facts_.begun_at = now;
        ++facts_.unanswered;
        ++facts_.calls;
        return ++facts_.begun;
    }

    state_lock& state_;
    beat_facts facts_;  // written with the guard held
    bool querying_ = false;
    std::uint64_t ended_ = 0;             // the latest of those with a response
    std::string sent_state_;              // of the latest that succeeded
    atomic<time_point> deadline_{never};  // of the last beat
};

}  // namespace ojs::detail
