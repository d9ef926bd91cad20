// HTTP bodies: requests, in full or only with members of the published schemas; responses. [WIRE 1]
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../net/http_message.hpp"
#include "job_json.ipp"

namespace ojs::detail {
inline std::string json_strings(const std::vector<std::string>& values) {
    std::string out = "[";
    for (const std::string& value : values) append(out, {out.size() > 1 ? "," : "", json_quote(value)});
    return out + "]";
}

// A code that the schema lacks goes into the details, and before the message. [WIRE]
inline job_error schema_error(job_error failure) {
    constexpr std::string_view known =
        "handler_error timeout cancelled invalid_payload invalid_request not_found backend_error "
        "rate_limited duplicate queue_paused schema_validation unsupported";
    failure.details_json = details_of(failure);
    if (!is_listed(failure.code, known)) {
        const std::string prefix = failure.code + ": ";
        if (!starts_with(failure.message, prefix)) failure.message = prefix + failure.message;
        std::string& details = failure.details_json;
        if (raw_member(details, "error_class").empty())
            details.insert(details.find('{') + 1,
                           cat({"\"error_class\":", json_quote(failure.code), json_iterator(details, '{') ? "," : ""}));
        failure.code = "handler_error";
    }
    if (failure.message.empty()) failure.message = failure.code;
    return failure;
}

enum class fail_form { full, without_checkpoint, schema };

inline std::string fail_body(const fail_request& request, fail_form form) {
    const bool is_full = form != fail_form::schema;
    const bool has_checkpoint = form == fail_form::full && !request.checkpoint_json.empty();
    const job_error failure = is_full ? request.error : schema_error(request.error);
    const std::string code = json_quote(failure.code);
    return cat({"{\"job_id\":", json_quote(request.job_id), ",\"error\":{\"code\":", code,
                is_full ? cat({",\"type\":", code}) : "", ",\"message\":", json_quote(failure.message),
                ",\"retryable\":", failure.retryable ? "true" : "false", ",\"details\":", details_of(failure), "}",
                is_full && request.requeue ? ",\"requeue\":true" : "",
                has_checkpoint ? cat({",\"meta\":{\"checkpoint\":", request.checkpoint_json, "}"}) : "", "}"});
}

// `active_jobs` is a list or a number, as documents disagree; other members have both. [WIRE]
inline std::string heartbeat_body(const heartbeat_request& request, bool is_full, bool active_jobs_as_count) {
    const worker_identity& worker = *request.worker;
    const std::string ids = json_strings(request.active_jobs);
    const std::string count = cat({request.active_jobs.size()});
    std::string out = cat({"{\"worker_id\":", json_quote(worker.worker_id)});
    if (is_full)
        append(out, {",\"hostname\":", json_quote(worker.hostname), ",\"pid\":", worker.pid,
                     ",\"queues\":", json_strings(worker.queues), ",\"concurrency\":", worker.concurrency,
                     ",\"labels\":", json_strings(worker.labels), ",\"started_at\":", json_quote(worker.started_at),
                     ",\"state\":", json_quote(request.state), ",\"active_job_ids\":", ids,
                     ",\"active_job_count\":", count});
    return cat({out, ",\"active_jobs\":", is_full && active_jobs_as_count ? count : ids,
                ",\"visibility_timeout_ms\":", worker.visibility_timeout.count(), "}"});
}

// Empty: the body is no API error.
inline std::string api_error_code(const http_response& response) {
    std::string code;
    if (!read_json_string(raw_member(raw_member(response.body, "error"), "code"), code)) return {};
    const bool plain = code.size() <= 64 &&
                       all_of(code, [](char c) { return is_alphanumeric(c) || c == '_' || c == '.' || c == '-'; });
    return plain ? code : std::string();
}

inline bool is_success(int status) noexcept { return status >= 200 && status < 300; }
// Any other 4xx may be a proxy's, which knows nothing of the job.
inline bool is_api_error(const http_response& response, std::string_view statuses) {
    return is_listed(std::to_string(response.status), statuses) && !api_error_code(response).empty();
}
inline bool rejects_body(const http_response& response) { return is_api_error(response, "400 422"); }

// Quotes nothing but the error's code: a response may echo the request.
inline error status_error(const std::string& request, const http_response& response) {
    const std::string status = std::to_string(response.status);
    const std::string code = api_error_code(response);
    const bool is_login = is_listed(status, "401 403");
    const bool is_temporary = is_listed(status, "401 408 425 429") || response.status >= 500;
    const bool is_refused = is_listed(status, "400 403 413 422") || (!code.empty() && !is_temporary);
    const char* const fix = is_login ? "; is OJS_AUTH_TOKEN or OJS_AUTH_TOKEN_FILE right?"
                            : response.status == 404 && has_part(request, "/workers/")
                                ? "; is the base path of OJS_URL right?"
                                : "";
    std::uint64_t seconds = 0;  // an hour at most [RFC 9110 10.2.3]
    parse_number(find_header(response.headers, "Retry-After"), 3600, seconds);
    return {response.status < 400 ? errc::bad_response
            : is_refused          ? errc::rejected
                                  : errc::unavailable,
            0, cat({request, " answered ", status, code.empty() ? "" : ": ", code, fix}), response.status,
            std::chrono::seconds(seconds)};
}

inline constexpr std::size_t max_surplus_jobs = 1000;  // beyond those requested, because each takes memory

inline constexpr const char* no_jobs = "the response has no array `jobs`, or more than one";
inline error refused_response(std::string_view why) {
    return {errc::bad_response, 0, cat({why, "; jobs it may have claimed come back after their visibility timeout"})};
}

// An invalid job costs no other. errc::bad_response: the body is cut off, or has not exactly one `jobs`.
inline result<std::vector<job>> read_jobs(std::string_view body, std::size_t requested = 1) {
    std::vector<job> jobs;
    jobs.reserve(min<std::size_t>(requested, 64));
    int lists = 0;
    json_iterator at(body, '{');
    for (; at; ++at) {
        if (!json_key_is(at->key, "jobs")) continue;
        ++lists;
        if (at->value.text() == "null") continue;  // an empty list in Go
        json_iterator entry(at->value.text(), '[');
        for (; entry; ++entry) {
            if (jobs.size() >= requested + max_surplus_jobs)
                return refused_response(
                    cat({"the response has more than ", jobs.size(), " jobs; ", requested, " were requested"}));
            jobs.push_back(read_job(entry->value.text()));
            job& read = jobs.back();
            if (is_utf8(read.id) && !read.id.empty()) continue;
            read.id.clear();  // so it cannot be reported
            read.malformed =
                cat({"the id is not a string in UTF-8: ", printable(raw_member(read.envelope_json, "id"))});
        }
        if (!entry.is_complete()) return refused_response(no_jobs);
    }
    if (!at.is_complete()) return refused_response("the response is not a complete JSON object");
    if (lists != 1) return refused_response(no_jobs);
    return jobs;
}

inline heartbeat_response read_heartbeat(std::string_view body, const std::vector<std::string>& own_ids) {
    heartbeat_response out;
    for (const char* key : {"state", "directive"}) {
        std::string text;
        read_json_string(raw_member(body, key), text);
        if (text == "quiet" && out.directive == directive::none) out.directive = directive::quiet;
        if (text == "terminate") out.directive = directive::terminate;
    }
    // `quiet` with `queues` is ignored: the backend returns none of their jobs.
    if (out.directive == directive::quiet && json_iterator(raw_member(body, "queues"), '['))
        out.directive = directive::none;
    // Only the worker's own jobs, each once: the list may be long.
    std::string id;
    for (json_iterator at(raw_member(body, "jobs_extended"), '['); at; ++at) {
        const bool is_own = read_json_string(at->value.text(), id) && contains(own_ids, id);
        if (is_own && !contains(out.jobs_extended, id)) out.jobs_extended.push_back(id);
    }
    return out;
}

// `body`: a job, or an object with a member `job`. [WIRE 7]
inline result<bool> is_claim_ours(std::string_view body, const job_request& query) {
    const std::string_view nested = raw_member(body, "job");
    const json_view job(nested.empty() ? body : nested);
    const std::string state = job.member("state").string().value_or("");
    if (is_listed(state, "completed cancelled discarded")) return false;
    const std::string owner = job.member("worker_id").string().value_or("");
    std::int64_t attempt = 0;
    read_if_integer(job.member("attempt").text(), attempt);
    const bool knows_attempt = attempt != 0 && query.attempt != 0;
    if (state == "active" && !owner.empty() && owner != query.worker->worker_id) return false;
    if (knows_attempt && attempt != query.attempt) return false;
    if (state == "active" && (!owner.empty() || knows_attempt)) return true;
    return error{errc::unsupported, 0,
                 cat({"its state \"", printable(state), "\", worker_id and attempt do not name the job's worker"})};
}
}  // namespace ojs::detail
