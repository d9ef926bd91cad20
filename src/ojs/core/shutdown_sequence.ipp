#pragma once

#include <exception>

#include "../base/detail/sync.hpp"
#include "../base/detail/text.hpp"
#include "detail/wake.hpp"
#include "shutdown_sequence.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What each step has, also when the time of all is over, or when they are aborted.
inline constexpr std::chrono::milliseconds last_chance{50};
// How long a step's thread may wait for a processor before it is given up.
inline constexpr std::chrono::milliseconds start_patience{1000};

// Wakes the sequence when a step begins or ends. Without a descriptor, the sequence polls its steps.
struct step_board : ref_counted {
    step_board() {
        if (result<wake> made = wake::create()) changed = std::move(*made);
    }
    wake changed;
};

// Between a step's thread and who waits for it; the last of the two frees it.
class running_step : public ref_counted {
  public:
    running_step(ref<step_board> board, function<result<void>(const step_context&)> call,
                 step_context context)
        : board_(std::move(board)), call_(std::move(call)), context_(std::move(context)) {}

    void run() {
        step_status status = step_status::done;
        begun_at_ = steady_clock::now();
        board_->changed.notify();
        call_guarded([&] { status = returns(); }, [this] { end(step_status::done); });
        end(status);
    }
    step_status status() const noexcept { return status_; }
    time_point begun_at() const noexcept { return begun_at_; }  // max() until its thread has a processor
    std::string& error() noexcept { return error_; }            // once it has ended

  private:
    step_status returns() {
        try {
            const function<result<void>(const step_context&)> call =
                std::move(call_);  // what it holds ends here
            const result<void> done = call(context_);
            if (!done) error_ = done.error().text;
            return done ? step_status::done : step_status::failed;
        } catch (const std::exception& thrown) {
            const char* const what = thrown.what();
            attempt([&] { error_ = what == nullptr ? "" : what; });  // out of memory may be what was thrown
        } catch (...) {
            pass_on_thread_end();
        }
        return step_status::threw;
    }
    void end(step_status status) noexcept {
        status_ = status;
        board_->changed.notify();
    }

    const ref<step_board> board_;
    function<result<void>(const step_context&)> call_;
    const step_context context_;
    atomic<time_point> begun_at_{time_point::max()};
    atomic<step_status> status_{step_status::running};
    std::string error_;
};

OJS_SHUTDOWN_INLINE void log_step(const logger& log, const step_result& each) {
    if (each.status == step_status::running)
        return log.write(log_level::debug, "shutdown step begins", {field("step", each.name)});
    log_record record{
        each.status == step_status::done ? log_level::info : log_level::error,
        "shutdown step",
        {field("step", each.name), field("end", to_string(each.status)), field("took_ms", each.took.count())},
        {}};
    if (!each.error.empty()) record.fields.push_back(field("error", each.error));
    log.write(std::move(record));
}

class sequence_run {
  public:
    using step = shutdown_sequence::entry;

    sequence_run(array<step>& steps, const sequence_options& options) : steps_(steps), options_(options) {}

    std::vector<step_result> run() {
        insist([this] { results_.reserve(steps_.size()); });
        const int notify_fd = board_->changed.notify_fd();
        looks_ =
            notify_fd < 0 || (options_.lifecycle != nullptr && !options_.lifecycle->subscribe(notify_fd));
        for (std::size_t first = 0; first < steps_.size();) {
            std::size_t last = first + 1;
            while (last < steps_.size() && steps_[last].parallel) ++last;
            run_together(first, last);
            first = last;
        }
        if (options_.lifecycle != nullptr) options_.lifecycle->unsubscribe(notify_fd);
        return std::move(results_);
    }

  private:
    struct member {
        std::size_t place = 0;  // of its result
        ref<running_step> running;
        thread runner;
        time_point deadline;
        std::chrono::milliseconds chance{0};

        bool returned() const noexcept { return running->status() != step_status::running; }
    };

    // The steps from `first` on that run beside each other.
    void run_together(std::size_t first, std::size_t last) {
        began_ = steady_clock::now();
        array<member> members;
        insist([&] { members.reserve(last - first); });
        abort_if_requested(members);
        for (std::size_t i = first; i < last; ++i) begin(steps_[i], members);
        while (!members.empty()) {
            await_change(members);
            abort_if_requested(members);
            for (std::size_t i = members.size(); i-- > 0;) {
                if (has_ended(members[i])) members.remove(i);
            }
        }
    }

