// coordinator_thread: what a coordinator does by itself: it cancels what takes too long, and tells the launcher.
#pragma once

#include "coordinator_body.hpp"
#include "rpc.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

OJS_SHUTDOWN_INLINE result<void> coordinator_body::start_thread() {
    if (thread_.joinable()) return {};
    if (!life_.subscribe(wake_.notify_fd())) {
        return error{errc::busy, 0, "too many already follow this lifecycle"};
    }
    thread_options named;
    named.name = "ojs-coord";
    result<thread> started = thread::start([this] { follow(); }, named);
    if (!started) {
        life_.unsubscribe(wake_.notify_fd());
        return started.error();
    }
    thread_ = std::move(*started);
    return {};
}

OJS_SHUTDOWN_INLINE void coordinator_body::follow() {
    for (;;) {
        notice();
        const bool more = cancel_late() || push_due();
        if (more) continue;
        lock_guard held(mutex_);
        if (closing_ && !complete_push_.due) return;
        const time_point next = next_due();
        held.unlock();
        wake_.wait_until(next);
    }
}

OJS_SHUTDOWN_INLINE time_point coordinator_body::next_due() const {
    time_point next = under_way() && !cancelled_ ? cancel_at_ : time_point::max();
    if (ready_push_.due && ready_push_.at < next) next = ready_push_.at;
    if (complete_push_.due && complete_push_.at < next) next = complete_push_.at;
    return next;
}

// What would not be done when the launcher sends SIGTERM is told now, so that there is time to report it; and at once after
// a second stop signal. True: done.
OJS_SHUTDOWN_INLINE bool coordinator_body::cancel_late() {
    const bool forced = life_.phase() >= phase::stopping;
    {
        const lock_guard held(mutex_);
        const bool late = steady_clock::now() >= cancel_at_;
        if (!under_way() || cancelled_ || (!late && !forced)) return false;
        cancelled_ = true;
    }
    if (worker_ != nullptr) {
        if (!forced) life_.apply(event::cancel_request, rpc_cause);
    } else {
        cancel_.cancel(forced ? cancel_reason::forced : cancel_reason::grace_period_expired);
    }
    log_.write(log_level::warn, "work under way is cancelled", {field("process_id", options_.process_id)});
    return true;
}

// True: something was sent, or given up.
OJS_SHUTDOWN_INLINE bool coordinator_body::push_due() {
    lock_guard held(mutex_);
    const time_point now = steady_clock::now();
    const bool complete = complete_push_.due && (complete_push_.at <= now || closing_);
    if (complete_push_.due || closing_) ready_push_.due = false;
    if (!complete && !(ready_push_.due && ready_push_.at <= now)) return false;
    held.unlock();
    const bool done = push_now(complete);
    held.lock();
    launcher_push& push = complete ? complete_push_ : ready_push_;
    ++push.tries;
    push.at = steady_clock::now() + pause_.next();
    push.due = push.due && !done && push.tries < push_tries;
    if (complete && !push.due) pushed_.notify_all();
    return true;
}

// False: may be tried again.
OJS_SHUTDOWN_INLINE bool coordinator_body::push_now(bool complete) {
    http_call call;
    call.deadline = steady_clock::now() + push_time;
    call.policy = resend::always;
    const std::string& id = options_.process_id;
    error failure;
    if (complete) {
        lock_guard held(mutex_);
        const shutdown_complete told{id, message_, took_ms_};
        held.unlock();
        const auto ack = rpc_call<shutdown_complete_ack>(*launcher_, lifecycle_service,
                                                         "NotifyShutdownComplete", told, call);
        if (ack) return true;
        failure = ack.error();
    } else {
        const auto ack = rpc_call<ready_ack>(*launcher_, lifecycle_service, "NotifyReady",
                                             ready_notification{id, {}}, call);
        if (ack) return true;
        failure = ack.error();
    }
    log_.write(log_level::warn, "the launcher was not told",
               {field("what", complete ? "complete" : "ready"), field("error", failure.text)});
    return failure.code == errc::unsupported || failure.code == errc::rejected;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
