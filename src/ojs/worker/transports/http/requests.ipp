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

// Without the closing brace. `code_members` are the error's first members.
inline std::string begin_fail(const std::string& job_id, std::string_view code_members,
                              const job_error& failure, std::string_view details) {
    return cat({"{\"job_id\":", json_quote(job_id), ",\"error\":{", code_members,
                ",\"message\":", json_quote(failure.message),
                ",\"retryable\":", failure.retryable ? "true" : "false", ",\"details\":", details, "}"});
}

inline std::string fail_body(const fail_request& request, bool with_checkpoint) {
    const job_error& failure = request.error;
    const std::string code = json_quote(failure.code);
    std::string out = begin_fail(request.job_id, cat({"\"code\":", code, ",\"type\":", code}), failure,
                                 details_of(failure));
    if (request.requeue) append(out, {",\"requeue\":true"});
    if (with_checkpoint) append(out, {",\"meta\":{\"checkpoint\":", request.checkpoint_json, "}"});
    return out + "}";
}

inline constexpr std::string_view schema_error_codes[] = {
    "handler_error", "timeout",      "cancelled", "invalid_payload", "invalid_request",   "not_found",
    "backend_error", "rate_limited", "duplicate", "queue_paused",    "schema_validation", "unsupported"};

// Adds a first member `error_class`, unless there is one.
inline std::string with_error_class(const std::string& details, const std::string& error_class) {
    if (!raw_member(details, "error_class").empty()) return details;
    const json_view given(details);
    const bool has_members = given.begin() != given.end();
    return cat({"{\"error_class\":", json_quote(error_class), has_members ? "," : "",
                std::string_view(details).substr(details.find('{') + 1)});
}

// By the published schema: a code that it lacks goes into the details, and before the message. [WIRE]
inline std::string schema_fail_body(const fail_request& request) {
    job_error failure = request.error;
    std::string details = details_of(failure);
    bool known = false;
    for (const std::string_view code : schema_error_codes) known = known || failure.code == code;
    if (!known) {
        const std::string prefix = failure.code + ": ";
        if (failure.message.compare(0, prefix.size(), prefix) != 0)
            failure.message = prefix + failure.message;
        details = with_error_class(details, failure.code);
        failure.code = "handler_error";
    }
    if (failure.message.empty()) failure.message = failure.code;
    return begin_fail(request.job_id, cat({"\"code\":", json_quote(failure.code)}), failure, details) + "}";
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
