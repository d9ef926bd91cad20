// Writes the bodies of HTTP requests, in all variants that backends accept. [WIRE 1]
#pragma once

#include "job_json.ipp"

namespace ojs::detail {

inline std::string json_strings(const std::vector<std::string>& values) {
    std::string out = "[";
    for (const std::string& value : values) {
        if (out.size() > 1) out += ',';
        out += json_quote(value);
    }
    return out + "]";
}

inline std::string fetch_body(const fetch_request& request) {
    const worker_identity& worker = *request.worker;
    return cat({"{\"queues\":", json_strings(worker.queues), ",\"count\":", request.count,
                ",\"worker_id\":", json_quote(worker.worker_id),
                ",\"visibility_timeout_ms\":", worker.visibility_timeout.count(), "}"});
}

inline std::string ack_body(const ack_request& request) {
    std::string out = cat({"{\"job_id\":", json_quote(request.job_id)});
    if (!request.result_json.empty()) append(out, {",\"result\":", request.result_json});
    return out + "}";
}

// By the published schema: a code that it lacks goes into the details, and before the message. [WIRE]
inline job_error schema_error(job_error failure) {
    constexpr std::string_view known =
        "handler_error timeout cancelled invalid_payload invalid_request not_found backend_error "
        "rate_limited "
        "duplicate queue_paused schema_validation unsupported";
    failure.details_json = details_of(failure);
    if (!is_listed(failure.code, known)) {
        const std::string prefix = failure.code + ": ";
        if (!starts_with(failure.message, prefix)) failure.message = prefix + failure.message;
        if (raw_member(failure.details_json, "error_class").empty())
            failure.details_json =
                with_raw_member(failure.details_json, "error_class", json_quote(failure.code));
        failure.code = "handler_error";
    }
    if (failure.message.empty()) failure.message = failure.code;
    return failure;
}

// Not `is_full`: the published schema's members only.
inline std::string fail_body(const fail_request& request, bool is_full, bool with_checkpoint = false) {
    const job_error failure = is_full ? request.error : schema_error(request.error);
    const std::string code = json_quote(failure.code);
    std::string out = cat({"{\"job_id\":", json_quote(request.job_id), ",\"error\":{\"code\":", code});
    if (is_full) append(out, {",\"type\":", code});
    append(out, {",\"message\":", json_quote(failure.message), ",\"retryable\":",
                 failure.retryable ? "true" : "false", ",\"details\":", details_of(failure), "}"});
    if (is_full && request.requeue) append(out, {",\"requeue\":true"});
    if (with_checkpoint) append(out, {",\"meta\":{\"checkpoint\":", request.checkpoint_json, "}"});
    return out + "}";
}

// The members of a worker's identity, without braces.
inline std::string identity_members(const worker_identity& worker) {
    return cat({"\"worker_id\":", json_quote(worker.worker_id), ",\"hostname\":", json_quote(worker.hostname),
                ",\"pid\":", worker.pid, ",\"queues\":", json_strings(worker.queues),
                ",\"concurrency\":", worker.concurrency, ",\"labels\":", json_strings(worker.labels),
                ",\"started_at\":", json_quote(worker.started_at)});
}

// `active_jobs` as a list or a number, because documents disagree; the other members carry both. [WIRE] Not `is_full`: the
// published schema's members only.
inline std::string heartbeat_body(const heartbeat_request& request, bool is_full, bool active_jobs_as_count) {
    const worker_identity& worker = *request.worker;
    const std::string ids = json_strings(request.active_jobs);
    const std::string count = cat({request.active_jobs.size()});
    std::string out = "{";
    if (is_full)
        append(out, {identity_members(worker), ",\"state\":", json_quote(request.state),
                     ",\"active_job_ids\":", ids, ",\"active_job_count\":", count});
    else
        append(out, {"\"worker_id\":", json_quote(worker.worker_id)});
    append(out, {",\"active_jobs\":", is_full && active_jobs_as_count ? count : ids,
                 ",\"visibility_timeout_ms\":", worker.visibility_timeout.count(), "}"});
    return out;
}

}  // namespace ojs::detail
