// job_report: from the outcome of a handler, or of a stop, to the ACK or FAIL of its job.
#pragma once

#include "worker_state.ipp"

namespace ojs::detail {

inline job_report completed(std::string result_json) {
    job_report out;
    out.ack = true;
    out.result_json = std::move(result_json);
    return out;
}

inline job_report make_fail(job_status status, log_level level, job_error failure, bool requeue = false) {
    job_report out;
    out.failure = std::move(failure);
    out.requeue = requeue;
    out.status = status;
    out.level = level;
    return out;
}

inline job_report failed(job_error failure) {
    const log_level level = failure.retryable ? log_level::warn : log_level::error;  // [LOG 6.1]
    return make_fail(job_status::failed, level, std::move(failure));
}

// For a job that the stop finds without a run.
inline job_report unstarted(const worker_state& worker) {
    return make_fail(
        job_status::requeued, log_level::info,
        {worker.options.dialect.interrupted_error, "the worker is shutting down; the job was not started",
         true, "{\"reason\":\"not_started\"}"},
        true);
}

// Handed back, because another worker may have a handler (in a rollout), or may read what is malformed here. [WIRE 5, 7]
inline job_report unstartable(const worker_state& worker, const active_job& job) {
    if (!job.job.malformed.empty())
        return make_fail(job_status::requeued, log_level::debug,
                         {"invalid_payload", job.job.malformed, true, "{}"}, true);
    const unknown_type_action action = worker.options.on_unknown_type;
    job_error failure = {"unsupported",
                         cat({"no handler is registered for job type '", printable(job.job.type), "'"}),
                         action != unknown_type_action::discard, "{}"};
    if (action != unknown_type_action::requeue) return failed(std::move(failure));
    return make_fail(job_status::requeued, log_level::debug, std::move(failure), true);
}

// For a job that the stop interrupts. [GS-005, GS 7.2]
inline job_report interrupted(const worker_state& worker, const active_job& job, cancel_reason reason,
                              std::string_view message) {
    const cause started = worker.phases.own.state().cause;
    const ojs::dialect& dialect = worker.options.dialect;
    const std::chrono::milliseconds grace = worker.options.times.shutdown_grace_period;
    const bool long_running = job.handler && job.handler->options.long_running;
    const std::string& code = long_running ? dialect.long_running_error : dialect.interrupted_error;
    const int signal = started.kind == cause_kind::signal ? started.signal : 0;
    if (message.empty()) message = "the worker is shutting down; the job was interrupted";
    const std::string details =
        cat({"{\"reason\":\"", to_string(reason), "\",\"elapsed_ms\":", milliseconds_since(job.since),
             ",\"grace_period_ms\":", grace == no_limit ? "null" : std::to_string(grace.count()),
             ",\"signal\":", signal != 0 ? cat({"\"", signal_name(signal), "\""}) : "null", "}"});
    job_report out =
        make_fail(job_status::interrupted, log_level::info, {code, cat({code, ": ", message}), true, details},
                  dialect.requeue_interrupted || reason == cancel_reason::spot_reclaim);
    out.reason = reason;
    out.signal = signal;
    return out;
}

// For a job that exceeded its own timeout: a failure, which uses up an attempt. [WIRE 1]
inline job_report timed_out(const active_job& job, std::string_view message) {
    const long long limit = job.job.timeout.count();
    return failed({"timeout",
                   cat({"the job took longer than its timeout of ", limit, " ms", message.empty() ? "" : ": ",
                        message}),
                   true,
                   cat({"{\"reason\":\"timeout\",\"elapsed_ms\":", milliseconds_since(job.since),
                        ",\"timeout_ms\":", limit, "}"})});
}

// For a job that its backend has cancelled: it must not be retried.
inline job_report revoked(const active_job& job, std::string_view message) {
    job_report out =
        failed({"cancelled", cat({"the job was cancelled", message.empty() ? "" : ": ", message}), false,
                cat({"{\"reason\":\"revoked\",\"elapsed_ms\":", milliseconds_since(job.since), "}"})});
    out.level = log_level::info;
    return out;
}

// For a job that returned because it was cancelled.
inline job_report cut_short(const worker_state& worker, const active_job& job, cancel_reason reason,
                            std::string_view message) {
    if (reason == cancel_reason::timeout) return timed_out(job, message);
    if (reason == cancel_reason::revoked && !worker.was_claimed_again(job)) return revoked(job, message);
    return interrupted(worker, job, reason, message);
}

// The protocol requires JSON; anything else is sent as a JSON string.
inline std::string to_result_json(const worker_state& worker, const active_job& job,
                                  const std::string& text) {
    if (text.empty() || check_json(text, true)) return repair_utf8(text);
    worker.log.write(log_level::warn, "the handler's result is not JSON and is sent as a string",
                     {field("job_id", job.job.id), field("job_type", job.job.type)});
    return json_quote(text);
}

// A handler that saw its cancellation and returns nothing is interrupted, not completed.
inline job_report returned(const worker_state& worker, const active_job& job, const outcome& got) {
    const cancel_token token = job.cancel.token();
    const bool saw_cancel = token.seen();
    switch (got.kind()) {
        case outcome_kind::implicit:
            if (saw_cancel) return cut_short(worker, job, token.reason(), "");
            return completed("");
        case outcome_kind::interrupted:
            return cut_short(worker, job, saw_cancel ? token.reason() : cancel_reason::cancelled, got.text());
        case outcome_kind::retry: return failed({"handler_error", got.text(), true, "{}"});
        case outcome_kind::discard: return failed({"handler_error", got.text(), false, "{}"});
        case outcome_kind::done: break;
    }
    return completed(to_result_json(worker, job, got.text()));
}

// Throwing is also a way to return on cancellation.
inline job_report thrown(const worker_state& worker, const active_job& job, std::string message) {
    const cancel_token token = job.cancel.token();
    if (token.seen()) return cut_short(worker, job, token.reason(), message);
    return failed({"handler_error", std::move(message), true, "{}"});
}

}  // namespace ojs::detail
