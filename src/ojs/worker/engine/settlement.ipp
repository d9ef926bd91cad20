// settle: tells the backend what became of a job, until it answers; and the queue of jobs a stop reports. Who may report
// a job is the first to active_job::take() it.
#pragma once

#include "../../base/detail/array.hpp"
#include "worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What to tell the backend about a job, and which counter that belongs to.
struct verdict {
    bool ack = false;
    std::string result_json;  // ACK
    job_error failure;        // FAIL
    std::string checkpoint;   // FAIL: JSON; empty: none
    bool requeue = false;     // FAIL
    std::atomic<std::uint64_t> worker_context::*counter = &worker_context::completed;
    const char* message = "job completed";
    log_level level = log_level::debug;
    cancel_reason reason = cancel_reason::none;  // of an interruption
    int signal = 0;                              // behind it, if there is one
};

inline verdict completed(std::string result_json) {
    verdict out;
    out.ack = true;
    out.result_json = std::move(result_json);
    return out;
}

inline verdict failed(job_error failure) {
    verdict out;
    out.failure = std::move(failure);
    out.counter = &worker_context::failed;
    out.message = "job failed";
    out.level = out.failure.retryable ? log_level::warn : log_level::error;  // [LOG 6.1]
    return out;
}

// A job that came after the intake was closed, and never started.
inline verdict handed_back(const worker_context& worker) {
    verdict out;
    out.failure = {worker.options.dialect.interrupted_error,
                   "the worker is shutting down; the job was not started", true,
                   "{\"reason\":\"not_started\"}"};
    out.requeue = true;
    out.counter = &worker_context::handed_back;
    out.message = "job handed back";
    out.level = log_level::info;
    return out;
}

// A job the stop interrupted. [GS-005, GS 7.2]
inline verdict interrupted(const worker_context& worker, const active_job& job, cancel_reason why,
                           std::string_view message) {
    const lifecycle_state state = worker.life.state();
    const ojs::dialect& dialect = worker.options.dialect;
    const std::chrono::milliseconds grace = worker.options.shutdown_grace_period;
    const bool long_running = job.handler && job.handler->options.long_running;
    verdict out;
    out.failure.code = long_running ? dialect.long_running_error : dialect.interrupted_error;
    out.failure.message =
        cat({out.failure.code, ": ",
             message.empty() ? "the worker is shutting down; the job was interrupted" : message});
    out.reason = why;
    if (state.cause.kind == cause_kind::signal) out.signal = state.cause.signal;
    out.failure.details_json =
        cat({"{\"reason\":\"", to_string(why), "\",\"elapsed_ms\":", milliseconds_since(job.claimed_at),
             ",\"grace_period_ms\":", grace == no_limit ? "null" : std::to_string(grace.count()),
             ",\"signal\":", out.signal != 0 ? cat({"\"", signal_name(out.signal), "\""}) : "null", "}"});
    out.requeue = dialect.requeue_interrupted || why == cancel_reason::spot_reclaim;
    out.counter = &worker_context::interrupted;
    out.message = "job interrupted";
    out.level = log_level::info;
    return out;
}

// A job that took longer than it says it may. That is its own failure, and uses up an attempt. [WIRE 1]
inline verdict timed_out(const active_job& job, std::string_view message) {
    const long long limit = job.job.timeout.count();
    return failed({"timeout",
                   cat({"the job took longer than its timeout of ", limit, " ms", message.empty() ? "" : ": ",
                        message}),
                   true,
                   cat({"{\"reason\":\"timeout\",\"elapsed_ms\":", milliseconds_since(job.claimed_at),
                        ",\"timeout_ms\":", limit, "}"})});
}

// A job that returned because it was cancelled.
inline verdict cut_short(const worker_context& worker, const active_job& job, cancel_reason why,
                         std::string_view message) {
    return why == cancel_reason::timeout ? timed_out(job, message) : interrupted(worker, job, why, message);
}

// A result must be JSON; anything else a handler returns is sent as a JSON string.
inline std::string as_result_json(const worker_context& worker, const active_job& job,
                                  const std::string& text) {
    if (text.empty() || is_json(text)) return repair_utf8(text);
    worker.log.write(log_level::warn, "the handler's result is not JSON and is sent as a string",
                     {field("job_id", job.job.id), field("job_type", job.job.type)});
    return json_quote(text);
}

// What a handler's answer means. Silence after a cancellation it knew of is an interruption, not success.
inline verdict judge(const worker_context& worker, const active_job& job, const outcome& said) {
    const cancel_token token = job.cancel.token();
    const bool knew = token.seen();
    switch (said.what()) {
        case outcome::kind::unspoken:
            if (knew) return cut_short(worker, job, token.reason(), "");
            return completed("");
        case outcome::kind::interrupted:
            return cut_short(worker, job, knew ? token.reason() : cancel_reason::cancelled, said.text());
        case outcome::kind::retry: return failed({"handler_error", said.text(), true, "{}"});
        case outcome::kind::discard: return failed({"handler_error", said.text(), false, "{}"});
        case outcome::kind::done: break;
    }
    return completed(as_result_json(worker, job, said.text()));
}

