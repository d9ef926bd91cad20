#include "push_request.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include "clock.hpp"
#include "json.hpp"
#include "refusal.hpp"
#include "schemas.hpp"

namespace dev_backend {

namespace {

// Members that only the store may set.
bool is_known_member(std::string_view key) {
    constexpr std::array<std::string_view, 32> known = {"specversion",  "id",
                                                        "type",         "queue",
                                                        "args",         "meta",
                                                        "priority",     "options",
                                                        "retry",        "timeout",
                                                        "timeout_ms",   "tags",
                                                        "state",        "attempt",
                                                        "created_at",   "max_attempts",
                                                        "enqueued_at",  "scheduled_at",
                                                        "expires_at",   "delay_until",
                                                        "pending",      "visibility_timeout_ms",
                                                        "started_at",   "completed_at",
                                                        "cancelled_at", "error",
                                                        "errors",       "discarded_at",
                                                        "result",       "retry_delay_ms",
                                                        "metadata",     "visibility_timeout"};
    return std::find(known.begin(), known.end(), key) != known.end();
}

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

std::int64_t moment_or(const picojson::value& from, const char* key, std::int64_t fallback) {
    const std::string text = text_or(from, key, "");
    if (text.empty()) return fallback;
    const std::optional<std::int64_t> ms = parse_iso_time(text);
    if (!ms) refuse_shape(std::string(key) + " is not a time such as 2026-01-31T12:00:00Z");
    return *ms;
}

void read_retry(const picojson::value& options, std::string_view source, new_job& out) {
    const picojson::value* given = member(options, "retry");
    if (given == nullptr) return;
    out.retry = read_retry_policy(*given);
    out.retry_source = source_of(source, "retry");
}

// The directive that a conformance suite requests for the worker's next BEAT.
void read_test_directive(const picojson::value& options, new_job& out) {
    const picojson::value* metadata = member(options, "metadata");
    if (metadata != nullptr && metadata->is<picojson::object>()) {
        out.test_directive = text_or(*metadata, "test_directive", "");
    }
}

// The same members may be in `options`, or beside it.
void read_options(const picojson::value& options, std::string_view source, new_job& out) {
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
    read_retry(options, source, out);
    read_test_directive(options, out);
    if (member(options, "tags") != nullptr) {
        const auto tags = texts_of(options, "tags");
        if (!tags) refuse_shape("tags is not an array of strings");
        out.tags = *tags;
    }
}

}  // namespace

new_job read_push(const picojson::value& parsed, std::string_view source, bool hyphens) {
    new_job out;
    out.type = required_text(parsed, "type");
    if (!is_job_type(out.type, hyphens))
        refuse_shape("type is not of names in lower case with dots between them");
    if (member(parsed, "id") != nullptr) {
        out.id = text_or(parsed, "id", "");
        if (!schemas::is_uuid7(out.id)) refuse_shape("id is not a UUIDv7 in lower case");
    }
    const picojson::value* args = member(parsed, "args");
    if (args == nullptr || !args->is<picojson::array>()) refuse_shape("args is missing or not an array");
    const picojson::value* meta = member(parsed, "meta");
    if (meta != nullptr && !meta->is<picojson::object>()) refuse_shape("meta is not an object");
    out.args = source_of(source, "args");
    if (meta != nullptr) out.meta = source_of(source, "meta");
    read_options(parsed, source, out);
    if (const picojson::value* options = member(parsed, "options")) {
        if (!options->is<picojson::object>()) refuse_shape("options is not an object");
        read_options(*options, source_of(source, "options"), out);
    }
    for (const auto& [key, value] : ojs::json_view(source)) {
        const std::string name = *key.string();
        if (!is_known_member(name))
            out.extra.append(",").append(quote(name)).append(":").append(value.text());
    }
    return out;
}

}  // namespace dev_backend
