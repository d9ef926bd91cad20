// coordinator_run: the drain of a program without a worker, and the end of every coordinator.
#pragma once

#include "coordinator_body.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

OJS_SHUTDOWN_INLINE result<void> coordinator_body::await_stop(const cancel_token& until) {
    result<wake> waker = wake::create();
    if (!waker) return waker.error();
    const wake& mine = *waker;
    if (!life_.subscribe(mine.notify_fd())) {
        return error{errc::busy, 0, "too many already follow this lifecycle"};
    }
    {
        const cancel_registration ends = until.on_cancel([&] { mine.notify(); });
        while (life_.phase() < phase::draining && !until.cancelled()) mine.wait_until(time_point::max());
    }
    life_.unsubscribe(mine.notify_fd());
    if (life_.phase() >= phase::draining) return {};
    return error{errc::cancelled, 0, "nobody asked for the end"};
}

inline result<void> call_drain(const function<result<void>(const cancel_token&)>& drain,
                               const cancel_token& token) {
    try {
        return drain(token);
    } catch (...) {
        pass_on_thread_end();
        return error{errc::system, 0, "the drain threw"};
    }
}

OJS_SHUTDOWN_INLINE result<void> coordinator_body::run(
    const function<result<void>(const cancel_token&)>& drain, const cancel_token& until) {
    if (!drain) return error{errc::invalid_argument, 0, "run() needs a function that drains"};
    {
        const lock_guard held(mutex_);
        if (exchange(runs_, true)) return error{errc::busy, 0, "run() was called before"};
    }
    const result<void> following = start_thread();  // for the deadline, where nothing is served
    if (!following) {
        const lock_guard held(mutex_);
        runs_ = false;
        return following;
    }
    const result<void> asked = await_stop(until);
    if (!asked) return asked;
    notice();
    sequence_options steps;
    steps.log.level = log_level::off;  // it is told by ours
    steps.progress = [&](const step_result& each) { log_step(log_, each); };
    steps_.run(steps);
    {
        const lock_guard held(mutex_);
        move(drain_event::begun);
    }
    const cancel_registration with_until =
        until.on_cancel([this] { cancel_.cancel(cancel_reason::cancelled); });
    const result<void> drained = call_drain(drain, cancel_.token());
    if (!drained) {
        const lock_guard held(mutex_);
        failed_ = true;
        message_ = drained.error().text;
        move(drain_event::failed);
    } else {
        finish("drained");
        life_.apply(event::drained, cause());
        life_.apply(event::finished, cause());
        await_pushed();
    }
    log_.write(drained ? log_level::info : log_level::error, drained ? "drain complete" : "drain failed",
               {field("process_id", options_.process_id),
                field("error", drained ? std::string() : drained.error().text)});
    return drained;
}

OJS_SHUTDOWN_INLINE void coordinator_body::await_pushed() {
    lock_guard held(mutex_);
    while (complete_push_.due) pushed_.wait(held);  // bounded: so many tries, each with a deadline
}

OJS_SHUTDOWN_INLINE void coordinator_body::close() {
    answered_ = cancel_registration();
    ended_ = cancel_registration();
    notice();
    lock_guard held(mutex_);
    if (closing_) return;
    const bool ends_now = under_way() && !failed_;
    held.unlock();
    if (ends_now) finish("ended");
    held.lock();
    closing_ = true;
    held.unlock();
    if (thread_.joinable()) {
        wake_.notify();
        thread_.join();
        life_.unsubscribe(wake_.notify_fd());
    }
    if (server_) server_->stop(steady_clock::now() + push_time);
    checks_.await_checks(steady_clock::now() + checks_time);
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