// Asks the backend whether a claim whose lease ran out (a frozen process, a long outage) is still ours: by a heartbeat,
// one for all jobs that want to know.
inline result<bool> renew_lease(worker_context& worker, active_job& job, time_point deadline) {
    const time_point asking = steady_clock::now();
    const result<void> asked = worker.beats.answered(deadline);
    if (!asked) return asked.error();
    return job.lease_until() >
           asking;  // an earlier beat's answer, read only now, renews no more than it did then
}

enum class settle_end { accepted, gone, lease_lost, rejected, out_of_time };

// When one try must end: in a stop, half of what is left, so that a lost answer leaves time for another try.
inline time_point try_deadline(const worker_context& worker) {
    const time_point now = steady_clock::now();
    const time_point ordinary = now + worker.options.request_timeout;
    const time_point last = worker.report_deadline();
    if (last == time_point::max()) return ordinary;
    const time_point half = now + (last - now) / 2;
    const time_point least = now + std::chrono::milliseconds(100);
    const time_point soon = half > least ? half : least;
    return soon < ordinary ? soon : ordinary;
}

inline result<settled> send_verdict(worker_context& worker, const active_job& job, const verdict& report) {
    const time_point deadline = try_deadline(worker);
    return worker.call([&](ojs::transport& transport) {
        return report.ack ? transport.ack({job.job.id, report.result_json}, deadline)
                          : transport.fail({job.job.id, report.failure, report.requeue, report.checkpoint,
                                            job.job.id_json},
                                           deadline);
    });
}

// One try. A claim whose lease ran out is not reported unless the backend says that it is still ours.
inline result<settle_end> report_once(worker_context& worker, active_job& job, const verdict& report) {
    if (job.lease_expired(steady_clock::now())) {
        const result<bool> ours = renew_lease(worker, job, try_deadline(worker));
        if (!ours) return ours.error();
        if (!*ours) return settle_end::lease_lost;
        if (steady_clock::now() >= worker.report_deadline()) return settle_end::out_of_time;
    }
    const result<settled> answer = send_verdict(worker, job, report);
    if (!answer) return answer.error();
    return *answer == settled::accepted ? settle_end::accepted : settle_end::gone;
}

// Tells the backend until it answers. ACK and FAIL may be repeated: the second gets 409. [WIRE 2]
inline settle_end report_until_answered(worker_context& worker, active_job& job, verdict& report) {
    backoff pauses(std::chrono::milliseconds(50), std::chrono::milliseconds(2000));
    while (steady_clock::now() < worker.report_deadline()) {
        const result<settle_end> end = report_once(worker, job, report);
        if (end) return *end;
        const error& failure = end.error();
        worker.log.write(log_level::warn, report.ack ? "ACK failed" : "FAIL failed",
                         {field("job_id", job.job.id), field("error", failure.text)});
        if (failure.code == errc::rejected) {
            // Perhaps it was too large. The work is done, or failed, all the same.
            std::string& load = report.ack ? report.result_json : report.checkpoint;
            if (load.empty()) return settle_end::rejected;
            load.clear();
        } else {
            const std::chrono::milliseconds pause = pauses.next();
            worker.pause_before_retry(failure.retry_after > pause ? failure.retry_after : pause);
        }
    }
    return settle_end::out_of_time;
}

// What a record about a job says of it: never its arguments.
inline std::vector<log_field> job_fields(const active_job& job) {
    return {field("job_id", job.job.id), field("job_type", job.job.type), field("queue", job.job.queue),
            field("attempt", job.job.attempt), field("elapsed_ms", milliseconds_since(job.claimed_at))};
}

inline void log_job(const worker_context& worker, const active_job& job, log_level level,
                    std::string_view message, const verdict& report = {}) {
    if (!worker.log.enabled(level)) return;
    std::vector<log_field> fields = job_fields(job);
    // Not the error's text: that may quote arguments.
    if (!report.failure.code.empty()) fields.push_back(field("error_type", report.failure.code));
    if (report.reason != cancel_reason::none) fields.push_back(field("reason", to_string(report.reason)));
    if (report.signal != 0) fields.push_back(field("signal", signal_name(report.signal)));
    worker.log.write({level, std::string(message), std::move(fields), {}});
}

// For /metrics. A job handed back was never worked on, so it has no duration.
inline void note_settled(worker_context& worker, const active_job& job, const verdict& report) {
    if (!worker.metrics || report.counter == &worker_context::handed_back) return;
    const settled_state state = report.ack                 ? settled_state::completed
                                : report.requeue           ? settled_state::available
                                : report.failure.retryable ? settled_state::retryable
                                                           : settled_state::discarded;
    worker.metrics->jobs.settled(job.job.queue, job.handler ? job.handler->type : std::string_view(), state,
                                 steady_clock::now() - job.claimed_at);
}

