// job_report: from the outcome of a handler, or of a stop, to the ACK or FAIL of its job.
#pragma once

#include "worker_state.ipp"

namespace ojs::detail {
inline job_report completed(std::string result_json) { return {true, std::move(result_json), {}, {}}; }

inline job_report make_fail(job_status status, log_level level, job_error failure, bool requeue = false) {
    return {false, {}, std::move(failure), {}, requeue, status, level};
}

inline job_report failed(job_error failure) {
    const log_level level = failure.retryable ? log_level::warn : log_level::error;  // [LOG 6.1]
    return make_fail(job_status::failed, level, std::move(failure));
}

inline job_report unstarted(const worker_state& worker) {
    return make_fail(job_status::requeued, log_level::info,
                     {worker.options.profile.interrupted_error, "the worker is shutting down; the job was not started",
                      true, "{\"reason\":\"not_started\"}"},
                     true);
}

// Requeued: in a rollout another worker may have a handler, or read what is malformed here. [WIRE 5, 7]
inline job_report unstartable(const worker_state& worker, const active_job& job) {
    const bool is_malformed = !job.job.malformed.empty();
    const unknown_type_action action =
        is_malformed || job.handler ? unknown_type_action::requeue : worker.options.on_unknown_type;
    const char* const code = job.handler ? "rate_limited" : "unsupported";
    job_error failure = {is_malformed ? "invalid_payload" : code,
                         is_malformed
                             ? job.job.malformed
                             : cat({job.handler ? "max_concurrency or max_jobs is reached" : "no handler is registered",
                                    " for job type '", printable(job.job.type), "'"}),
                         action != unknown_type_action::discard, "{}"};
    if (action != unknown_type_action::requeue) return failed(std::move(failure));
    return make_fail(job_status::requeued, log_level::debug, std::move(failure), true);
}

// [GS-005, GS 7.2]
inline job_report interrupted(const worker_state& worker, const active_job& job, cancel_reason reason,
                              std::string_view message) {
    const cause started = worker.phases.own.state().cause;
    const ojs::profile& profile = worker.options.profile;
    const milliseconds grace = worker.options.times.shutdown_grace_period;
    const bool reports_shutdown_timeout = job.handler && job.handler->options.reports_shutdown_timeout;
    const std::string& code = reports_shutdown_timeout ? profile.shutdown_timeout_error : profile.interrupted_error;
    if (message.empty()) message = "the worker is shutting down; the job was interrupted";
    const std::string details =
        cat({"{\"reason\":\"", to_string(reason), "\",\"elapsed_ms\":", milliseconds_since(job.since),
             ",\"grace_period_ms\":", grace == no_limit ? "null" : std::to_string(grace.count()),
             ",\"signal\":", started.signal != 0 ? cat({"\"", signal_name(started.signal), "\""}) : "null", "}"});
    job_report out =
        make_fail(job_status::interrupted, log_level::info, {code, cat({code, ": ", message}), true, details},
                  profile.requeue_interrupted || reason == cancel_reason::spot_reclaim);
    out.reason = reason;
    out.signal = started.signal;
    return out;
}

// For a job that was cancelled: by its own timeout, which uses up an attempt [WIRE 1]; by its backend, which must not
// retry it; or by a stop.
inline job_report cut_short(const worker_state& worker, const active_job& job, cancel_reason reason,
                            std::string_view message) {
    const bool is_revoked = reason == cancel_reason::revoked && worker.locked([&] { return job.claims == 0; });
    if (reason != cancel_reason::timeout && !is_revoked) return interrupted(worker, job, reason, message);
    const long long limit = job.job.timeout.count();
    const std::string problem =
        is_revoked ? "the job was cancelled" : cat({"the job took longer than its timeout of ", limit, " ms"});
    const std::string more = is_revoked ? "" : cat({",\"timeout_ms\":", limit});
    job_report out = failed(
        {is_revoked ? "cancelled" : "timeout", cat({problem, message.empty() ? "" : ": ", message}), !is_revoked,
         cat({"{\"reason\":\"", to_string(reason), "\",\"elapsed_ms\":", milliseconds_since(job.since), more, "}"})});
    if (is_revoked) out.level = log_level::info;
    return out;
}

// A handler that returns nothing after it saw its cancellation is interrupted, not completed.
inline job_report returned(const worker_state& worker, const active_job& job, outcome got) {
    const cancel_token token = job.cancel.token();
    const bool saw_cancel = token.seen();
    switch (got.kind) {
        case outcome_kind::implicit: return saw_cancel ? cut_short(worker, job, token.reason(), "") : completed("");
        case outcome_kind::interrupted:
            return cut_short(worker, job, saw_cancel ? token.reason() : cancel_reason::cancelled, got.text);
        case outcome_kind::retry: return failed({"handler_error", std::move(got.text), true, "{}"});
        case outcome_kind::discard: return failed({"handler_error", std::move(got.text), false, "{}"});
        case outcome_kind::done: break;
    }
    // The protocol requires JSON; anything else is sent as a JSON string.
    if (got.text.empty() || check_json(got.text, true)) return completed(repair_utf8(got.text));
    worker.log.write(log_level::warn, "the handler's result is not JSON and is sent as a string",
                     {field("job_id", job.job.id), field("job_type", job.job.type)});
    return completed(json_quote(got.text));
}

// Throwing is also a way to return on cancellation.
inline job_report thrown(const worker_state& worker, const active_job& job, std::string message) {
    const cancel_token token = job.cancel.token();
    if (token.seen()) return cut_short(worker, job, token.reason(), message);
    return failed({"handler_error", std::move(message), true, "{}"});
}
}  // namespace ojs::detail
