#pragma once

#include "../base/detail/sync.hpp"
#include "../base/detail/text.hpp"
#include "shutdown_sequence.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::chrono::milliseconds min_step_time{50};    // even after the common timeout or an abort
inline constexpr std::chrono::milliseconds start_timeout{1000};  // for a step's thread to get a processor

// What the sequence shares with its threads, which may outlast it. No descriptor: a step may close them all.
struct step_board : ref_counted {
    void notify() noexcept {  // a step has started or ended
        const unique_lock held(guard);
        ++changes;
        changed.notify_one();
    }
    void await(unsigned& seen, time_point deadline) noexcept {
        unique_lock held(guard);
        while (changes == seen && changed.wait_until(held, deadline)) {
        }
        seen = changes;
    }

    mutex guard;
    condition changed;
    unsigned changes = 0;
    cancel_source abort;
};

class running_step : public ref_counted {
  public:
    running_step(ref<step_board> board, function<result<void>(const step_context&)> call,
                 step_context context)
        : board_(std::move(board)), call_(std::move(call)), context_(std::move(context)) {}

    void run() {
        started_at_ = steady_clock::now();
        board_->notify();
        end(call_step());
    }
    step_status status() const noexcept { return status_; }
    time_point started_at() const noexcept { return started_at_; }  // max() until its thread has a processor
    std::string& error() noexcept { return error_; }                // once it has ended

  private:
    step_status call_step() {
        try {
            const auto call = std::move(call_);  // destroyed here, within the timeout
            const result<void> done = call(context_);
            if (!done) error_ = done.error().text;
            return done ? step_status::done : step_status::failed;
        } catch (...) {
            attempt([&] { error_ = thrown_text(); });
        }
        return step_status::threw;
    }
    void end(step_status status) noexcept {
        status_ = status;
        board_->notify();
    }

    const ref<step_board> board_;
    function<result<void>(const step_context&)> call_;
    const step_context context_;
    atomic<time_point> started_at_{time_point::max()};
    atomic<step_status> status_{step_status::running};
    std::string error_;
};

OJS_SHUTDOWN_INLINE void log_step(const logger& log, const step_result& result) {
    log_record record{log_level::debug, "shutdown step begins", {field("step", result.name)}, {}};
    if (result.status != step_status::running) {
        record = {log_level::error,
                  "shutdown step",
                  {field("step", result.name), field("status", to_string(result.status)),
                   field("took_ms", result.took.count())},
                  {}};
        if (result.status == step_status::done) record.level = log_level::info;
        if (!result.error.empty()) record.fields.push_back(field("error", result.error));
    }
    record.component = "sequence";
    log.write(std::move(record));
}

// Plain lines, also without a terminal: the program need not be one that logs JSON.
inline log_options as_text(log_options log) {
    if (log.format == log_format::automatic) log.format = log_format::text;
    return log;
}

class sequence_run {
  public:
    using entry = shutdown_sequence::entry;

    sequence_run(array<entry>& steps, const sequence_options& options) : steps_(steps), options_(options) {}

    std::vector<step_result> run() {
        retry_allocation([this] { results_.reserve(steps_.size()); });
        for (std::size_t first = 0; first < steps_.size();) {
            std::size_t last = first + 1;
            while (last < steps_.size() && steps_[last].parallel) ++last;
            run_parallel(first, last);
            first = last;
        }
        callbacks_.end_by(steady_clock::now() + min_step_time);
        flush_log();
        return std::move(results_);
    }

  private:
    struct active_step {
        std::size_t result_index = 0;  // in results_
        ref<running_step> running;
        detail::thread thread;
        time_point deadline;
        std::chrono::milliseconds min_time{0};

        bool returned() const noexcept { return running->status() != step_status::running; }
    };

    void run_parallel(std::size_t first, std::size_t last) {
        started_at_ = steady_clock::now();
        array<active_step> active_steps;
        retry_allocation([&] { active_steps.reserve(last - first); });
        abort_if_requested(active_steps);
        for (std::size_t i = first; i < last; ++i) start_step(steps_[i], active_steps);
        while (!active_steps.empty()) {
            await_change(active_steps);
            abort_if_requested(active_steps);
            for (std::size_t i = active_steps.size(); i-- > 0;) {
                if (reap_if_ended(active_steps[i])) active_steps.remove(i);
            }
        }
    }

