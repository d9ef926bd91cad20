#pragma once

#include "../../net/json.ipp"
#include "../dialect.hpp"
#include "http.hpp"

namespace ojs {
inline namespace v1 {
namespace detail {

inline constexpr std::int64_t any_integer = 9007199254740992;  // 2^53: beyond it a double is not exact

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
    return cat("{\"queues\":", json_strings(worker.queues), ",\"count\":", request.count,
               ",\"worker_id\":", json_quote(worker.worker_id),
               ",\"visibility_timeout_ms\":", worker.visibility_timeout.count(), "}");
}

inline std::string ack_body(const ack_request& request) {
    std::string out = cat("{\"job_id\":", json_quote(request.job_id));
    if (!request.result_json.empty()) append(out, cat(",\"result\":", request.result_json));
    return out + "}";
}

inline std::string fail_body(const fail_request& request) {
    const job_error& failure = request.error;
    const std::string code = json_quote(failure.code);
    return cat("{\"job_id\":", json_quote(request.job_id), ",\"error\":{\"code\":", code, ",\"type\":", code,
               ",\"message\":", json_quote(failure.message),
               ",\"retryable\":", failure.retryable ? "true" : "false", ",\"details\":", failure.details_json,
               "}", request.requeue ? ",\"requeue\":true}" : "}");
}

// The members that say who a worker is, without the braces.
inline std::string identity_members(const worker_identity& worker) {
    return cat("\"worker_id\":", json_quote(worker.worker_id), ",\"hostname\":", json_quote(worker.hostname),
               ",\"pid\":", worker.pid, ",\"queues\":", json_strings(worker.queues),
               ",\"concurrency\":", worker.concurrency, ",\"labels\":", json_strings(worker.labels),
               ",\"started_at\":", json_quote(worker.started_at));
}

// Both shapes of the active jobs, since documents disagree on which of the two names is the list. [WIRE]
inline std::string heartbeat_body(const heartbeat_request& request) {
    const std::string ids = json_strings(request.active_jobs);
    return cat("{", identity_members(*request.worker), ",\"state\":", json_quote(request.state),
               ",\"active_jobs\":", ids, ",\"active_job_ids\":", ids,
               ",\"active_job_count\":", request.active_jobs.size(),
               ",\"visibility_timeout_ms\":", request.worker->visibility_timeout.count(), "}");
}

// Retry-After in whole seconds; the date form, and anything over an hour, count as not said.
inline std::chrono::milliseconds retry_after(const http_response& answer) {
    std::uint64_t seconds = 0;
    if (!parse_number(find_header(answer.headers, "Retry-After"), 3600, seconds)) seconds = 0;
    return std::chrono::seconds(seconds);
}

// What a status other than 2xx means to the worker. Credentials may be fixed while it runs, so 401 and 403
// are worth another try.
inline errc status_meaning(int status) noexcept {
    switch (status) {
        case 401:
        case 403:
        case 408:
        case 425:
        case 429: return errc::unavailable;
        default: break;
    }
    if (status >= 500) return errc::unavailable;
    return status >= 400 ? errc::rejected : errc::bad_answer;
}

inline error status_error(std::string_view route, const http_response& answer) {
    return {status_meaning(answer.status), 0,
            cat("POST ", route, " answered ", answer.status, ": ", printable(answer.body, 120)),
            answer.status, retry_after(answer)};
}

inline job read_job(const picojson::value& parsed, std::string_view source) {
    job out;
    json_string(parsed, "id", out.id);
    json_string(parsed, "type", out.type);
    json_string(parsed, "queue", out.queue);
    json_integer(parsed, "attempt", 0, any_integer, out.attempt);
    json_integer(parsed, "max_attempts", 0, any_integer, out.max_attempts);
    std::int64_t number = 0;
    if (json_integer(parsed, "timeout_ms", 0, any_integer, number)) {
        out.timeout = std::chrono::milliseconds(number);
    } else if (json_integer(parsed, "timeout", 0, any_integer / 1000, number)) {
        out.timeout = std::chrono::seconds(number);
    }
    if (json_integer(parsed, "visibility_timeout_ms", 0, any_integer, number)) {
        out.visibility_timeout = std::chrono::milliseconds(number);
    }
    const picojson::value* args = json_member(parsed, "args");
    if (args == nullptr || !args->is<picojson::array>()) out.malformed = "args is not an array";
    if (out.type.empty()) out.malformed = "type is missing or not a string";
    if (out.malformed.empty()) out.args_json = std::string(raw_member(source, "args"));
    const std::string_view meta = raw_member(source, "meta");
    if (!meta.empty() && meta.front() == '{') out.meta_json = std::string(meta);
    out.envelope_json = std::string(source);
    return out;
}

// A job that is not valid JSON, or not JSON we can hold (1e999): its id is enough to FAIL it.
inline job unreadable_job(std::string_view source, const std::string& why) {
    job out;
    picojson::value id;
    if (parse_json(raw_member(source, "id"), id) && id.is<std::string>()) out.id = id.get<std::string>();
    out.malformed = why;
    return out;
}

// Each job is parsed by itself: one that is not valid must not cost the others, which are claimed all the same.
inline result<std::vector<job>> read_jobs(const std::string& body) {
    const std::string_view list = raw_member(body, "jobs");
    picojson::value parsed;
    if (list.empty() || list.front() != '[') {
        const result<void> valid = parse_json(body, parsed);
        return error{errc::bad_answer, 0,
                     valid ? "the answer to FETCH has no array `jobs`" : valid.error().text};
    }
    std::vector<job> jobs;
    std::string_view rest = list;
    std::string_view source;
    while (next_raw_element(rest, source)) {
        const result<void> valid = parse_json(source, parsed);
        if (valid) {
            jobs.push_back(read_job(parsed, source));
        } else {
            jobs.push_back(unreadable_job(source, valid.error().text));
        }
    }
    return jobs;
}

inline directive read_directive(const picojson::value& parsed) {
    directive found = directive::none;
    for (const char* key : {"state", "directive"}) {
        std::string text;
        json_string(parsed, key, text);
        if (text == "terminate") return directive::terminate;
        if (text == "quiet") found = directive::quiet;
    }
    return found;
}

inline result<heartbeat_answer> read_heartbeat(const std::string& body) {
    picojson::value parsed;
    const result<void> valid = parse_json(body, parsed);
    if (!valid) return valid.error();
    heartbeat_answer out;
    out.directive = read_directive(parsed);
    const picojson::value* extended = json_member(parsed, "jobs_extended");
    if (extended == nullptr || !extended->is<picojson::array>()) return out;
    for (const picojson::value& id : extended->get<picojson::array>()) {
        if (id.is<std::string>()) out.jobs_extended.push_back(id.get<std::string>());
    }
    return out;
}

}  // namespace detail

OJS_SHUTDOWN_INLINE http_transport::http_transport(http_client client, std::string registration_path)
    : client_(std::move(client)), registration_path_(std::move(registration_path)) {}
OJS_SHUTDOWN_INLINE http_transport::~http_transport() = default;

OJS_SHUTDOWN_INLINE result<http_response> http_transport::post(std::string_view route, std::string body,
                                                               const http_call& call) {
    http_request request;
    request.method = "POST";
    request.target = detail::cat("/ojs/v1", route);
    request.headers = {{"Content-Type", "application/openjobspec+json"},
                       {"Accept", "application/openjobspec+json"},
                       {"OJS-Version", "1.0"}};
    request.body = std::move(body);
    return client_.send(request, call);
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> http_transport::fetch(const fetch_request& request,
                                                                   time_point deadline) {
    constexpr std::string_view route = "/workers/fetch";
    const result<http_response> answer =
        post(route, detail::fetch_body(request), {deadline, resend::if_unsent, request.still_wanted});
    if (!answer) return answer.error();
    if (answer->status == 204) return std::vector<job>();
    if (answer->status != 200) return detail::status_error(route, *answer);
    return detail::read_jobs(answer->body);
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::settle(std::string_view route, std::string body,
                                                           time_point deadline) {
    const result<http_response> answer = post(route, std::move(body), {deadline, resend::always, nullptr});
    if (!answer) return answer.error();
    if (answer->status >= 200 && answer->status < 300) return settled::accepted;
    if (answer->status == 404 || answer->status == 409) return settled::gone;
    return detail::status_error(route, *answer);
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::ack(const ack_request& request, time_point deadline) {
    return settle("/workers/ack", detail::ack_body(request), deadline);
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::fail(const fail_request& request, time_point deadline) {
    return settle("/workers/nack", detail::fail_body(request), deadline);
}

OJS_SHUTDOWN_INLINE result<heartbeat_answer> http_transport::heartbeat(const heartbeat_request& request,
                                                                       time_point deadline) {
    constexpr std::string_view route = "/workers/heartbeat";
    const result<http_response> answer =
        post(route, detail::heartbeat_body(request), {deadline, resend::if_unsent, nullptr});
    if (!answer) return answer.error();
    if (answer->status == 204) return heartbeat_answer();
    if (answer->status != 200) return detail::status_error(route, *answer);
    return detail::read_heartbeat(answer->body);
}

OJS_SHUTDOWN_INLINE result<void> http_transport::register_worker(const worker_identity& worker,
                                                                 time_point deadline) {
    if (registration_path_.empty()) return {};
    const result<http_response> answer =
        post(registration_path_, detail::cat("{", detail::identity_members(worker), "}"),
             {deadline, resend::always, nullptr});
    if (!answer) return answer.error();
    const bool fine = answer->status < 300 || answer->status == 404 || answer->status == 405;
    return fine ? result<void>() : result<void>(detail::status_error(registration_path_, *answer));
}

}  // namespace v1
}  // namespace ojs
