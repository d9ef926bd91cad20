#pragma once

#include "../base/detail/sync.hpp"
#include "../base/detail/text.hpp"
#include "shutdown_sequence.hpp"

namespace ojs {
inline namespace v0_1_0 {
OJS_SHUTDOWN_INLINE bool shutdown_sequence::add_step(step added) {
    if (!added.call) return false;
    added.timeout = detail::max(added.timeout, std::chrono::milliseconds(0));
    steps_.push_back(std::move(added));
    return true;
}

OJS_SHUTDOWN_INLINE std::chrono::milliseconds shutdown_sequence::timeout() const noexcept {
    std::chrono::milliseconds out{0};
    for (const step& each : steps_) out = each.timeout < no_limit - out ? out + each.timeout : no_limit;
    return out;
}

// Shared with its thread, which may outlast run(). No descriptor: a step may close them all.
class shutdown_sequence::running_step : public detail::ref_counted {
  public:
    running_step(step_call call, std::chrono::milliseconds timeout, time_point run_deadline)
        : call_(std::move(call)), min_time_(detail::min(timeout, std::chrono::milliseconds(50))) {
        context_.deadline =
            detail::min(deadline_after(timeout), detail::max(run_deadline, steady_clock::now() + min_time_));
    }

    std::string error;  // once await() has returned, unless that timed out

    void run() noexcept {
        const time_point began_at = steady_clock::now();
        set(began_at, step_status::running);
        try {
            const step_call owned = std::move(call_);  // destroyed here, within the timeout
            const result<void> done = owned(context_);
            if (!done) error = done.error().text;
            set(began_at, done ? step_status::done : step_status::failed);
        } catch (...) {
            error = detail::thrown_text();
            set(began_at, step_status::threw);
        }
    }
    // Until the thread has ended, with the destructors of its thread_local objects, or its time has.
    step_status await(detail::thread& thread) noexcept {
        detail::unique_lock held(guard_);
        while (status_ == step_status::running && changed_.wait_until(held, latest_end())) continue;
        if (status_ == step_status::running) return thread.detach(), step_status::timed_out;
        const time_point limit = detail::max(latest_end(), steady_clock::now() + min_time_);
        held.unlock();
        return thread.end_by(limit) ? status_ : step_status::timed_out;
    }

  private:
    time_point latest_end() const noexcept { return detail::max(context_.deadline, began_at_ + min_time_); }
    void set(time_point began_at, step_status status) noexcept {
        const detail::unique_lock held(guard_);
        began_at_ = began_at;
        status_ = status;
        changed_.notify_all();
    }

    step_call call_;
    const std::chrono::milliseconds min_time_;  // even after the common timeout
    step_context context_;
    detail::mutex guard_;  // of the rest
    detail::condition changed_;
    time_point began_at_ = deadline_after(std::chrono::seconds(1));  // when it got a processor, at the latest
    step_status status_ = step_status::running;
};

OJS_SHUTDOWN_INLINE std::vector<step_result> shutdown_sequence::run(const sequence_options& options) {
    const time_point run_deadline = deadline_after(options.timeout);
    std::vector<step_result> out;
    for (step& each : detail::exchange(steps_, {})) {
        out.push_back({std::move(each.name), step_status::running, {}, {}});
        step_result& result = out.back();
        options.progress(result);
        const time_point start = steady_clock::now();
        const auto running = detail::make_ref<running_step>(std::move(each.call), each.timeout, run_deadline);
        // It takes signals: programs that the step starts inherit its mask.
        ojs::result<detail::thread> started =
            detail::thread::start([running] { running->run(); }, {options.thread_stack_size, true, "ojs-step"});
        if (!started) running->run();
        detail::thread thread = started ? std::move(*started) : detail::thread();
        result.status = running->await(thread);
        if (result.status != step_status::timed_out) result.error = std::move(running->error);
        result.took = std::chrono::milliseconds(detail::milliseconds_since(start));
        options.progress(result);
    }
    return out;
}
}  // namespace v0_1_0
}  // namespace ojs
