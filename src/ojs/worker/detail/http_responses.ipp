// Reads the backend's HTTP responses. [WIRE 1]
#pragma once

#include <time.h>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../net/http_message.hpp"
#include "job_json.ipp"

namespace ojs::detail {

// Seconds since 1970 of a date in any form of HTTP; `otherwise` if it is none. [RFC 9110 5.6.7]
inline std::int64_t read_http_date(std::string_view text, std::int64_t otherwise) {
    const std::string date(text);
    const c_locale_scope english;
    for (const char* format :
         {"%a, %d %b %Y %H:%M:%S GMT", "%a, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"}) {
        tm utc{};
        const char* const end = ::strptime(date.c_str(), format, &utc);
        if (end != nullptr && *end == '\0') return ::timegm(&utc);
    }
    return otherwise;
}

// Retry-After: seconds, or a date, which counts from the response's own; more than an hour is ignored. [RFC 9110 10.2.3]
inline std::chrono::milliseconds retry_after(const http_response& response) {
    const std::string_view text = find_header(response.headers, "Retry-After");
    std::uint64_t seconds = 0;
    if (parse_number(text, 3600, seconds)) return std::chrono::seconds(seconds);
    const std::int64_t sent = read_http_date(find_header(response.headers, "Date"), wall_clock_ms() / 1000);
    const std::int64_t due = read_http_date(text, sent);
    return std::chrono::seconds(due > sent && due - sent <= 3600 ? due - sent : 0);
}

// error.code of an API error; empty if the body is none.
inline std::string api_error_code(const http_response& response) {
    std::string code;
    if (!read_json_string(raw_member(raw_member(response.body, "error"), "code"), code)) return {};
    const bool plain = code.size() <= 64 && all_of(code, [](char c) {
                           return is_alphanumeric(c) || c == '_' || c == '.' || c == '-';
                       });
    return plain ? code : std::string();
}

inline bool is_success(int status) noexcept {
    return status >= 200 && status < 300;
}
// Whether the API itself responds with this status. Any other 4xx may be a proxy's, which knows nothing of the job.
inline bool is_api_error(const http_response& response, int status) {
    return response.status == status && !api_error_code(response).empty();
}
inline bool rejects_body(const http_response& response) {
    return is_api_error(response, 400) || is_api_error(response, 422);
}
inline bool ends_claim(const http_response& response) {
    return is_api_error(response, 404) || is_api_error(response, 409) || is_api_error(response, 410);
}

// For a status other than 2xx. 401 and 403 are retried, because credentials may be fixed while the worker runs.
inline errc errc_of(const http_response& response) {
    const int status = response.status;
    for (const int retryable : {401, 403, 408, 425, 429}) {
        if (status == retryable) return errc::unavailable;
    }
    if (status < 400) return errc::bad_response;
    return is_api_error(response, status) && status < 500 ? errc::rejected : errc::unavailable;
}

inline constexpr std::size_t max_quote_length = 120;  // bytes

// The backend's own words: "code: message" of an API error, or a short body.
inline std::string quote(const http_response& response) {
    const std::string code = api_error_code(response);
    std::string message;
    if (!code.empty()) read_json_string(raw_member(raw_member(response.body, "error"), "message"), message);
    const std::string words = !message.empty() ? cat({code, ": ", message})
                              : code.empty()   ? response.body
                                               : code;
    // Not truncated: the logger could not mask half a token.
    return words.size() <= max_quote_length ? printable(words) : code;
}

// A request, for an error's text.
struct request_name {
    std::string text;        // as of http_client::describe()
    bool has_token = false;  // sent with it
};

// What an operator can do about a status; empty: unknown.
inline const char* fix_of(const request_name& request, int status) noexcept {
    if (status == 401 || status == 403)
        return request.has_token ? "; the token that was sent was refused: is OJS_AUTH_TOKEN right?"
                                 : "; set OJS_AUTH_TOKEN to a token that the backend accepts";
    const bool is_worker_call = request.text.find("/workers/") != std::string::npos;
    return is_worker_call && status == 404 ? "; is the base path of OJS_URL right?" : "";
}

// `may_quote`: the text, and so the log, may quote the response. It may echo the request, which for ACK and FAIL holds
// job data, and for 401 and 403 the token.
inline error status_error(const request_name& request, const http_response& response,
                          bool may_quote = false) {
    // A redirection names its target, without a query, which may hold a secret.
    std::string_view location = find_header(response.headers, "Location");
    location = location.substr(0, location.find_first_of("?#%&\\"));
    const bool redirects =
        response.status / 100 == 3 && !location.empty() && location.size() <= max_quote_length;
    const std::string target = redirects ? cat({" to ", printable(location)}) : "";
    const bool quotes = may_quote && response.status != 401 && response.status != 403;
    const std::string reason = quotes ? quote(response) : api_error_code(response);
    return {errc_of(response), 0,
            cat({request.text, " answered ", response.status, target, reason.empty() ? "" : ": ", reason,
                 fix_of(request, response.status)}),
            response.status, retry_after(response)};
}

// A job with an unusable id gets an empty one, and cannot be reported.
inline job read_claimed_job(std::string_view source) {
    job out = read_job(source);
    if (is_utf8(out.id) && !out.id.empty()) return out;
    const std::string_view id = raw_member(source, "id");
    out.id.clear();
    out.malformed = id.empty()     ? "the job has no id"
                    : id == "\"\"" ? "the id is empty"
                                   : cat({"the id is not a string in UTF-8: ", printable(id)});
    return out;
}

// A response may have this many jobs more than requested; a larger one is refused, because each takes memory.
inline constexpr std::size_t max_surplus_jobs = 1000;

inline error refused_response(std::string_view why) {
    return {errc::bad_response, 0,
            cat({why, "; jobs it may have claimed come back after their visibility timeout"})};
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
                return refused_response(cat(
                    {"the response has more than ", jobs.size(), " jobs; ", requested, " were requested"}));
            jobs.push_back(read_claimed_job(entry->value.text()));
        }
        if (!entry.is_complete()) return refused_response("`jobs` of the response is no array");
    }
    if (!at.is_complete()) return refused_response("the response is not a complete JSON object");
    if (lists != 1) return refused_response("the response does not have one array `jobs`");
    return jobs;
}

