// A request to enqueue as JSON, and what is wrong with its fields. [OJS core 5]
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../net/json_view.ipp"
#include "../../worker/detail/http_bodies.ipp"
#include "../client.hpp"

namespace ojs::detail {
inline bool is_job_type(std::string_view text) noexcept {
    char previous = '.';
    for (const char c : text) {
        const bool is_inner = previous != '.' && (c == '.' || c == '_' || (c >= '0' && c <= '9'));
        if (!is_inner && (c < 'a' || c > 'z')) return false;
        previous = c;
    }
    return previous != '.' && text.size() <= 255;
}
inline bool is_queue_name(std::string_view text) noexcept {
    const auto is_inner = [](char c) { return c == '-' || c == '.' || (is_alphanumeric(c) && c == lower_ascii(c)); };
    return !text.empty() && text.size() <= 128 && is_alphanumeric(text.front()) && all_of(text, is_inner);
}

// `shape` has an x for each hexadecimal digit in lower case.
inline bool has_shape(std::string_view text, std::string_view shape) noexcept {
    bool fits = text.size() == shape.size();
    for (std::size_t i = 0; fits && i < shape.size(); ++i)
        fits = has_part(shape[i] == 'x' ? "0123456789abcdef" : shape.substr(i, 1), text.substr(i, 1));
    return fits;
}
inline bool is_uuid7(std::string_view text) noexcept {
    return has_shape(text, "xxxxxxxx-xxxx-7xxx-xxxx-xxxxxxxxxxxx") && has_part("89ab", text.substr(19, 1));
}
inline bool is_traceparent(std::string_view text) noexcept {
    return has_shape(text, "00-xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx-xxxxxxxxxxxxxxxx-xx") &&
           !has_part(text, "-00000000000000000000000000000000-") && !has_part(text, "-0000000000000000-");
}
inline std::int64_t scheduled_ms(const enqueue_request& given) noexcept {
    return std::chrono::duration_cast<milliseconds>(given.scheduled_at.time_since_epoch()).count();
}

// The first field that is out of range, and why; empty: none.
inline std::string enqueue_fault(const enqueue_request& given) {
    std::string out;
    const auto check = [&](const char* field, bool is_valid, const char* fault) {
        if (out.empty() && !is_valid) out = cat({field, " ", fault});
    };
    const auto check_time = [&](const char* field, milliseconds time) {
        check(field, time.count() >= 0 && time <= milliseconds(max_duration_ms), "is not a time from 0 to 24 days");
    };
    const auto type_of = [](const std::string& text) { return json_view::parse(text).value_or(json_view()).type(); };
    const job_retry_policy& retry = given.retry;
    const std::string& trace = given.traceparent;
    const std::int64_t at_ms = scheduled_ms(given);
    check("type", is_job_type(given.type), "must be names of a-z, 0-9 and _ joined by dots, at most 255 bytes");
    check("args_json", type_of(given.args_json) == json_type::array, "is not a JSON array");
    check("queue", is_queue_name(given.queue), "must be of a-z, 0-9, - and ., at most 128 bytes");
    check("id", given.id.empty() || is_uuid7(given.id), "is not a UUIDv7 in lower case");
    check("priority", given.priority >= -100 && given.priority <= 100, "is not within -100 to 100");
    check("scheduled_at", at_ms >= 0 && at_ms < 253402300800000, "is not in the years 1970 to 9999");
    check("meta_json", type_of(given.meta_json) == json_type::object, "is not a JSON object");
    check("traceparent", trace.empty() || is_traceparent(trace), "is not a W3C trace context, version 00");
    check("traceparent", trace.empty() || !json_view(given.meta_json).member("traceparent"), "is also in meta_json");
    check("retry.max_attempts", retry.max_attempts >= 0 && retry.max_attempts <= 1000, "is not 0 to 1000");
    check_time("retry.initial_interval", retry.initial_interval);
    check_time("retry.max_interval", retry.max_interval);
    check("retry.max_interval", retry.max_interval.count() == 0 || retry.max_interval >= retry.initial_interval,
          "is shorter than retry.initial_interval");
    for (const std::string& key : given.unique.keys)
        check("unique.keys", is_listed(key, "type queue args meta"), "may contain only type, queue, args and meta");
    check_time("unique.period", given.unique.period);
    check("unique.period", given.unique.period.count() == 0 || !given.unique.keys.empty(), "needs unique.keys");
    return out;
}

struct json_members {
    void add(const char* name, bool is_set, std::string_view json) {
        if (is_set) append(text, {text.size() > 1 ? ",\"" : "\"", name, "\":", json});
    }
    void add_time(const char* name, milliseconds time) {  // [ISO 8601]
        const std::string ms =
            time.count() % 1000 == 0 ? "" : "." + std::to_string(1000 + time.count() % 1000).substr(1);
        add(name, time.count() > 0, cat({"\"PT", time.count() / 1000, ms, "S\""}));
    }
    std::string text = "{";
};

inline std::string enqueue_body(const enqueue_request& given) {
    json_members retry;
    retry.add("max_attempts", given.retry.max_attempts > 0, std::to_string(given.retry.max_attempts));
    retry.add_time("initial_interval", given.retry.initial_interval);
    retry.add_time("max_interval", given.retry.max_interval);
    json_members unique;
    unique.add("keys", !given.unique.keys.empty(), json_strings(given.unique.keys));
    unique.add_time("period", given.unique.period);
    json_members options;
    options.add("queue", true, json_quote(given.queue));
    options.add("priority", given.priority != 0, std::to_string(given.priority));
    options.add("delay_until", scheduled_ms(given) > 0, json_quote(utc_text(scheduled_ms(given))));
    options.add("retry", retry.text.size() > 1, retry.text + "}");
    options.add("unique", unique.text.size() > 1, unique.text + "}");
    json_members meta;
    meta.add("traceparent", !given.traceparent.empty(), json_quote(given.traceparent));
    for (const auto& [key, value] : json_view(given.meta_json))
        append(meta.text, {meta.text.size() > 1 ? "," : "", key.text(), ":", value.text()});
    json_members out;
    out.add("type", true, json_quote(given.type));
    out.add("id", !given.id.empty(), json_quote(given.id));
    out.add("args", true, given.args_json);
    out.add("meta", meta.text.size() > 1, meta.text + "}");
    out.add("options", true, options.text + "}");
    return out.text + "}";
}

// Whether both mean the same: a server may write a value in another way. For checked JSON, so at most 100 deep.
inline bool is_same_json(json_view a, json_view b) {
    if (a.type() != b.type()) return false;
    if (a.type() == json_type::string) return a.string().value_or("") == b.string().value_or("");
    if (a.type() == json_type::number) return a.text() == b.text() || a.number().value_or(0) == b.number().value_or(1);
    if (a.type() != json_type::array && a.type() != json_type::object) return a.text() == b.text();
    json_iterator other = b.begin();
    for (const auto& [key, value] : a) {
        if (!other || !is_same_json(value, key ? b.member(key.string().value_or("")) : other->value)) return false;
        ++other;
    }
    return !other;
}
inline bool is_same_job(const enqueue_request& given, const job& found) {
    return found.id == given.id && found.type == given.type && found.queue == given.queue && found.malformed.empty() &&
           is_same_json(json_view(given.args_json), json_view(found.args_json));
}

// `source`: a job, or an object with a member `job`. `id`: the job's; empty: any.
inline result<job_info> read_job_info(json_view source, std::string_view id, bool is_new = false) {
    const json_view nested = source.member("job"), shown = nested ? nested : source;
    job_info out{read_job(shown.text()), shown.member("state").string().value_or(""), is_new};
    if (!out.job.id.empty() && (id.empty() || equals_ignore_case(out.job.id, id))) return out;
    return error{errc::bad_response, 0, "the response does not contain the job"};
}
}  // namespace ojs::detail
