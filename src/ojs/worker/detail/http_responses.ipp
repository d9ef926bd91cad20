// Reads the backend's HTTP responses. [WIRE 1]
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../net/http_message.hpp"
#include "job_json.ipp"

namespace ojs::detail {

// error.code of an API error; empty if the body is none.
inline std::string api_error_code(const http_response& response) {
    std::string code;
    if (!read_json_string(raw_member(raw_member(response.body, "error"), "code"), code)) return {};
    const bool plain = code.size() <= 64 &&
                       all_of(code, [](char c) { return is_alphanumeric(c) || c == '_' || c == '.' || c == '-'; });
    return plain ? code : std::string();
}

inline bool is_success(int status) noexcept { return status >= 200 && status < 300; }
// Whether the API itself responds with one of these. Any other 4xx may be a proxy's, which knows nothing of the job.
inline bool is_api_error(const http_response& response, std::string_view statuses) {
    return is_listed(std::to_string(response.status), statuses) && !api_error_code(response).empty();
}
inline bool rejects_body(const http_response& response) { return is_api_error(response, "400 422"); }
inline bool ends_claim(const http_response& response) { return is_api_error(response, "404 409 410"); }

// For a status other than 2xx. Quotes nothing but the error's code: a response may echo the request.
inline error status_error(const std::string& request, const http_response& response) {
    const std::string status = std::to_string(response.status);
    const std::string code = api_error_code(response);
    const bool is_login = is_listed(status, "401 403");  // retried, as credentials may be fixed meanwhile
    const bool is_temporary = is_login || is_listed(status, "408 425 429") || response.status >= 500;
    const char* const fix = is_login ? "; is OJS_AUTH_TOKEN right?"
                            : response.status == 404 && has_part(request, "/workers/")
                                ? "; is the base path of OJS_URL right?"
                                : "";
    std::uint64_t seconds = 0;  // an hour at most [RFC 9110 10.2.3]
    parse_number(find_header(response.headers, "Retry-After"), 3600, seconds);
    return {response.status < 400          ? errc::bad_response
            : is_temporary || code.empty() ? errc::unavailable
                                           : errc::rejected,
            0, cat({request, " answered ", status, code.empty() ? "" : ": ", code, fix}), response.status,
            std::chrono::seconds(seconds)};
}

// A job with an unusable id gets an empty one, and cannot be reported.
inline job read_claimed_job(std::string_view source) {
    job out = read_job(source);
    if (is_utf8(out.id) && !out.id.empty()) return out;
    out.id.clear();
    out.malformed = cat({"the id is not a string in UTF-8: ", printable(raw_member(source, "id"))});
    return out;
}

// A response may have this many jobs more than requested; a larger one is refused, because each takes memory.
inline constexpr std::size_t max_surplus_jobs = 1000;

inline error refused_response(std::string_view why) {
    return {errc::bad_response, 0, cat({why, "; jobs it may have claimed come back after their visibility timeout"})};
}

// Reads each job by itself: an invalid one must not cost the others, which are claimed too. errc::bad_response if the
// body is truncated, as part of a job might look like a job, or has not exactly one `jobs`.
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
            jobs.push_back(read_claimed_job(entry->value.text()));
        }
        if (!entry.is_complete()) return refused_response("`jobs` of the response is no array");
    }
    if (!at.is_complete()) return refused_response("the response is not a complete JSON object");
    if (lists != 1) return refused_response("the response does not have one array `jobs`");
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
    // One that names queues is not for the worker: the backend hands out none of their jobs.
    if (out.directive == directive::quiet && json_iterator(raw_member(body, "queues"), '['))
        out.directive = directive::none;
    // Of the worker's own jobs, each once: the list may be long.
    std::string id;
    for (json_iterator at(raw_member(body, "jobs_extended"), '['); at; ++at) {
        const bool is_own = read_json_string(at->value.text(), id) && contains(own_ids, id);
        if (is_own && !contains(out.jobs_extended, id)) out.jobs_extended.push_back(id);
    }
    return out;
}

// A member of the job in the body, which has it in a member `job` or is the job.
inline std::string_view job_member(std::string_view body, std::string_view name) {
    const std::string_view nested = raw_member(body, "job");
    return raw_member(nested.empty() ? body : nested, name);
}
inline std::string job_text(std::string_view body, std::string_view name) {
    std::string out;
    read_json_string(job_member(body, name), out);
    return out;
}

// Reads the response to INFO: whether the claim of that worker, and of that attempt, holds. [WIRE 7]
inline result<bool> read_claim(std::string_view body, const job_request& query) {
    const std::string state = job_text(body, "state");
    if (is_listed(state, "completed cancelled discarded")) return false;
    const std::string owner = job_text(body, "worker_id");
    std::int64_t attempt = 0;
    read_if_integer(job_member(body, "attempt"), attempt);
    const bool knows_attempt = attempt != 0 && query.attempt != 0;
    if (state == "active" && !owner.empty() && owner != query.worker->worker_id) return false;
    if (knows_attempt && attempt != query.attempt) return false;
    if (state == "active" && (!owner.empty() || knows_attempt)) return true;
    return error{errc::unsupported, 0, "the response does not say whose the job is"};
}

}  // namespace ojs::detail
