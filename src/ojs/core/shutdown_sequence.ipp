#pragma once

#include "../base/detail/sync.hpp"
#include "../base/detail/text.hpp"
#include "shutdown_sequence.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::chrono::milliseconds min_step_time{50};    // even after the common timeout or an abort
inline constexpr std::chrono::milliseconds start_timeout{1000};  // for a step's thread to get a processor
inline constexpr std::chrono::milliseconds poll_interval{50};    // of a lifecycle and the ends of threads

struct running_step {
    step_context context;
    detail::thread thread;
    atomic<time_point> started_at{time_point::max()};  // when its thread gets a processor, at the latest
    atomic<step_status> status{step_status::running};
    std::string error;  // once it has returned
};

OJS_SHUTDOWN_INLINE void log_step(const logger& log, const step_result& result) {
    log_record record{log_level::debug, "shutdown step begins", {field("step", result.name)}, {}, "sequence"};
    if (result.status != step_status::running) {
        record.level = result.status == step_status::done ? log_level::info : log_level::error;
        record.message = "shutdown step";
        record.fields.push_back(field("status", to_string(result.status)));
        record.fields.push_back(field("took_ms", result.took.count()));
    }
    if (!result.error.empty()) record.fields.push_back(field("error", result.error));
    log.write(std::move(record));
}

// Shared with the steps' threads, which may outlast run() and then use neither `options` nor `log`. No descriptor:
// a step may close them all.
class sequence_run : public ref_counted {
  public:
    // Takes the steps: those added meanwhile are for the next run.
    sequence_run(array<shutdown_sequence::entry>& steps, const sequence_options& options, const logger& log)
        : options_(options), log_(log), steps_(steps.size()), results_(steps.size()) {
        entries_.swap(steps);
    }

    std::vector<step_result> run() {
        for (std::size_t begin = 0, end = 0; begin < entries_.size(); begin = end) {
            group_started_at_ = steady_clock::now();
            abort_if_requested();
            start_step(end++);
            while (end < entries_.size() && entries_[end].parallel) start_step(end++);
            while (await_steps(begin, end)) abort_if_requested();
        }
        callbacks_.end_by(steady_clock::now() + min_step_time);
        flush_log();
        return std::move(results_);
    }

  private:
    void start_step(std::size_t index) {
        running_step& step = steps_[index];
        results_[index].name = std::move(entries_[index].name);
        report(results_[index]);
        const time_point now = steady_clock::now();  // later than its group, if a step ran on this thread
        const time_point common = detail::max(deadline_, now + min_step_time);
        step.context = {detail::min(deadline_after(entries_[index].timeout), common), abort_.token()};
        step.started_at = now + start_timeout;
        const auto body = [self = ref<sequence_run>(this), index] { self->run_step(index); };
        result<detail::thread> thread = start_thread("ojs-step", body);
        if (thread) {
            step.thread = std::move(*thread);
        } else if (thread.error().code == errc::unavailable) {
            step.error = thread.error().text;
            step.status = step_status::not_started;
        } else {
            body();  // here, without a timeout
        }
    }
    void run_step(std::size_t index) noexcept {
        running_step& step = steps_[index];
        change(step.started_at, steady_clock::now());
        step_status status = step_status::threw;
        try {
            const auto call = std::move(entries_[index].call);  // destroyed here, within the timeout
            const result<void> done = call(step.context);
            status = done ? step_status::done : step_status::failed;
            if (!done) step.error = done.error().text;
        } catch (...) {
            attempt([&] { step.error = thrown_text(); });
        }
        change(step.status, status);
    }
    template <class T>
    void change(atomic<T>& member, T value) noexcept {
        const unique_lock held(guard_);
        member = value;
        ++changes_;
        changed_.notify_one();
    }

