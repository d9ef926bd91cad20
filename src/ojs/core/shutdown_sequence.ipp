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

// What the steps of a sequence wait for.
struct step_plan {
    array<array<std::size_t>> before;      // of each step: those that end before it starts
    std::chrono::milliseconds timeout{0};  // the longest time that all may take
};

inline error bad_order(std::string text) {
    return {errc::invalid_argument, 0, std::move(text)};
}

inline result<void> add_named(const array<sequence_step>& steps, const sequence_step& step,
                              array<std::size_t>& before) {
    for (const std::string& name : step.after) {
        std::size_t found = 0;
        for (std::size_t i = 0; i < steps.size(); ++i) {
            if (steps[i].name != name) continue;
            before.push_back(i);
            ++found;
        }
        const char* const wrong = found == 0 ? "\", which was not added" : "\", the name of several steps";
        if (found != 1) return bad_order(cat({"step \"", step.name, "\" is after \"", name, wrong}));
    }
    return {};
}

// A step without after() waits for the last one before it that has none either, and for those added since. That one
// has waited for all others.
inline result<void> add_waits(const array<sequence_step>& steps, step_plan& plan) {
    std::size_t last_in_order = 0;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        array<std::size_t>& before = plan.before[i];
        if (steps[i].order == sequence_step::start::after_named) {
            result<void> added = add_named(steps, steps[i], before);
            if (!added) return added;
        } else if (steps[i].order == sequence_step::start::parallel) {
            if (i > 0) before = plan.before[i - 1];
        } else {
            for (std::size_t j = detail::exchange(last_in_order, i); j < i; ++j) before.push_back(j);
        }
    }
    return {};
}

// `ends[i]`: when step i has ended at the latest, or no_end if steps that wait for each other keep it from starting.
using step_ends = array<std::chrono::milliseconds>;
inline constexpr std::chrono::milliseconds no_end{-1};

// The first of them without an end, or the number of steps.
inline std::size_t first_pending(const array<std::size_t>& before, const step_ends& ends) {
    for (const std::size_t i : before) {
        if (ends[i] == no_end) return i;
    }
    return ends.size();
}

inline step_ends latest_ends(const array<sequence_step>& steps, const step_plan& plan) {
    step_ends ends(steps.size());
    for (auto& end : ends) end = no_end;
    for (bool changed = true; detail::exchange(changed, false);) {
        for (std::size_t i = 0; i < steps.size(); ++i) {
            if (ends[i] != no_end || first_pending(plan.before[i], ends) != ends.size()) continue;
            std::chrono::milliseconds start{0};
            for (const std::size_t j : plan.before[i]) start = detail::max(start, ends[j]);
            ends[i] = steps[i].timeout < no_limit - start ? start + steps[i].timeout : no_limit;
            changed = true;
        }
    }
    return ends;
}

// Names the steps of a cycle. `at` is a step without an end: one of the cycle, or one that waits for it.
inline error cycle_error(const array<sequence_step>& steps, const step_plan& plan, const step_ends& ends,
                         std::size_t at) {
    const auto next = [&](std::size_t i) { return first_pending(plan.before[i], ends); };
    for (std::size_t i = 0; i < steps.size(); ++i) at = next(at);  // now it is in the cycle
    std::string text = cat({"steps wait for each other: \"", steps[at].name, "\""});
    std::size_t i = at;
    do {
        i = next(i);
        append(text, {" after \"", steps[i].name, "\""});
    } while (i != at);
    return bad_order(std::move(text));
}

inline result<step_plan> plan_steps(const array<sequence_step>& steps) {
    step_plan plan;
    plan.before = array<array<std::size_t>>(steps.size());
    const result<void> added = add_waits(steps, plan);
    if (!added) return added.error();
    const step_ends ends = latest_ends(steps, plan);
    for (std::size_t i = 0; i < steps.size(); ++i) {
        if (ends[i] == no_end) return cycle_error(steps, plan, ends, i);
        plan.timeout = detail::max(plan.timeout, ends[i]);
    }
    return plan;
}

