#include "push_request.hpp"

#include <optional>

#include "clock.hpp"
#include "json.hpp"
#include "push_members.hpp"
#include "refusal.hpp"
#include "schemas.hpp"

namespace dev_backend {

namespace {

// Parts joined by dots; each is a letter, then lower-case letters, digits and underscores.
// [OJS core 5.1]
bool is_job_type(std::string_view text, bool hyphens) {
    const std::string_view inner = hyphens ? "_.-" : "_.";
    bool at_begin = true;
    for (const char c : text) {
        const bool letter = c >= 'a' && c <= 'z';
        const bool digit = c >= '0' && c <= '9';
        if (!letter && (at_begin || (!digit && inner.find(c) == inner.npos))) return false;
        at_begin = c == '.';
    }
    return !text.empty() && !at_begin;
}

bool is_queue(const std::string& text) {
    constexpr std::size_t longest = 128;
    return schemas::is_queue_name(text) && text.size() <= longest;
}

std::int64_t moment_or(const json_members& from, const char* key, std::int64_t fallback) {
    const std::string text = text_or(from, key, "");
    if (text.empty()) return fallback;
    const std::optional<std::int64_t> ms = parse_iso_time(text);
    if (!ms) refuse_shape(std::string(key) + " is not a time such as 2026-01-31T12:00:00Z");
    return *ms;
}

json_view object_or_none(const json_members& from, const char* key) {
    const json_view out = from[key];
    if (out && out.type() != json_type::object) refuse_shape(std::string(key) + " is not an object");
    return out;
}

void read_retry(const json_members& options, new_job& out) {
    const json_view given = options["retry"];
    if (!given) return;
    out.retry = read_retry_policy(given);
    out.retry_source = given.text();
}

// The directive that a conformance suite requests for the worker's next BEAT.
void read_test_directive(const json_members& options, new_job& out) {
    const json_members metadata(object_or_none(options, "metadata"));
    out.test_directive = text_or(metadata, "test_directive", out.test_directive);
}

// The same members may be in `options`, or beside it.
void read_options(const json_members& options, new_job& out) {
    out.queue = text_or(options, "queue", out.queue);
    if (!is_queue(out.queue))
        refuse_shape("queue is not of a-z, 0-9, - and ., or longer than 128 characters");
    constexpr std::int64_t max_priority = 100;
    out.priority = integer_or(options, "priority", -max_priority, out.priority);
    if (out.priority > max_priority) refuse_shape("priority is not within -100 to 100");
    out.timeout = time_or(options, "timeout", milliseconds(1000), milliseconds(0), out.timeout);
    out.timeout = time_or(options, "timeout_ms", milliseconds(1), milliseconds(0), out.timeout);
    out.reservation =
        time_or(options, "visibility_timeout", milliseconds(1000), milliseconds(1), out.reservation);
    out.reservation =
        time_or(options, "visibility_timeout_ms", milliseconds(1), milliseconds(1), out.reservation);
    out.scheduled_ms =
        moment_or(options, "scheduled_at", moment_or(options, "delay_until", out.scheduled_ms));
    out.expires_ms = moment_or(options, "expires_at", out.expires_ms);
    out.pending = flag_or(options, "pending", out.pending);
    read_retry(options, out);
    read_test_directive(options, out);
    if (const json_view given = options["tags"]) {
        const auto tags = texts_of(given);
        if (!tags) refuse_shape("tags is not an array of strings");
        out.tags = *tags;
    }
}

// What the job keeps beside its terms.
void read_extra(const json_members& from, new_job& out) {
    (void)text_or(from, "specversion", "");  // must be a string
    (void)text_or(from, "schema", "");
    for (const auto& [key, value] : from.all()) {
        const std::string name = *key.string();
        if (name != "schema" && name != "unique" && !is_extension_member(name)) continue;
        out.extra += ',';
        append_quoted(out.extra, name);
        out.extra.append(":").append(value.text());
    }
}

}  // namespace

new_job read_push(const json_members& from, bool hyphens) {
    new_job out;
    out.type = required_text(from, "type");
    if (!is_job_type(out.type, hyphens))
        refuse_shape("type is not of names in lower case with dots between them");
    if (from["id"]) {
        out.id = text_or(from, "id", "");
        if (!schemas::is_uuid7(out.id)) refuse_shape("id is not a UUIDv7 in lower case");
    }
    const json_view args = from["args"];
    if (args.type() != json_type::array) refuse_shape("args is missing or not an array");
    out.args = args.text();
    out.meta = object_or_none(from, "meta").text();
    read_options(from, out);
    const json_members options(object_or_none(from, "options"));
    read_options(options, out);
    return out;
}

new_job read_new_push(const json_members& from, bool hyphens) {
    require_known_members(from);
    new_job out = read_push(from, hyphens);
    for (const json_view given : {json_members(from["options"])["unique"], from["unique"]}) {
        if (given && !out.unique) out.unique = read_unique_policy(given);
    }
    read_extra(from, out);
    return out;
}

}  // namespace dev_backend