// Reports a job this caller has taken, counts it, and lets it go. The log comes after: nobody waits for its reader.
inline settle_end conclude(worker_context& worker, active_job& job, verdict& report) {
    const time_point soon = try_deadline(worker);
    const time_point stop_bound = worker.saves_deadline();
    job.saved.close(soon < stop_bound ? soon : stop_bound);
    if (!report.ack) report.checkpoint = job.saved.kept();
    settle_end end = report_until_answered(worker, job, report);
    // Claimed a moment ago: a backend that does not know such an id has not understood it.
    if (end == settle_end::gone && !job.job.id_json.empty()) end = settle_end::rejected;
    if (end == settle_end::accepted) {
        (worker.*report.counter).fetch_add(1, std::memory_order_relaxed);
        note_settled(worker, job, report);
    } else if (end == settle_end::gone || end == settle_end::lease_lost) {
        worker.gone.fetch_add(1, std::memory_order_relaxed);
    } else {
        worker.mark_unreported(job);
    }
    worker.forget(job);
    return end;
}

inline void log_settled(const worker_context& worker, const active_job& job, const verdict& report,
                        settle_end end) {
    switch (end) {
        case settle_end::accepted: return log_job(worker, job, report.level, report.message, report);
        case settle_end::gone:
        case settle_end::lease_lost:
            return log_job(worker, job, log_level::warn, "the job's reservation is gone; settled elsewhere");
        case settle_end::rejected:
        case settle_end::out_of_time:
            return log_job(worker, job, log_level::error, "job could not be reported");
    }
}

// All of it, for a job this caller has taken.
inline void settle(worker_context& worker, active_job& job, verdict report) {
    const settle_end end = conclude(worker, job, report);
    log_settled(worker, job, report, end);
}

// Jobs to be settled beside the threads that run them: many round trips at once, because a stop has little time.
class report_queue {
  public:
    // `settled_one` is called after each.
    report_queue(worker_context& worker, function<void()> settled_one)
        : worker_(worker), settled_one_(std::move(settled_one)) {}

    // A job the caller has taken. True if the caller should start one more thread for work().
    bool add(ref<active_job> job, verdict report) {
        const lock_guard held(mutex_);
        taken_.push_back({std::move(job), std::move(report)});
        work_.notify_one();
        return wants_thread();
    }

    // Jobs to be interrupted, unless their handlers are faster: each is taken when its turn comes. True as above.
    bool interrupt(array<ref<active_job>> jobs, cancel_reason why) {
        const lock_guard held(mutex_);
        open_ = std::move(jobs);
        why_ = why;
        work_.notify_all();
        return wants_thread();
    }

    // What such a thread does until close().
    void work() {
        lock_guard held(mutex_);
        for (;;) {
            ++busy_;
            work_off(held);
            --busy_;
            if (closed_) return;
            work_.wait(held);
        }
    }

    // True if one more thread would have something to do; it counts as started.
    bool wants_more() {
        const lock_guard held(mutex_);
        return wants_thread();
    }
    // The thread could not be started. Where there is no other, the caller does its work.
    void no_thread() {
        lock_guard held(mutex_);
        if (--threads_ == 0) work_off(held);
    }

    void close() {
        const lock_guard held(mutex_);
        closed_ = true;
        work_.notify_all();
    }

  private:
    struct entry {
        ref<active_job> job;
        verdict report;
        settle_end end = settle_end::accepted;
    };
    static constexpr std::size_t most_threads = 128;

    // With the mutex held.
    bool wants_thread() {
        if (threads_ - busy_ >= taken_.size() + open_.size() || threads_ >= most_threads) return false;
        ++threads_;
        return true;
    }

    // Reports all there is, then logs what became of it.
    void work_off(lock_guard& held) {
        array<entry> settled;
        entry next;
        while (take(next, held)) {
            next.end = conclude(worker_, *next.job, next.report);
            settled_one_();
            settled.push_back(std::move(next));
            held.lock();
        }
        if (settled.empty()) return;
        held.unlock();
        for (const entry& each : settled) log_settled(worker_, *each.job, each.report, each.end);
        settled.clear();
        held.lock();
    }

    // The next job to report, taken, with the mutex let go of; false, with the mutex held, when there is none. Their order
    // does not matter: a stop reports all it has at once.
    bool take(entry& next, lock_guard& held) {
        if (!taken_.empty()) {
            next = std::move(taken_.back());
            taken_.pop_back();
            held.unlock();
            return true;
        }
        while (!open_.empty()) {
            next.job = std::move(open_.back());
            open_.pop_back();
            if (!next.job->take(settler::stop)) continue;
            held.unlock();
            // A job that took too long before the stop came: that was its fault.
            const bool late = next.job->cancel.reason() == cancel_reason::timeout;
            next.report = cut_short(worker_, *next.job, late ? cancel_reason::timeout : why_, "");
            return true;
        }
        return false;
    }

    worker_context& worker_;
    const function<void()> settled_one_;
    mutex mutex_;
    condition work_;
    array<entry> taken_;
    array<ref<active_job>> open_;
    cancel_reason why_ = cancel_reason::none;
    std::size_t threads_ = 0;
    std::size_t busy_ = 0;
    bool closed_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