// The steps that determined the time of all, the last one first: of those that a step in it waited for, the one that
// ended last is next. `ended[i]`: the place of step i among those that have ended.
inline array<std::size_t> critical_path(const array<array<std::size_t>>& before,
                                        const array<std::size_t>& ended) {
    array<std::size_t> path;
    array<std::size_t> candidates;
    for (std::size_t i = 0; i < ended.size(); ++i) candidates.push_back(i);
    while (!candidates.empty()) {
        std::size_t last = candidates[0];
        for (const std::size_t i : candidates) last = ended[i] > ended[last] ? i : last;
        path.push_back(last);
        candidates = before[last];
    }
    return path;
}

struct running_step {
    time_point ready_at = time_point::max();  // when its group starts; max(): not yet
    step_context context;
    detail::thread thread;
    atomic<time_point> started_at{time_point::max()};  // when its thread gets a processor, at the latest
    atomic<step_status> status{step_status::running};
    std::string error;  // once it has returned
};

OJS_SHUTDOWN_INLINE void log_step(const logger& log, const step_result& result) {
    log_record record{
        log_level::debug, "shutdown step started", {field("step", result.name)}, {}, "sequence"};
    if (result.status != step_status::running) {
        const bool done = result.status == step_status::done;
        record.level = done ? log_level::info : log_level::error;
        record.message = done ? "shutdown step finished" : "shutdown step failed";
        record.fields.push_back(field("status", to_string(result.status)));
        record.fields.push_back(field("took_ms", result.took.count()));
    }
    if (!result.error.empty()) record.fields.push_back(field("error", result.error));
    log.write(std::move(record));
}

inline void report_step(const step_result& result, const sequence_options& options, const logger& log) {
    log_step(log, result);
    options.progress(result);
}

// Without an order, no step can run.
inline std::vector<step_result> refuse_steps(const array<sequence_step>& steps, const std::string& why,
                                             const sequence_options& options, const logger& log) {
    std::vector<step_result> out(steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i) {
        out[i].name = steps[i].name;
        out[i].status = step_status::not_started;
        out[i].error = why;
    }
    for (const step_result& result : out) report_step(result, options, log);
    return out;
}

// Shared with the steps' threads, which may outlast run() and then use neither `options` nor `log`. No descriptor:
// a step may close them all.
class sequence_run : public ref_counted {
  public:
    // Takes the steps: those added meanwhile are for the next run.
    sequence_run(array<sequence_step>& steps, step_plan plan, const sequence_options& options,
                 const logger& log)
        : options_(options),
          log_(log),
          plan_(std::move(plan)),
          steps_(steps.size()),
          results_(steps.size()),
          ended_(steps.size()) {
        entries_.swap(steps);
    }

    std::vector<step_result> run() {
        while (ended_count_ < entries_.size()) {
            abort_if_requested();
            start_ready_steps();
            await_steps();
        }
        mark_and_log_critical_path();
        callbacks_.end_by(steady_clock::now() + min_step_time);
        return std::move(results_);
    }

