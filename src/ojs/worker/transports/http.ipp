#pragma once

#include "../../base/detail/array.hpp"
#include "../../net/json.ipp"
#include "../dialect.hpp"
#include "http.hpp"

namespace ojs {
inline namespace v0_1_0 {
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
    return cat({"{\"queues\":", json_strings(worker.queues), ",\"count\":", request.count,
                ",\"worker_id\":", json_quote(worker.worker_id),
                ",\"visibility_timeout_ms\":", worker.visibility_timeout.count(), "}"});
}

inline std::string ack_body(const ack_request& request) {
    std::string out = cat({"{\"job_id\":", json_quote(request.job_id)});
    if (!request.result_json.empty()) append(out, {cat({",\"result\":", request.result_json})});
    return out + "}";
}

inline std::string details_of(const job_error& failure) {
    return is_json_object(failure.details_json) ? failure.details_json : "{}";
}

inline std::string id_of(const fail_request& request) {
    return request.job_id_json.empty() ? json_quote(request.job_id) : request.job_id_json;
}

// [WIRE 1]
inline std::string checkpoint_member(const fail_request& request) {
    const std::string& state = request.checkpoint_json;
    return state.empty() ? std::string() : cat({",\"meta\":{\"checkpoint\":", state, "}"});
}

inline std::string fail_body(const fail_request& request, bool with_checkpoint) {
    const job_error& failure = request.error;
    const std::string code = json_quote(failure.code);
    return cat({"{\"job_id\":", id_of(request), ",\"error\":{\"code\":", code, ",\"type\":", code,
                ",\"message\":", json_quote(failure.message),
                ",\"retryable\":", failure.retryable ? "true" : "false", ",\"details\":", details_of(failure),
                "}", request.requeue ? ",\"requeue\":true" : "",
                with_checkpoint ? checkpoint_member(request) : "", "}"});
}

// What the published schema lets `error.code` be.
inline constexpr std::string_view schema_codes[] = {
    "handler_error", "timeout",      "cancelled", "invalid_payload", "invalid_request",   "not_found",
    "backend_error", "rate_limited", "duplicate", "queue_paused",    "schema_validation", "unsupported"};

// The same object with a member `error_class` before the others, unless it has one.
inline std::string with_error_class(const std::string& details, const std::string& error_class) {
    if (!raw_member(details, "error_class").empty()) return details;
    std::string_view rest = details;
    std::string_view key;
    std::string_view value;
    const bool has_members = next_raw_member(rest, key, value);
    return cat({"{\"error_class\":", json_quote(error_class), has_members ? "," : "",
                std::string_view(details).substr(details.find('{') + 1)});
}

// The published schema's form: a code of its own goes into the details, and before the message. [WIRE]
inline std::string schema_fail_body(const fail_request& request) {
    job_error failure = request.error;
    std::string details = details_of(failure);
    bool known = false;
    for (const std::string_view code : schema_codes) known = known || failure.code == code;
    if (!known) {
        const std::string prefix = failure.code + ": ";
        if (failure.message.compare(0, prefix.size(), prefix) != 0)
            failure.message = prefix + failure.message;
        details = with_error_class(details, failure.code);
        failure.code = "handler_error";
    }
    if (failure.message.empty()) failure.message = failure.code;
    return cat({"{\"job_id\":", id_of(request), ",\"error\":{\"code\":", json_quote(failure.code),
                ",\"message\":", json_quote(failure.message),
                ",\"retryable\":", failure.retryable ? "true" : "false", ",\"details\":", details, "}}"});
}

// The members that say who a worker is, without the braces.
inline std::string identity_members(const worker_identity& worker) {
    return cat({"\"worker_id\":", json_quote(worker.worker_id), ",\"hostname\":", json_quote(worker.hostname),
                ",\"pid\":", worker.pid, ",\"queues\":", json_strings(worker.queues),
                ",\"concurrency\":", worker.concurrency, ",\"labels\":", json_strings(worker.labels),
                ",\"started_at\":", json_quote(worker.started_at)});
}

// `active_jobs` as the list or its number, since documents disagree; the other names say both. [WIRE]
inline std::string heartbeat_body(const heartbeat_request& request, bool active_jobs_as_count) {
    const std::string ids = json_strings(request.active_jobs);
    const std::string count = cat({request.active_jobs.size()});
    return cat({"{", identity_members(*request.worker), ",\"state\":", json_quote(request.state),
                ",\"active_jobs\":", active_jobs_as_count ? count : ids, ",\"active_job_ids\":", ids,
                ",\"active_job_count\":", count,
                ",\"visibility_timeout_ms\":", request.worker->visibility_timeout.count(), "}"});
}

inline std::string schema_heartbeat_body(const heartbeat_request& request) {
    return cat({"{\"worker_id\":", json_quote(request.worker->worker_id),
                ",\"active_jobs\":", json_strings(request.active_jobs),
                ",\"visibility_timeout_ms\":", request.worker->visibility_timeout.count(), "}"});
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

// error.code of an API error, or nothing where it does not look like one.
inline std::string api_error_code(const http_response& answer) {
    std::string code;
    if (!raw_string(raw_member(raw_member(answer.body, "error"), "code"), code)) return {};
    const bool plain = code.size() <= 64 && code.find_first_not_of(
                                                "abcdefghijklmnopqrstuvwxyz"
                                                "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                                "0123456789_.-") == std::string::npos;
    return plain ? code : std::string();
}

// Whether a backend's answer may be quoted in an error text, and so be logged: it may echo what it was sent, which for
// ACK and FAIL is what a job was about, and for 401 and 403 the token.
enum class quoting { no, yes };
inline constexpr std::size_t longest_quote = 120;  // bytes

inline error status_error(std::string_view route, const http_response& answer, quoting quote,
                          const char* method = "POST") {
    // Not cut: of a token that is cut in two, the logger could not mask the first half.
    const bool quoted = quote == quoting::yes && answer.status != 401 && answer.status != 403 &&
                        answer.body.size() <= longest_quote;
    const std::string said = quoted ? printable(answer.body) : api_error_code(answer);
    return {status_meaning(answer.status), 0,
            cat({method, " ", route, " answered ", answer.status, said.empty() ? "" : ": ", said}),
            answer.status, retry_after(answer)};
}

inline void read_integer(std::string_view source, std::int64_t& out) {
    std::uint64_t number = 0;
    if (parse_number(source, any_integer, number)) out = static_cast<std::int64_t>(number);
}

// A count of `unit` milliseconds. A month and more all count as 24 days, which every deadline can hold.
inline void read_duration(std::string_view source, std::uint64_t unit, std::chrono::milliseconds& out) {
    std::uint64_t number = 0;
    if (!parse_number(source, any_integer, number)) return;
    const std::uint64_t longest = longest_duration_ms / unit;
    out = std::chrono::milliseconds((number < longest ? number : longest) * unit);
}

// One member of a job. `args` is kept as source text, to be judged when all is read.
inline void read_job_member(job& out, std::string_view& args, std::string_view key, std::string_view value) {
    if (key == "id") raw_string(value, out.id);
    if (key == "type") raw_string(value, out.type);
    if (key == "queue") raw_string(value, out.queue);
    if (key == "args") args = value;
    if (key == "meta" && value.front() == '{') out.meta_json = std::string(value);
    if (key == "attempt") read_integer(value, out.attempt);
    if (key == "max_attempts") read_integer(value, out.max_attempts);
    if (key == "timeout_ms") read_duration(value, 1, out.timeout);
    if (key == "timeout" && out.timeout.count() == 0) read_duration(value, 1000, out.timeout);
    if (key == "visibility_timeout_ms") read_duration(value, 1, out.visibility_timeout);
    if (key == "visibility_timeout" && out.visibility_timeout.count() == 0) {
        read_duration(value, 1000, out.visibility_timeout);
    }
}

// Why a job with these arguments cannot be run; empty if it can.
inline std::string args_fault(std::string_view args) {
    const result<void> valid = check_json(args);
    if (!valid) return cat({"args: ", args.empty() ? "missing" : valid.error().text});
    return args[skip_json_blanks(args, 0)] == '[' ? "" : "args is not an array";
}

inline std::string job_fault(const job& read, std::string_view args, std::string_view source) {
    if (read.type.empty()) return "type is missing or not a string";
    std::string fault = args_fault(args);
    if (!fault.empty()) return fault;
    const result<void> valid = check_json(source);
    return valid ? std::string() : valid.error().text;
}

// Reads what it can: a claimed job with an id can at least be FAILed.
inline job read_job(std::string_view source) {
    job out;
    std::string_view args;
    std::string_view rest = source;
    std::string_view key;
    std::string_view value;
    std::string unescaped;
    while (next_raw_member(rest, key, value)) {
        const bool escaped = key.find('\\') != std::string_view::npos && raw_string(key, unescaped);
        read_job_member(out, args, escaped ? unescaped : key.substr(1, key.size() - 2), value);
    }
    out.malformed = job_fault(out, args, source);
    if (out.malformed.empty()) out.args_json = std::string(args);
    out.envelope_json = std::string(source);
    return out;
}

// The same string with its control characters escaped, and so what a peer can read back exactly.
inline std::string escape_controls(std::string_view source) {
    std::string out;
    for (const char c : source) {
        if (static_cast<unsigned char>(c) < 0x20) {
            append_json_escape(out, c);
        } else {
            out += c;
        }
    }
    return out;
}

// What is wrong with the id; empty: nothing. Where JSON can say it all the same, `id_json` gets it, and `id` a name.
inline std::string read_odd_id(std::string_view source, job& out) {
    out.id.clear();
    if (source.empty()) return "the job has no id";
    if (is_json_number(source)) {
        out.id = out.id_json = std::string(source);
        return "the id is a number";
    }
    if (source.front() != '"') return "the id is not a string";
    if (!is_utf8(source)) return cat({"the id is not UTF-8: ", printable(source)});
    std::string text;
    const json_text read = read_json_string(source, text);
    if (read == json_text::none) return cat({"the id is not a string: ", printable(source)});
    if (text.empty()) return "the id is empty";
    out.id = std::move(text);
    if (read == json_text::proper) return {};
    out.id_json = escape_controls(source);
    return "the id holds a control character or half a surrogate pair";
}

inline job read_claimed_job(std::string_view source) {
    job out = read_job(source);
    if (!out.id.empty() && is_utf8(out.id)) return out;
    const std::string fault = read_odd_id(raw_member(source, "id"), out);
    if (!fault.empty()) out.malformed = fault;
    return out;
}

// So many more than asked for are run. What holds still more is no answer to the question, and each takes memory.
inline constexpr std::size_t most_unasked_jobs = 1000;

inline error refused_answer(std::string_view why) {
    return {errc::bad_answer, 0,
            cat({why, "; jobs it may have claimed come back after their visibility timeout"})};
}

// The array `jobs` of an answer that is whole: one that was cut off gives no job, since half a job can look like one.
inline result<std::string_view> find_jobs(std::string_view body) {
    std::string_view rest = body;
    std::string_view key;
    std::string_view value;
    std::string_view found;
    int lists = 0;
    while (next_raw_member(rest, key, value)) {
        if (!json_key_is(key, "jobs")) continue;
        found = value;
        ++lists;
    }
    if (!raw_walk_ended(rest, '{', '}'))
        return refused_answer("the answer to FETCH is not a whole JSON object");
    if (lists != 1 || found.front() != '[')
        return refused_answer("the answer to FETCH does not have one array `jobs`");
    return found;
}

// Each job is read by itself: one that is not valid must not cost the others, which are claimed all the same.
inline result<std::vector<job>> read_jobs(std::string_view body, std::size_t asked = 1) {
    const result<std::string_view> found = find_jobs(body);
    if (!found) return found.error();
    std::string_view source;
    array<std::string_view> sources;
    std::string_view rest = *found;
    while (next_raw_element(rest, source)) {
        sources.push_back(source);
        if (sources.size() > asked + most_unasked_jobs)
            return refused_answer(cat({"the answer to FETCH holds more than ", sources.size() - 1,
                                       " jobs, where ", asked, " were asked for"}));
    }
    if (!raw_walk_ended(rest, '[', ']')) return refused_answer("the answer to FETCH is not JSON");
    std::vector<job> jobs;
    jobs.reserve(sources.size());
    for (const std::string_view each : sources) jobs.push_back(read_claimed_job(each));
    return jobs;
}

inline directive read_directive(std::string_view body) {
    directive found = directive::none;
    for (const char* key : {"state", "directive"}) {
        std::string text;
        raw_string(raw_member(body, key), text);
        if (text == "terminate") return directive::terminate;
        if (text == "quiet") found = directive::quiet;
    }
    return found;
}

// Those of `ours` that a list of ids names, however long that is.
inline std::vector<std::string> named_ids(std::string_view list, const std::vector<std::string>& ours) {
    std::vector<std::string> named;
    std::string_view source;
    std::string id;
    while (next_raw_element(list, source)) {
        if (raw_string(source, id)) named.push_back(id);
    }
    const array<const std::string*> wanted = in_order(ours);
    std::vector<std::string> out;
    std::size_t next = 0;
    for (const std::string* const each : in_order(named)) {
        while (next < wanted.size() && *wanted[next] < *each) ++next;
        if (next < wanted.size() && *wanted[next] == *each) out.push_back(*wanted[next++]);
    }
    return out;
}

// Those members of an array that are strings.
inline std::vector<std::string> read_strings(std::string_view list) {
    std::vector<std::string> out;
    std::string_view source;
    std::string text;
    while (next_raw_element(list, source)) {
        if (raw_string(source, text)) out.push_back(text);
    }
    return out;
}

inline result<heartbeat_answer> read_heartbeat(std::string_view body,
                                               const std::vector<std::string>& ours = {}) {
    const result<void> valid = check_json(body);
    if (!valid) return valid.error();
    heartbeat_answer out;
    out.directive = read_directive(body);
    if (out.directive == directive::quiet) out.queues = read_strings(raw_member(body, "queues"));
    out.jobs_extended = named_ids(raw_member(body, "jobs_extended"), ours);
    return out;
}

inline result<settled> read_settled(std::string_view route, const result<http_response>& answer) {
    if (!answer) return answer.error();
    if (answer->status >= 200 && answer->status < 300) return settled::accepted;
    if (answer->status == 404 || answer->status == 409) return settled::gone;
    return status_error(route, *answer, quoting::no);
}

// A job's id as one segment of a path. A dot is escaped too: an id may be "..".
inline std::string path_segment(std::string_view text) {
    static const char digits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                           c == '-' || c == '_';
        const auto byte = static_cast<unsigned char>(c);
        if (plain) {
            out += c;
        } else {
            out += {'%', digits[byte >> 4U], digits[byte & 0xfU]};
        }
    }
    return out;
}

inline std::string checkpoint_route(const std::string& job_id) {
    return cat({"/jobs/", path_segment(job_id), "/checkpoint"});
}
inline constexpr std::string_view checkpoint_route_name = "/jobs/{id}/checkpoint";  // for texts

inline bool refuses_form(int status) noexcept {
    return status == 400 || status == 422;
}

// What a form does not say, for the log.
inline std::string_view dropped_of_beat(int form) noexcept {
    static constexpr std::string_view texts[] = {
        "", "active_jobs in its usual form",
        "state, active_job_ids, active_job_count, hostname, pid, queues, concurrency, labels, started_at"};
    return texts[form];
}
inline std::string_view dropped_of_fail(int form) noexcept {
    return form == 0 ? "" : "error.type, requeue, meta.checkpoint; error.code is in details.error_class";
}

inline error no_checkpoint_route() {
    return {errc::unsupported, 0, "the backend has no route for checkpoints"};
}

}  // namespace detail

OJS_SHUTDOWN_INLINE http_transport::http_transport(http_client client, http_transport_options options)
    : client_(std::move(client)),
      options_(std::move(options)),
      beat_form_{"heartbeat", 3, detail::dropped_of_beat},
      fail_form_{"nack", 2, detail::dropped_of_fail} {}
OJS_SHUTDOWN_INLINE http_transport::~http_transport() = default;

OJS_SHUTDOWN_INLINE result<http_client> http_transport::make_client(std::string_view url,
                                                                    http_client_options options) {
    options.headers.push_back({"Content-Type", "application/openjobspec+json"});
    options.headers.push_back({"Accept", "application/openjobspec+json"});
    options.headers.push_back({"OJS-Version", "1.0"});
    return http_client::create(url, std::move(options));
}

OJS_SHUTDOWN_INLINE result<http_response> http_transport::post(std::string_view route, std::string body,
                                                               const http_call& call) {
    return send("POST", route, std::move(body), call);
}

OJS_SHUTDOWN_INLINE result<http_response> http_transport::send(const char* method, std::string_view route,
                                                               std::string body, const http_call& call) {
    http_request request;
    request.method = method;
    request.target = detail::cat({"/ojs/v1", route});
    request.body = std::move(body);
    return client_.send(request, call);
}

// Whether it is time to try the forms from the full one on, although the backend has refused it. Of many calls, one does.
OJS_SHUTDOWN_INLINE bool http_transport::is_full_due(form_choice& form) noexcept {
    steady_clock::rep due = form.full_again.load(std::memory_order_relaxed);
    if (steady_clock::now().time_since_epoch().count() < due) return false;
    const steady_clock::rep next = deadline_after(options_.form_retry).time_since_epoch().count();
    return form.full_again.compare_exchange_strong(due, next);
}

// After an answer that is not a refusal. Only success shows that a better form is taken again.
OJS_SHUTDOWN_INLINE void http_transport::keep_form(form_choice& form, int before, int taken, int status,
                                                   const error& why) {
    const bool success = status >= 200 && status < 300;
    const bool answers_request = success || status == 404 || status == 409;
    if (taken == before || !(taken < before ? success : answers_request)) return;
    if (!form.in_use.compare_exchange_strong(before, taken)) return;
    form.full_again.store(deadline_after(options_.form_retry).time_since_epoch().count());
    if (options_.on_form_change) options_.on_form_change(form.operation, form.dropped(taken), why);
}

// Tries forms until the backend does not refuse one as such: the one in use and the others from the first on; where the
// full one is due, from the first on; where it matters, the full one before the one in use.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::post_in_form(form_choice& form, bool matters,
                                                                       const body_maker& body,
                                                                       const http_call& call) {
    const std::string route = detail::cat({"/workers/", form.operation});
    const int in_use = form.in_use.load(std::memory_order_relaxed);
    const bool due = in_use != 0 && is_full_due(form);
    const int order[] = {due || matters ? 0 : in_use, due ? 0 : in_use, 0, 1, 2};
    unsigned tried = 0;
    result<http_response> first = error{};
    error refused;
    for (const int each : order) {
        if (each >= form.count || (tried >> each & 1U) != 0) continue;
        result<http_response> answer = post(route, body(each), call);
        const bool refuses = answer && detail::refuses_form(answer->status);
        if (answer && !refuses) keep_form(form, in_use, each, answer->status, refused);
        if (!refuses) return answer;
        refused = detail::status_error(route, *answer, detail::quoting::no);
        if (tried == 0) first = std::move(answer);
        tried |= 1U << each;
    }
    return first;
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> http_transport::fetch(const fetch_request& request,
                                                                   time_point deadline) {
    constexpr std::string_view route = "/workers/fetch";
    const result<http_response> answer =
        post(route, detail::fetch_body(request), {deadline, resend::if_unsent, request.still_wanted});
    if (!answer && answer.error().code == errc::bad_answer)
        return detail::refused_answer(answer.error().text);
    if (!answer) return answer.error();
    if (answer->status == 204) return std::vector<job>();
    if (answer->status != 200) return detail::status_error(route, *answer, detail::quoting::yes);
    return detail::read_jobs(answer->body, request.count);
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::ack(const ack_request& request, time_point deadline) {
    constexpr std::string_view route = "/workers/ack";
    const result<http_response> answer =
        post(route, detail::ack_body(request), {deadline, resend::always, nullptr});
    return detail::read_settled(route, answer);
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::fail(const fail_request& request, time_point deadline) {
    constexpr std::string_view route = "/workers/nack";
    const http_call call = {deadline, resend::always, nullptr};
    if (!request.checkpoint_json.empty() && fail_form_.in_use.load(std::memory_order_relaxed) == 0) {
        const result<http_response> whole = post(route, detail::fail_body(request, true), call);
        if (!whole || !detail::refuses_form(whole->status)) return detail::read_settled(route, whole);
        // It may be this one checkpoint that is refused: nothing follows for other FAILs.
    }
    const auto body = [&](int form) {
        return form == 0 ? detail::fail_body(request, false) : detail::schema_fail_body(request);
    };
    return detail::read_settled(route, post_in_form(fail_form_, false, body, call));
}

OJS_SHUTDOWN_INLINE result<heartbeat_answer> http_transport::heartbeat(const heartbeat_request& request,
                                                                       time_point deadline) {
    const bool as_count = options_.active_jobs_as_count;
    const auto body = [&](int form) {
        if (form == 2) return detail::schema_heartbeat_body(request);
        return detail::heartbeat_body(request, form == 0 ? as_count : !as_count);
    };
    const http_call call = {deadline, request.matters ? resend::always : resend::if_unsent,
                            request.still_wanted};
    const result<http_response> answer = post_in_form(beat_form_, request.matters, body, call);
    if (!answer) return answer.error();
    if (answer->status == 204) return heartbeat_answer();
    if (answer->status != 200)
        return detail::status_error("/workers/heartbeat", *answer, detail::quoting::yes);
    return detail::read_heartbeat(answer->body, request.active_jobs);
}

OJS_SHUTDOWN_INLINE result<void> http_transport::register_worker(const worker_identity& worker,
                                                                 time_point deadline) {
    if (options_.registration_path.empty()) return {};
    return tell_registrar("POST", options_.registration_path,
                          detail::cat({"{", detail::identity_members(worker), "}"}), deadline);
}

OJS_SHUTDOWN_INLINE result<void> http_transport::deregister_worker(const worker_identity& worker,
                                                                   time_point deadline) {
    const std::string& path = options_.registration_path;
    if (path.empty()) return {};
    return tell_registrar("DELETE", detail::cat({path, "/", detail::path_segment(worker.worker_id)}), "",
                          deadline);
}

OJS_SHUTDOWN_INLINE result<void> http_transport::tell_registrar(const char* method, const std::string& path,
                                                                std::string body, time_point deadline) {
    const result<http_response> answer =
        send(method, path, std::move(body), {deadline, resend::always, nullptr});
    if (!answer) return answer.error();
    const bool fine = answer->status < 300 || answer->status == 404 || answer->status == 405;
    return fine ? result<void>()
                : result<void>(detail::status_error(path, *answer, detail::quoting::yes, method));
}

// 404 may mean the route or the job. A backend that knows the job has no such route; nor has one whose 404 is not the
// answer of its API. Where it knows neither, the job is gone only if the route is known to be there.
OJS_SHUTDOWN_INLINE result<settled> http_transport::read_missing(const std::string& job_id,
                                                                 const http_response& missing,
                                                                 const http_call& call) {
    const std::string route = detail::cat({"/jobs/", detail::path_segment(job_id)});
    const result<http_response> info = send("GET", route, "", call);
    if (!info) return info.error();
    if (detail::status_meaning(info->status) == errc::unavailable)
        return detail::status_error("/jobs/{id}", *info, detail::quoting::no, "GET");
    if (info->status == 404 && !detail::api_error_code(missing).empty()) {
        if (checkpoint_route_seen_.load(std::memory_order_relaxed)) return settled::gone;
        return detail::no_checkpoint_route();
    }
    keeps_checkpoints_.store(false, std::memory_order_relaxed);
    return detail::no_checkpoint_route();
}

OJS_SHUTDOWN_INLINE result<settled> http_transport::save_checkpoint(const checkpoint_request& request,
                                                                    time_point deadline) {
    if (!keeps_checkpoints_.load(std::memory_order_relaxed)) return detail::no_checkpoint_route();
    const http_call call = {deadline, resend::if_unsent, nullptr};
    const result<http_response> answer = post(detail::checkpoint_route(request.job_id),
                                              detail::cat({"{\"state\":", request.state_json, "}"}), call);
    if (answer && answer->status == 404) return read_missing(request.job_id, *answer, call);
    if (answer && (answer->status == 405 || answer->status == 501)) {
        keeps_checkpoints_.store(false, std::memory_order_relaxed);
        return detail::no_checkpoint_route();
    }
    if (answer && (answer->status < 300 || answer->status == 409))
        checkpoint_route_seen_.store(true, std::memory_order_relaxed);
    return detail::read_settled(detail::checkpoint_route_name, answer);
}

OJS_SHUTDOWN_INLINE result<std::string> http_transport::load_checkpoint(const std::string& job_id,
                                                                        time_point deadline) {
    if (!keeps_checkpoints_.load(std::memory_order_relaxed)) return std::string();
    const result<http_response> answer =
        send("GET", detail::checkpoint_route(job_id), "", {deadline, resend::if_unsent, nullptr});
    if (!answer) return answer.error();
    const int status = answer->status;
    if (status == 204 || status == 404 || status == 405 || status == 501) return std::string();
    if (status != 200)
        return detail::status_error(detail::checkpoint_route_name, *answer, detail::quoting::no, "GET");
    checkpoint_route_seen_.store(true, std::memory_order_relaxed);
    const result<void> valid = detail::check_json(answer->body);
    if (!valid) return valid.error();
    return std::string(detail::raw_member(answer->body, "state"));
}

}  // namespace v0_1_0
}  // namespace ojs
