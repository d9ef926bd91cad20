#include "push_request.hpp"

#include <picojson.h>

#include "clock.hpp"
#include "json.hpp"
#include "refusal.hpp"

namespace dev_backend {
namespace {
// Parts joined by dots; each is a letter, then lower-case letters, digits and underscores.
// [OJS core 5.1]
bool is_job_type(std::string_view text, bool hyphens) {
    bool at_begin = true;
    for (const char c : text) {
        const bool is_letter = c >= 'a' && c <= 'z';
        const bool is_inner = (c >= '0' && c <= '9') || c == '_' || c == '.' || (hyphens && c == '-');
        if (!is_letter && (at_begin || !is_inner)) return false;
        at_begin = c == '.';
    }
    return !at_begin;
}

bool is_queue_name(std::string_view text) {
    constexpr std::string_view inner = "abcdefghijklmnopqrstuvwxyz0123456789-.";
    constexpr std::size_t max_length = 128;
    const bool begins_well = !text.empty() && text.front() != '-' && text.front() != '.';
    return begins_well && text.size() <= max_length && text.find_first_not_of(inner) == text.npos;
}

// Of hexadecimal digits in lower case; v is one of 8, 9, a, b.
bool is_uuid7(std::string_view text) {
    constexpr std::string_view shape = "xxxxxxxx-xxxx-7xxx-vxxx-xxxxxxxxxxxx";
    if (text.size() != shape.size()) return false;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        const std::string_view allowed = shape[i] == 'x'   ? "0123456789abcdef"
                                         : shape[i] == 'v' ? "89ab"
                                                           : shape.substr(i, 1);
        if (allowed.find(text[i]) == allowed.npos) return false;
    }
    return true;
}

std::int64_t moment_or(json_view from, const char* key, std::int64_t fallback) {
    const std::string text = text_or(from, key, "");
    if (text.empty()) return fallback;
    const std::optional<std::int64_t> ms = parse_iso_time(text);
    if (!ms) refuse_shape(std::string(key) + " is not a time such as 2026-01-31T12:00:00Z");
    return *ms;
}

// [OJS unique jobs 2]
void read_unique(new_job& out) {
    const json_view given(out.unique_source);
    if (given.type() != json_type::object) refuse_member("unique is not an object");
    if (const json_view found = member(given, "on_conflict"); found && found.string().value_or("") != "reject")
        refuse_member("unique.on_conflict is not \"reject\", the only one that this backend has");
    out.unique_period = duration_or(given, "period", out.unique_period, "unique");
    const auto keys = member(given, "keys") ? texts_of(member(given, "keys")) : std::vector<std::string>();
    if (!keys) refuse_member("unique.keys is not an array of strings");
    bool by_queue = false;
    bool by_args = false;
    for (const std::string& key : *keys) {
        by_queue |= key == "queue";
        by_args |= key == "args";
        if (key != "type" && key != "queue" && key != "args")
            refuse_member("unique.keys has \"" + key + "\"; this backend has type, queue and args");
    }
    out.unique_key = out.type + '\n' + (by_queue ? out.queue : "") + '\n';
    if (by_args) out.unique_key += json_view(out.args).as<picojson::value>()->serialize();  // members in order
}

// The same members may be in `options`, or beside it.
void read_options(json_view options, new_job& out) {
    constexpr std::int64_t max_priority = 100;
    out.queue = text_or(options, "queue", out.queue);
    if (!is_queue_name(out.queue)) refuse_shape("queue must be of a-z, 0-9, - and ., at most 128 characters");
    out.priority = integer_or(options, "priority", -max_priority, out.priority);
    if (out.priority > max_priority) refuse_shape("priority is not within -100 to 100");
    out.timeout = time_or(options, "timeout", milliseconds(1000), out.timeout);
    out.timeout = time_or(options, "timeout_ms", milliseconds(1), out.timeout);
    out.lease_length = time_or(options, "visibility_timeout_ms", milliseconds(1), out.lease_length);
    out.scheduled_ms = moment_or(options, "scheduled_at", moment_or(options, "delay_until", out.scheduled_ms));
    out.expires_ms = moment_or(options, "expires_at", out.expires_ms);
    if (const json_view given = member(options, "retry")) {
        out.retry = read_retry_policy(given);
        out.retry_source = given.text();
    }
    if (const json_view given = member(options, "unique")) out.unique_source = given.text();
    if (const json_view given = member(options, "tags")) {
        if (!texts_of(given)) refuse_shape("tags is not an array of strings");
        out.tags = given.text();
    }
    // The directive that a conformance suite requests for the worker's next heartbeat.
    const json_view metadata = object_or_none(options, "metadata");
    out.test_directive = text_or(metadata, "test_directive", out.test_directive);
}

// What the job keeps beside its terms.
void read_extra(json_view from, new_job& out) {
    (void)text_or(from, "specversion", "");  // must be a string
    (void)text_or(from, "schema", "");
    for (const auto& [key, value] : from) {
        const std::string name = *key.string();
        if (name == "schema" || is_extension_member(name))
            ojs::detail::append(out.extra, {",", key.text(), ":", value.text()});
    }
}
}  // namespace

new_job read_push(json_view from, bool hyphens) {
    new_job out;
    out.type = required_text(from, "type");
    if (!is_job_type(out.type, hyphens)) refuse_shape("type must be names in lower case joined by dots");
    out.id = text_or(from, "id", "");
    if (member(from, "id") && !is_uuid7(out.id)) refuse_shape("id is not a UUIDv7 in lower case");
    const json_view args = member(from, "args");
    if (args.type() != json_type::array) refuse_shape("args is missing or not an array");
    out.args = args.text();
    out.meta = object_or_none(from, "meta").text();
    read_options(from, out);
    read_options(object_or_none(from, "options"), out);
    if (!out.unique_source.empty()) read_unique(out);
    return out;
}

new_job read_new_push(json_view from, bool hyphens) {
    require_known_members(from);
    new_job out = read_push(from, hyphens);
    read_extra(from, out);
    return out;
}
}  // namespace dev_backend