  private:
    void start_ready_steps() {
        const time_point now = steady_clock::now();
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            if (is_ready(i)) start_step(i, now);
        }
    }
    bool is_ready(std::size_t index) const {
        bool ready = steps_[index].ready_at == time_point::max();
        for (const std::size_t i : plan_.before[index]) ready = ready && ended_[i] != 0;
        return ready;
    }
    void start_step(std::size_t index, time_point ready_at) {
        running_step& step = steps_[index];
        step.ready_at = ready_at;
        results_[index].name = std::move(entries_[index].name);
        results_[index].started = std::chrono::duration_cast<std::chrono::milliseconds>(ready_at - began_at_);
        report(results_[index]);
        const time_point now = steady_clock::now();  // later than its group, if a step ran on this thread
        const time_point common = detail::max(deadline_, now + min_step_time);
        step.context = {detail::min(deadline_after(entries_[index].timeout), common), abort_.token()};
        step.started_at = now + start_timeout;
        const auto body = [self = ref<sequence_run>(this), index] { self->run_step(index); };
        result<detail::thread> thread = start_thread("ojs-step", body);
        if (thread) {
            step.thread = std::move(*thread);
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
            step.error = thrown_text();
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

    // Reports the steps that have ended. If none has, waits for a change of those that run.
    void await_steps() {
        const unsigned changes = changes_;
        const std::size_t ended = ended_count_;
        time_point until = steady_clock::now() + poll_interval;
        for (std::size_t i = 0; i < entries_.size(); ++i) {
            const bool is_running = steps_[i].ready_at != time_point::max() && ended_[i] == 0;
            if (is_running && !finish_if_over(i)) until = detail::min(until, deadline_of(i));
        }
        unique_lock held(guard_);
        if (ended_count_ == ended && changes_ == changes) changed_.wait_until(held, until);
    }
    bool finish_if_over(std::size_t index) {
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
        result.took = std::chrono::milliseconds(milliseconds_since(step.ready_at));
        ended_[index] = ++ended_count_;
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
        return detail::thread::start(body, options);
    }
    void report(const step_result& result) { report_step(result, options_, log_); }
    void mark_and_log_critical_path() {
        const array<std::size_t> path = critical_path(plan_.before, ended_);
        for (const std::size_t i : path) results_[i].critical = true;
        if (path.size() == entries_.size()) return;  // one after another: the lines of the steps say all
        std::string text;
        for (std::size_t i = path.size(); i-- > 0;)
            append(text, {text.empty() ? "" : " > ", results_[path[i]].name});
        log_.write(log_level::info, "shutdown steps finished",
                   {field("took_ms", milliseconds_since(began_at_)), field("critical_path", text)});
    }

    const sequence_options& options_;
    const logger& log_;
    const step_plan plan_;
    array<sequence_step> entries_;
    array<running_step> steps_;
    std::vector<step_result> results_;
    array<std::size_t> ended_;  // the place of each step among those that have ended, from 1; 0: it has not
    std::size_t ended_count_ = 0;
    const time_point began_at_ = steady_clock::now();
    time_point deadline_ = deadline_after(options_.timeout);  // of all steps; an abort brings it forward
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
                                                     std::chrono::milliseconds timeout, order start,
                                                     std::vector<std::string> after) {
    if (!call) return false;
    timeout = detail::max(timeout, std::chrono::milliseconds(0));
    steps_.push_back({std::move(name), std::move(call), timeout, start, std::move(after)});
    return true;
}

OJS_SHUTDOWN_INLINE result<void> shutdown_sequence::check() const {
    const result<detail::step_plan> plan = detail::plan_steps(steps_);
    return plan ? result<void>() : plan.error();
}

OJS_SHUTDOWN_INLINE std::chrono::milliseconds shutdown_sequence::timeout() const {
    const result<detail::step_plan> plan = detail::plan_steps(steps_);
    return plan ? plan->timeout : std::chrono::milliseconds(0);
}

OJS_SHUTDOWN_INLINE std::vector<step_result> shutdown_sequence::run(const sequence_options& options) {
    log_options lines = options.log;  // plain, also without a terminal: the program may log no JSON
    if (lines.format == log_format::automatic) lines.format = log_format::text;
    const detail::logger log(std::move(lines), "sequence");
    result<detail::step_plan> plan = detail::plan_steps(steps_);
    if (!plan) return detail::refuse_steps(steps_, plan.error().text, options, log);
    return detail::make_ref<detail::sequence_run>(steps_, std::move(*plan), options, log)->run();
}

}  // namespace v0_1_0
}  // namespace ojs
