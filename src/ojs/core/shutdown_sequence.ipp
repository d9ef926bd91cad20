#pragma once

#include "../base/detail/sync.hpp"
#include "../base/detail/text.hpp"
#include "shutdown_sequence.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::chrono::milliseconds min_step_time{50};    // even after the common timeout or an abort
inline constexpr std::chrono::milliseconds start_timeout{1000};  // for a step's thread to get a processor

struct running_step {
    function<result<void>(const step_context&)> call;
    step_context context;
    std::chrono::milliseconds min_time{0};
    time_point created_at{};
    detail::thread thread;
    atomic<time_point> started_at{time_point::max()};  // max() until its thread has a processor
    atomic<step_status> status{step_status::running};
    std::string error;  // once it has returned
};

// What the sequence shares with its threads, which may outlast it. No descriptor: a step may close them all.
struct step_board : ref_counted {
    explicit step_board(std::size_t count) : steps(count) {}

    void run(running_step& step) noexcept {
        change(step.started_at, steady_clock::now());
        step_status status = step_status::threw;
        try {
            const auto call = std::move(step.call);  // destroyed here, within the timeout
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
        const unique_lock held(guard);
        member = value;
        changed.notify_one();
    }

    array<running_step> steps;
    mutex guard;  // of the state of all steps
    condition changed;
    cancel_source abort;
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

// Plain lines, also without a terminal: the program need not be one that logs JSON.
inline log_options as_text(log_options log) {
    if (log.format == log_format::automatic) log.format = log_format::text;
    return log;
}

class sequence_run {
  public:
    // Takes the steps: those added meanwhile are for the next run.
    sequence_run(array<shutdown_sequence::entry>& steps, const sequence_options& options)
        : options_(options), board_(make_ref<step_board>(steps.size())), results_(steps.size()) {
        entries_.swap(steps);
    }

    std::vector<step_result> run() {
        for (std::size_t end = 0; end < entries_.size();) {
            first_ = end++;
            while (end < entries_.size() && entries_[end].parallel) ++end;
            started_at_ = steady_clock::now();
            abort_if_requested();
            for (std::size_t i = first_; i < end; ++i) start_step(i);
            for (std::size_t left = end - first_; left > 0;) {
                await_change(end);
                abort_if_requested();
                for (std::size_t i = first_; i < end; ++i) left -= std::size_t{ends_now(i)};
            }
        }
        callbacks_.end_by(steady_clock::now() + min_step_time);
        flush_log();
        return std::move(results_);
    }

  private:
    void start_step(std::size_t index) {
        shutdown_sequence::entry& entry = entries_[index];
        running_step& step = board_->steps[index];
        results_[index].name = std::move(entry.name);
        report(results_[index]);
        step.call = std::move(entry.call);
        step.min_time = detail::min(entry.timeout, min_step_time);
        step.created_at = steady_clock::now();  // later than its group, if a step ran on this thread
        const time_point common = detail::max(deadline_, step.created_at + min_step_time);
        step.context = {detail::min(deadline_after(entry.timeout), common), board_->abort.token()};
        const auto run = [board = board_, &step] { board->run(step); };
        result<detail::thread> thread = start_thread("ojs-step", run);
        if (thread) {
            step.thread = std::move(*thread);
        } else if (thread.error().code == errc::unavailable) {
            step.error = thread.error().text;
            step.status = step_status::not_started;
        } else {
            run();  // here, without a timeout
        }
    }

    void await_change(std::size_t end) {
        const bool polls = options_.lifecycle != nullptr && !aborted_;  // it notifies by descriptors only
        time_point until = polls ? steady_clock::now() + min_step_time : time_point::max();
        unique_lock held(board_->guard);
        for (std::size_t i = first_; i < end; ++i) {
            if (results_[i].status != step_status::running) continue;
            if (board_->steps[i].status != step_status::running) return;
            until = detail::min(until, deadline_of(board_->steps[i]));
        }
        board_->changed.wait_until(held, until);
    }
    void abort_if_requested() {
        if (aborted_ || options_.lifecycle == nullptr) return;
        const lifecycle_state now = options_.lifecycle->state();
        if (now.mode != stop_mode::forced && now.stop_signals < 2 && !now.cancel_requested) return;
        aborted_ = true;
        deadline_ = detail::min(deadline_, steady_clock::now() + min_step_time);
        board_->abort.request(cancel_reason::forced);
        const auto call = [board = board_] { board->abort.run_callbacks(); };  // they may block
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

    // A step whose thread got no processor in time still has its minimum.
    time_point deadline_of(const running_step& step) const noexcept {
        const time_point started = step.started_at;
        const time_point min =
            started == time_point::max() ? step.created_at + start_timeout : started + step.min_time;
        return detail::max(detail::min(step.context.deadline, deadline_), min);
    }
    bool ends_now(std::size_t index) {
        step_result& result = results_[index];
        running_step& step = board_->steps[index];
        const step_status status = step.status;
        const bool returned = status != step_status::running;
        if (result.status != step_status::running) return false;  // it had ended before
        // Destructors of thread_local objects count against the timeout.
        const bool ended = returned && step.thread.join_until(steady_clock::now() + min_step_time);
        if (!ended && steady_clock::now() < deadline_of(step)) return false;
        step.thread.detach();
        result.status = ended ? status : aborted_ ? step_status::cut_short : step_status::timed_out;
        if (returned) result.error = std::move(step.error);
        result.took = std::chrono::milliseconds(milliseconds_since(started_at_));
        report(result);
        return true;
    }
    void report(const step_result& result) {
        attempt([&] { log_step(log_, result); });
        attempt([&] { options_.progress(result); });
    }

    array<shutdown_sequence::entry> entries_;
    const sequence_options& options_;
    const logger log_{as_text(options_.log), "sequence"};
    const ref<step_board> board_;
    std::vector<step_result> results_;
    time_point deadline_ = deadline_after(options_.timeout);  // of all steps; an abort brings it forward
    // Of the steps that run now:
    std::size_t first_ = 0;
    time_point started_at_;
    bool aborted_ = false;
    detail::thread callbacks_;  // calls those of the abort
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
    return detail::sequence_run(steps_, options).run();
}

}  // namespace v0_1_0
}  // namespace ojs