    void start_step(entry& step, array<active_step>& active_steps) {
        results_.emplace_back();
        results_.back().name = std::move(step.name);
        report(results_.back());
        active_step started;
        started.result_index = results_.size() - 1;
        started.deadline = deadline_of(step);
        started.min_time = step.timeout < min_step_time ? step.timeout : min_step_time;
        retry_allocation([&] {
            started.running = make_ref<running_step>(board_, std::move(step.call),
                                                     step_context{started.deadline, board_->abort.token()});
        });
        if (!started.running) return end(results_.back(), step_status::not_started, "out of memory");
        result<detail::thread> thread =
            start_thread("ojs-step", [running = started.running] { running->run(); });
        if (thread) started.thread = std::move(*thread);
        active_steps.push_back(std::move(started));
        if (!thread) active_steps.back().running->run();  // no thread: it runs here, without a timeout
    }
    time_point deadline_of(const entry& step) const noexcept {
        const time_point min = started_at_ + min_step_time;
        const time_point step_deadline = deadline_after(step.timeout);
        const time_point common = aborted_ || deadline_ < min ? min : deadline_;
        return step_deadline < common ? step_deadline : common;
    }

    void await_change(const array<active_step>& active_steps) {
        const bool polls = options_.lifecycle != nullptr && !aborted_;  // it notifies by descriptors only
        time_point until = polls ? steady_clock::now() + min_step_time : time_point::max();
        for (const active_step& active : active_steps) {
            const time_point wake_at = active.returned() ? time_point() : effective_deadline(active);
            if (wake_at < until) until = wake_at;
        }
        board_->await(seen_changes_, until);
    }
    void abort_if_requested(array<active_step>& active_steps) {
        if (aborted_ || options_.lifecycle == nullptr) return;
        const lifecycle_state now = options_.lifecycle->state();
        if (now.mode != stop_mode::forced && now.stop_signals < 2 && !now.cancel_requested) return;
        aborted_ = true;
        board_->abort.request(cancel_reason::forced);
        if (board_->abort.has_pending_callbacks()) {
            const auto call = [board = board_] { board->abort.run_callbacks(); };
            result<detail::thread> started = start_thread("ojs-abort", call);  // they may block
            started ? static_cast<void>(callbacks_ = std::move(*started)) : call();
        }
        const time_point last = steady_clock::now() + min_step_time;
        for (active_step& active : active_steps) {
            if (last < active.deadline) active.deadline = last;
        }
    }

    template <class Body>
    result<detail::thread> start_thread(const char* name, Body body) const {
        thread_options options;
        options.stack_size = options_.thread_stack_size;
        options.min_stack_size = 256 * 1024;
        options.name = name;
        options.takes_signals = true;  // inherited by programs that the step starts
        result<detail::thread> out = error{errc::unavailable, ENOMEM, "out of memory"};
        retry_allocation([&] { out = detail::thread::start(body, options); });
        return out;
    }

    bool reap_if_ended(active_step& active) {
        const bool returned = active.returned();
        if (!returned && steady_clock::now() < effective_deadline(active)) return false;
        // Destructors of thread_local objects count against the timeout.
        const bool ended = returned && active.thread.join_until(steady_clock::now() + min_step_time);
        if (returned && !ended && steady_clock::now() < active.deadline) return false;
        if (!ended) active.thread.detach();
        end(results_[active.result_index],
            ended      ? active.running->status()
            : aborted_ ? step_status::cut_short
                       : step_status::timed_out,
            returned ? std::move(active.running->error()) : std::string());
        return true;
    }
    // A step whose thread got no processor in time still has its minimum.
    time_point effective_deadline(const active_step& active) const noexcept {
        const time_point started = active.running->started_at();
        const time_point last =
            started == time_point::max() ? started_at_ + start_timeout : started + active.min_time;
        return active.min_time.count() == 0 || last < active.deadline ? active.deadline : last;
    }
    void end(step_result& result, step_status status, std::string error) {
        result.status = status;
        result.error = std::move(error);
        result.took = std::chrono::milliseconds(milliseconds_since(started_at_));
        report(result);
    }
    void report(const step_result& result) {
        attempt([&] { log_step(log_, result); });
        attempt([&] { options_.progress(result); });
    }

    array<entry>& steps_;
    const sequence_options& options_;
    const logger log_{as_text(options_.log), "sequence"};
    const ref<step_board> board_ = make_ref<step_board>();
    const time_point deadline_ = deadline_after(options_.timeout);
    time_point started_at_;
    unsigned seen_changes_ = 0;  // of board_
    bool aborted_ = false;
    detail::thread callbacks_;  // calls those of the abort
    std::vector<step_result> results_;
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
    detail::array<entry> taken;  // steps added meanwhile are for the next run
    detail::sequence_run all(taken, options);
    taken.swap(steps_);
    return all.run();
}

}  // namespace v0_1_0
}  // namespace ojs
