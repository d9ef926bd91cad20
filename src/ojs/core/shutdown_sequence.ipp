#pragma once

#include "../base/detail/sync.hpp"
#include "shutdown_sequence.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Between a step's thread and who waits for it; the last of the two frees it.
class running_step : public ref_counted {
  public:
    explicit running_step(function<void()> call) : call_(std::move(call)) {}

    // In a thread of its own.
    void run() {
        bool threw = false;
        call_guarded([&] { threw = !returns(); }, [&] { end(step_end::done); });
        end(threw ? step_end::threw : step_end::done);
    }
    // False at the deadline.
    bool wait(time_point deadline, step_end& how) {
        lock_guard held(mutex_);
        while (!ended_) {
            if (!changed_.wait_until(held, deadline) && !ended_) return false;
        }
        how = how_;
        return true;
    }

  private:
    bool returns() {
        try {
            call_();
            return true;
        } catch (...) {
            pass_on_thread_end();
            return false;
        }
    }
    void end(step_end how) {
        const lock_guard held(mutex_);
        ended_ = true;
        how_ = how;
        changed_.notify_all();
    }

    function<void()> call_;
    mutex mutex_;
    condition changed_;
    bool ended_ = false;
    step_end how_ = step_end::done;
};

}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(step_end how) noexcept {
    static constexpr const char* names[] = {"done", "threw", "timed out", "not started"};
    return names[static_cast<int>(how)];
}

OJS_SHUTDOWN_INLINE bool shutdown_sequence::add(std::string name, function<void()> call,
                                                std::chrono::milliseconds limit) {
    if (!call) return false;
    const std::chrono::milliseconds none{0};
    steps_.push_back({std::move(name), std::move(call), limit < none ? none : limit});
    return true;
}

OJS_SHUTDOWN_INLINE std::chrono::milliseconds shutdown_sequence::limit() const noexcept {
    std::chrono::milliseconds out{0};
    for (const step& each : steps_) out = each.limit < no_limit - out ? out + each.limit : no_limit;
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<step_result> shutdown_sequence::run(
    const function<void(const step_result&)>& ended, std::size_t stack_size) {
    std::vector<step_result> out;
    for (step& each : steps_) {
        const time_point began = steady_clock::now();
        step_result result;
        result.name = each.name;
        result.how = run_one(each, stack_size);
        result.took = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - began);
        if (ended) ended(result);
        out.push_back(std::move(result));
    }
    steps_.clear();
    return out;
}

OJS_SHUTDOWN_INLINE step_end shutdown_sequence::run_one(step& each, std::size_t stack_size) {
    const time_point deadline = deadline_after(each.limit);
    detail::ref<detail::running_step> running = detail::make_ref<detail::running_step>(std::move(each.call));
    detail::thread_options options;
    options.stack_size = stack_size;
    options.least_stack_size = 256 * 1024;
    options.name = "ojs-step";
    options.takes_signals = true;  // as what it starts does then
    result<detail::thread> started = detail::thread::start([running] { running->run(); }, options);
    if (!started) return step_end::not_started;
    step_end how = step_end::timed_out;
    if (running->wait(deadline, how)) {
        started->join();
    } else {
        started->detach();
    }
    return how;
}

}  // namespace v0_1_0
}  // namespace ojs