// The jobs of a response of which only the beginning is there: the complete ones, and the id of the one that is cut off.
// `too_large`: the beginning is as long as a response may be, so a job that is the first and cut off fits in none.
inline std::vector<job> read_cut_jobs(std::string_view body, bool too_large) {
    json_iterator list(body, '{');
    while (list && !json_key_is(list->key, "jobs")) ++list;
    std::vector<job> jobs;
    for (json_iterator entry(list->value.text(), '['); entry; ++entry) {
        const std::string_view source = entry->value.text();
        const bool is_first = jobs.empty();
        const bool is_last = source.data() + source.size() == body.data() + body.size();
        if (!is_last || is_json_object(source)) {
            jobs.push_back(read_claimed_job(source));
            continue;
        }
        job cut;
        read_json_string(raw_member(source, "id"), cut.id);
        read_json_string(raw_member(source, "type"), cut.type);
        if (cut.id.empty() || !is_utf8(cut.id) || (is_first && !too_large)) continue;
        cut.extent = is_first ? job_extent::too_large : job_extent::cut_off;
        cut.malformed = is_first ? "the job is larger than the limit of a response"
                                 : "the response was cut off within the job";
        jobs.push_back(std::move(cut));
    }
    return jobs;
}

inline directive read_directive(std::string_view body) {
    directive found = directive::none;
    for (const char* key : {"state", "directive"}) {
        std::string text;
        read_json_string(raw_member(body, key), text);
        if (text == "terminate") return directive::terminate;
        if (text == "quiet") found = directive::quiet;
    }
    return found;
}

template <class Take>
void for_each_string(std::string_view list, Take take) {
    std::string text;
    for (json_iterator at(list, '['); at; ++at) {
        if (read_json_string(at->value.text(), text)) take(text);
    }
}

inline result<heartbeat_response> read_heartbeat(std::string_view body,
                                                 const std::vector<std::string>& own_ids = {}) {
    const result<void> valid = check_json(body);
    if (!valid) return valid.error();
    heartbeat_response out;
    out.directive = read_directive(body);
    // One that names queues is not for the worker: the backend hands out none of their jobs.
    if (out.directive == directive::quiet && json_iterator(raw_member(body, "queues"), '['))
        out.directive = directive::none;
    // Of the worker's own jobs, each once: the list may be long.
    for_each_string(raw_member(body, "jobs_extended"), [&](const std::string& id) {
        if (contains(own_ids, id) && !contains(out.jobs_extended, id)) out.jobs_extended.push_back(id);
    });
    return out;
}

// The job in the body, which has it in a member `job` or is the job.
inline std::string_view job_object(std::string_view body) {
    const std::string_view nested = raw_member(body, "job");
    return nested.empty() ? body : nested;
}
// A text of the job in the body. Empty: none.
inline std::string job_text(std::string_view body, std::string_view name) {
    std::string out;
    read_json_string(raw_member(job_object(body), name), out);
    return out;
}

// Reads the response to INFO: whether the claim of that worker, and of that attempt, holds. [WIRE 7]
inline result<bool> read_claim(std::string_view body, const claim_query& query) {
    const std::string state = job_text(body, "state");
    if (is_listed(state, "completed cancelled discarded")) return false;
    const std::string owner = job_text(body, "worker_id");
    std::int64_t attempt = 0;
    read_if_integer(raw_member(job_object(body), "attempt"), attempt);
    const bool knows_attempt = attempt != 0 && query.attempt != 0;
    if (state == "active" && !owner.empty() && owner != query.worker->worker_id) return false;
    if (knows_attempt && attempt != query.attempt) return false;
    if (state == "active" && (!owner.empty() || knows_attempt)) return true;
    return error{errc::unsupported, 0, "the response does not say whose the job is"};
}

// `describe` names the request, for an error only: most have none.
template <class Describe>
result<settle_result> read_settlement(const Describe& describe, const result<http_response>& response) {
    if (!response) return response.error();
    if (is_success(response->status)) return settle_result::accepted;
    if (ends_claim(*response)) return settle_result::gone;
    error why = status_error(describe(), *response);
    const bool is_bad_request = response->status == 400 || response->status == 422;
    if (is_bad_request && !rejects_body(*response)) why.code = errc::bad_response;
    return why;
}

// The response to FAIL may have the job's new state.
template <class Describe>
result<settle_result> read_fail(const Describe& describe, const result<http_response>& response) {
    result<settle_result> out = read_settlement(describe, response);
    if (!out || *out != settle_result::accepted) return out;
    const std::string state = job_text(response->body, "state");
    if (is_listed(state, "retryable available scheduled")) return settle_result::will_retry;
    return is_listed(state, "discarded cancelled") ? settle_result::discarded : settle_result::accepted;
}

}  // namespace ojs::detail