    // Waits for a change of the group's steps and reports those that end. False: all have ended.
    bool await_steps(std::size_t begin, std::size_t end) {
        const unsigned changes = changes_;
        time_point until = steady_clock::now() + poll_interval;
        bool is_running = false;
        for (std::size_t i = begin; i < end; ++i) {
            if (results_[i].status != step_status::running || ends_now(i)) continue;
            is_running = true;
            until = detail::min(until, deadline_of(i));
        }
        unique_lock held(guard_);
        if (is_running && changes_ == changes) changed_.wait_until(held, until);
        return is_running;
    }
    bool ends_now(std::size_t index) {
        step_result& result = results_[index];
        running_step& step = steps_[index];
        const step_status status = step.status;
        const bool returned = status != step_status::running;
        // Destructors of thread_local objects count against the timeout.
        const bool ended = returned && step.thread.join_until(steady_clock::now() + min_step_time);
        if (!ended && steady_clock::now() < deadline_of(index)) return false;
        step.thread.detach();
        result.status = ended ? status : aborted_ ? step_status::cut_short : step_status::timed_out;
        if (returned) result.error = std::move(step.error);
        result.took = std::chrono::milliseconds(milliseconds_since(group_started_at_));
        report(result);
        return true;
    }
    time_point deadline_of(std::size_t index) const noexcept {
        const running_step& step = steps_[index];
        const time_point min = step.started_at.load() + detail::min(entries_[index].timeout, min_step_time);
        return detail::max(detail::min(step.context.deadline, deadline_), min);
    }

    void abort_if_requested() {
        if (aborted_ || options_.lifecycle == nullptr) return;
        const lifecycle_state now = options_.lifecycle->state();
        if (now.mode != stop_mode::forced && now.stop_signals < 2 && !now.cancel_requested) return;
        aborted_ = true;
        deadline_ = detail::min(deadline_, steady_clock::now() + min_step_time);
        abort_.request(cancel_reason::forced);
        // On a thread: they may block.
        const auto call = [self = ref<sequence_run>(this)] { self->abort_.run_callbacks(); };
        result<detail::thread> started = start_thread("ojs-abort", call);
        started ? static_cast<void>(callbacks_ = std::move(*started)) : call();
    }
    template <class Body>
    result<detail::thread> start_thread(const char* name, Body body) const {
        // It takes signals, as programs that the step starts inherit its mask.
        const thread_options options{options_.thread_stack_size, 256 * 1024, true, name};
        result<detail::thread> out = error{errc::unavailable, ENOMEM, "out of memory"};
        retry_allocation([&] { out = detail::thread::start(body, options); });
        return out;
    }
    void report(const step_result& result) {
        attempt([&] { log_step(log_, result); });
        attempt([&] { options_.progress(result); });
    }

    const sequence_options& options_;
    const logger& log_;
    array<shutdown_sequence::entry> entries_;
    array<running_step> steps_;
    std::vector<step_result> results_;
    time_point deadline_ = deadline_after(options_.timeout);  // of all steps; an abort brings it forward
    time_point group_started_at_;
    bool aborted_ = false;
    cancel_source abort_;
    detail::thread callbacks_;  // calls those of the abort
    mutex guard_;               // of the state of all steps
    condition changed_;
    atomic<unsigned> changes_{0};
};

}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(step_status status) noexcept {
    static constexpr const char* names[] = {"running",   "done",      "failed",     "threw",
                                            "timed out", "cut short", "not started"};
    return names[static_cast<int>(status)];
}

OJS_SHUTDOWN_INLINE result<std::chrono::milliseconds> server_shutdown_timeout(
    const environment_lookup& lookup) {
    constexpr const char* name = "OJS_SERVER_SHUTDOWN_TIMEOUT";
    const char* const value = detail::find_variable(lookup, name);
    if (value == nullptr) return std::chrono::milliseconds(30000);
    result<std::chrono::milliseconds> read = parse_duration(value);
    if (read) return read;
    return error{errc::invalid_argument, 0, detail::cat({name, "=", read.error().text})};
}

OJS_SHUTDOWN_INLINE bool shutdown_sequence::add_step(std::string name, step_call call,
                                                     std::chrono::milliseconds timeout, bool parallel) {
    if (!call) return false;
    const std::chrono::milliseconds none{0};
    steps_.push_back({std::move(name), std::move(call), timeout < none ? none : timeout, parallel});
    return true;
}

OJS_SHUTDOWN_INLINE std::chrono::milliseconds shutdown_sequence::timeout() const noexcept {
    std::chrono::milliseconds before{0};  // the start of the current parallel group
    std::chrono::milliseconds out{0};
    for (const entry& step : steps_) {
        if (!step.parallel) before = out;
        const auto end = step.timeout < no_limit - before ? before + step.timeout : no_limit;
        if (end > out) out = end;
    }
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<step_result> shutdown_sequence::run(const sequence_options& options) {
    log_options lines = options.log;  // plain, also without a terminal: the program may log no JSON
    if (lines.format == log_format::automatic) lines.format = log_format::text;
    const detail::logger log(std::move(lines), "sequence");
    return detail::make_ref<detail::sequence_run>(steps_, options, log)->run();
}

}  // namespace v0_1_0
}  // namespace ojs
