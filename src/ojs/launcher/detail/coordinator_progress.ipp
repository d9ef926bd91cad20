// coordinator_progress: what moves a shutdown on, whoever is behind it.
#pragma once

#include "coordinator_body.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

OJS_SHUTDOWN_INLINE void coordinator_body::set_times(time_point from, std::chrono::milliseconds grace,
                                                     std::chrono::milliseconds max) {
    const auto report = options_.report_time < max / 2 ? options_.report_time : max / 2;
    ask_more_at_ = from + grace * 4 / 5;
    cancel_at_ = from + max - report;
}

// Where the lifecycle stands, as far as it concerns the shutdown.
OJS_SHUTDOWN_INLINE void coordinator_body::notice() {
    if (phase() < phase::draining) return;
    const lock_guard held(mutex_);
    if (state_ == shutdown_state::running) {
        received_ = steady_clock::now();
        // A worker that was sent a signal keeps to its own grace period.
        if (worker_ == nullptr)
            set_times(received_, said_or(0, options_.grace_period), said_or(0, options_.max_shutdown));
        move(drain_event::asked);
    }
    if (!runs_ && steps_.size() == 0)
        move(drain_event::begun);  // steps are for run(), which may not have been called yet
    if (!blocking_.empty()) move(drain_event::blocked);
}

OJS_SHUTDOWN_INLINE void coordinator_body::finish(std::string message) {
    const lock_guard held(mutex_);
    if (state_ == shutdown_state::complete) return;
    complete_push_.due = under_way() && launcher_;
    if (under_way()) took_ms_ = milliseconds_since(received_);
    move(drain_event::ended);
    message_ = std::move(message);
    wake_.notify();
}

OJS_SHUTDOWN_INLINE void coordinator_body::say(readiness_state state, std::string message) {
    checks_.say(state, std::move(message));
    if (state == readiness_state::ready) push_ready();
}

// Only brings the launcher's next look forward, so it may be sent too often, or get lost.
OJS_SHUTDOWN_INLINE void coordinator_body::push_ready() {
    const lock_guard held(mutex_);
    if (!launcher_ || state_ != shutdown_state::running) return;
    ready_push_ = launcher_push{true, 0, time_point{}};
    wake_.notify();
}

OJS_SHUTDOWN_INLINE void coordinator_body::set_metrics(shutdown_metrics now) {
    const lock_guard held(mutex_);
    metrics_ = std::move(now);
}

OJS_SHUTDOWN_INLINE void coordinator_body::block(std::string operation) {
    const lock_guard held(mutex_);
    blocking_.push_back(std::move(operation));
    move(drain_event::blocked);
}

OJS_SHUTDOWN_INLINE void coordinator_body::unblock(const std::string& operation) {
    const lock_guard held(mutex_);
    for (std::size_t i = 0; i < blocking_.size(); ++i) {
        if (blocking_[i] != operation) continue;
        blocking_.erase(blocking_.begin() + static_cast<std::ptrdiff_t>(i));
        if (blocking_.empty() && !failed_) move(drain_event::unblocked);
        return;
    }
}

OJS_SHUTDOWN_INLINE void coordinator_body::need(std::chrono::seconds additional) {
    const std::int64_t most = std::chrono::duration_cast<std::chrono::seconds>(longest_shutdown).count();
    const std::int64_t asked = additional.count() < most ? additional.count() : most;
    const lock_guard held(mutex_);
    more_said_ = true;
    more_seconds_ = asked > 0 ? static_cast<std::int32_t>(asked) : 0;
}

OJS_SHUTDOWN_INLINE bool coordinator_body::add_step(std::string name, function<void()> step,
                                                    std::chrono::milliseconds limit) {
    const lock_guard held(mutex_);
    return state_ == shutdown_state::running && steps_.add(std::move(name), std::move(step), limit);
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