    void begin(step& each, array<member>& members) {
        results_.emplace_back();
        results_.back().name = std::move(each.name);
        tell(results_.back());
        member begun;
        begun.place = results_.size() - 1;
        begun.deadline = deadline_of(each);
        begun.chance = each.timeout < last_chance ? each.timeout : last_chance;
        insist([&] {
            begun.running = make_ref<running_step>(board_, std::move(each.call),
                                                   step_context{begun.deadline, abort_.token()});
        });
        if (!begun.running) return end(results_.back(), step_status::not_started, "out of memory");
        thread_options options;
        options.stack_size = options_.thread_stack_size;
        options.min_stack_size = 256 * 1024;
        options.name = "ojs-step";
        options.takes_signals = true;  // as what it starts does then
        result<thread> started = error{errc::unavailable, ENOMEM, "out of memory"};
        insist([&] { started = thread::start([running = begun.running] { running->run(); }, options); });
        if (started) begun.runner = std::move(*started);
        members.push_back(std::move(begun));
        if (!started) members.back().running->run();  // no thread: it runs here, without a timeout
    }
    time_point deadline_of(const step& each) const noexcept {
        const time_point least = began_ + last_chance;
        const time_point own = deadline_after(each.timeout);
        const time_point of_all = hurried_ || end_ < least ? least : end_;
        return own < of_all ? own : of_all;
    }

    // Until a step begins, has ended or has had its time, or the lifecycle has changed.
    void await_change(const array<member>& members) {
        time_point until = looks_ ? steady_clock::now() + last_chance : time_point::max();
        for (const member& each : members) {
            const time_point at = each.returned() ? time_point() : end_of(each);
            if (at < until) until = at;
        }
        board_->changed.wait_until(until);
    }
    void abort_if_requested(array<member>& members) {
        if (hurried_ || options_.lifecycle == nullptr) return;
        const lifecycle_state now = options_.lifecycle->state();
        if (now.stop_signals < 2 && !now.cancel_requested) return;
        hurried_ = true;
        abort_.cancel(cancel_reason::forced);
        const time_point last = steady_clock::now() + last_chance;
        for (member& each : members) {
            if (last < each.deadline) each.deadline = last;
        }
    }

    bool has_ended(member& each) {
        const bool returned = each.returned();
        if (!returned && steady_clock::now() < end_of(each)) return false;
        // The destructors of its thread_local objects count against its timeout.
        const bool ended = returned && each.runner.join_until(steady_clock::now() + last_chance);
        if (returned && !ended && steady_clock::now() < each.deadline) return false;
        if (!ended) each.runner.detach();
        end(results_[each.place],
            ended      ? each.running->status()
            : hurried_ ? step_status::cut_short
                       : step_status::timed_out,
            returned ? std::move(each.running->error()) : std::string());
        return true;
    }
    // One whose thread got no processor in its time has its last chance still before it.
    time_point end_of(const member& each) const noexcept {
        const time_point begun = each.running->begun_at();
        const time_point last = begun == time_point::max() ? began_ + start_patience : begun + each.chance;
        return each.chance.count() == 0 || last < each.deadline ? each.deadline : last;
    }
    void end(step_result& each, step_status status, std::string error) {
        each.status = status;
        each.error = std::move(error);
        each.took = std::chrono::milliseconds(milliseconds_since(began_));
        tell(each);
    }
    void tell(const step_result& each) {
        attempt([&] { log_step(log_, each); });
        attempt([&] { options_.progress(each); });
    }

    array<step>& steps_;
    const sequence_options& options_;
    const logger log_{options_.log, "sequence"};
    const ref<step_board> board_ = make_ref<step_board>();
    const time_point end_ = deadline_after(options_.timeout);
    time_point began_;
    bool looks_ = false;  // at the steps and the lifecycle from time to time, as they cannot tell
    bool hurried_ = false;
    cancel_source abort_;
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
    std::chrono::milliseconds before{0};  // until those began that run beside each other
    std::chrono::milliseconds out{0};
    for (const entry& each : steps_) {
        if (!each.parallel) before = out;
        const std::chrono::milliseconds end =
            each.timeout < no_limit - before ? before + each.timeout : no_limit;
        if (end > out) out = end;
    }
    return out;
}

OJS_SHUTDOWN_INLINE std::vector<step_result> shutdown_sequence::run(const sequence_options& options) {
    detail::array<entry> taken;  // what a step, or progress, adds is for the next run
    detail::sequence_run all(taken, options);
    taken.swap(steps_);
    return all.run();
}

}  // namespace v0_1_0
}  // namespace ojs
