#include "push_request.hpp"

#include <algorithm>
#include <array>

#include "json.hpp"
#include "json_slicer.hpp"
#include "refusal.hpp"

namespace dev_backend {

namespace {

bool is_known_member(std::string_view key) {
    constexpr std::array<std::string_view, 16> known = {
        "specversion", "id",           "type",       "queue",      "args",       "meta",
        "priority",    "options",      "retry",      "timeout",    "timeout_ms", "tags",
        "state",       "max_attempts", "created_at", "enqueued_at"};
    return key == "attempt" || std::find(known.begin(), known.end(), key) != known.end();
}

void read_options(const picojson::value& options, new_job& out) {
    out.queue = text_or(options, "queue", out.queue);
    if (out.queue.empty()) refuse_shape("queue is empty");
    out.priority = integer_or(options, "priority", -1000000000, out.priority);
    out.timeout = time_or(options, "timeout", milliseconds(1000), milliseconds(0), out.timeout);
    out.timeout = time_or(options, "timeout_ms", milliseconds(1), milliseconds(0), out.timeout);
    if (const picojson::value* retry = member(options, "retry")) {
        out.max_attempts = integer_or(*retry, "max_attempts", 1, out.max_attempts);
    }
    if (member(options, "delay_until") != nullptr || member(options, "scheduled_at") != nullptr) {
        throw refusal{400, "UNSUPPORTED_FEATURE", "this backend schedules nothing for later"};
    }
}

void read_tags(const picojson::value& from, new_job& out) {
    if (member(from, "tags") == nullptr) return;
    const auto tags = texts_of(from, "tags");
    if (!tags) refuse_shape("tags is not an array of strings");
    out.tags = *tags;
}

}  // namespace

new_job read_push(const picojson::value& parsed, std::string_view source) {
    new_job out;
    out.queue = "default";
    out.type = required_text(parsed, "type");
    const picojson::value* args = member(parsed, "args");
    if (args == nullptr || !args->is<picojson::array>()) refuse_shape("args is missing or not an array");
    const picojson::value* meta = member(parsed, "meta");
    if (meta != nullptr && !meta->is<picojson::object>()) refuse_shape("meta is not an object");
    read_options(parsed, out);
    out.args = json_slicer::source(source, "args", *args);
    if (meta != nullptr) out.meta = json_slicer::source(source, "meta", *meta);
    read_tags(parsed, out);
    if (const picojson::value* options = member(parsed, "options")) {
        read_options(*options, out);
        read_tags(*options, out);
    }
    for (const auto& [key, value] : json_slicer::object_members(source)) {
        if (!is_known_member(key)) out.extra.append(",\"").append(key).append("\":").append(value);
    }
    return out;
}

}  // namespace dev_backend
