// schemas: the published JSON schemas of a worker's four requests, as tables.
#pragma once

#include <picojson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace schemas {
// One member of an object.
struct field {
    const char* name;
    bool required;
    bool (*fits)(const picojson::value&);
};

inline bool is_queue_name(const std::string& text) {
    constexpr std::string_view first = "abcdefghijklmnopqrstuvwxyz0123456789";
    return !text.empty() && first.find(text[0]) != std::string_view::npos &&
           text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-.") == std::string::npos;
}
// xxxxxxxx-xxxx-7xxx-[89ab]xxx-xxxxxxxxxxxx
inline bool is_uuid7(const std::string& text) {
    constexpr std::string_view shape = "xxxxxxxx-xxxx-7xxx-vxxx-xxxxxxxxxxxx";
    if (text.size() != shape.size()) return false;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        const std::string_view allowed = shape[i] == 'x'   ? std::string_view("0123456789abcdef")
                                         : shape[i] == 'v' ? std::string_view("89ab")
                                                           : shape.substr(i, 1);
        if (allowed.find(text[i]) == std::string_view::npos) return false;
    }
    return true;
}

inline bool is_text(const picojson::value& value) { return value.is<std::string>(); }
inline bool is_full_text(const picojson::value& value) { return is_text(value) && !value.get<std::string>().empty(); }
inline bool is_job_id(const picojson::value& value) { return is_text(value) && is_uuid7(value.get<std::string>()); }
inline bool is_queue(const picojson::value& value) { return is_text(value) && is_queue_name(value.get<std::string>()); }
inline bool is_array_of(const picojson::value& value, bool (*fits)(const picojson::value&)) {
    if (!value.is<picojson::array>()) return false;
    const picojson::array& items = value.get<picojson::array>();
    return std::all_of(items.begin(), items.end(), fits);
}
inline bool are_texts(const picojson::value& value) { return is_array_of(value, is_text); }
inline bool are_queues(const picojson::value& value) {
    return is_array_of(value, is_queue) && !value.get<picojson::array>().empty();
}
inline bool is_whole_from(const picojson::value& value, double min) {
    return value.is<double>() && value.get<double>() >= min && std::floor(value.get<double>()) >= value.get<double>();
}
inline bool is_count(const picojson::value& value) { return is_whole_from(value, 1); }
inline bool is_lease(const picojson::value& value) { return is_whole_from(value, 1000); }
inline bool is_flag(const picojson::value& value) { return value.is<bool>(); }
inline bool is_object(const picojson::value& value) { return value.is<picojson::object>(); }
inline bool is_any(const picojson::value&) { return true; }
inline bool is_error_code(const picojson::value& value) {
    constexpr std::array<std::string_view, 12> known = {
        "handler_error", "timeout",      "cancelled", "invalid_payload", "invalid_request",   "not_found",
        "backend_error", "rate_limited", "duplicate", "queue_paused",    "schema_validation", "unsupported"};
    return is_text(value) && std::find(known.begin(), known.end(), value.get<std::string>()) != known.end();
}

// The first violation, naming the member; empty: none. Unknown members are refused, as by the schemas.
inline std::string fault_of(const picojson::value& object, const std::vector<field>& fields) {
    if (!is_object(object)) return "the body is not a JSON object";
    const picojson::object& members = object.get<picojson::object>();
    for (const auto& [name, value] : members) {
        const auto rule =
            std::find_if(fields.begin(), fields.end(), [&key = name](const field& each) { return key == each.name; });
        if (rule == fields.end()) return "unknown member " + name;
        if (!rule->fits(value)) return name + " is not what the schema says";
    }
    for (const field& each : fields) {
        if (each.required && members.count(each.name) == 0) return std::string(each.name) + " is missing";
    }
    return {};
}

// Likewise for a request of a worker; empty for other routes.
inline std::string fault_of_request(std::string_view path, const picojson::value& body) {
    const field lease{"visibility_timeout_ms", false, is_lease};
    if (path == "/ojs/v1/workers/fetch")
        return fault_of(
            body,
            {{"queues", true, are_queues}, {"count", false, is_count}, {"worker_id", false, is_full_text}, lease});
    if (path == "/ojs/v1/workers/ack") return fault_of(body, {{"job_id", true, is_job_id}, {"result", false, is_any}});
    if (path == "/ojs/v1/workers/heartbeat")
        return fault_of(body, {{"worker_id", true, is_full_text}, {"active_jobs", false, are_texts}, lease});
    if (path != "/ojs/v1/workers/nack") return {};
    const std::string fault = fault_of(body, {{"job_id", true, is_job_id}, {"error", true, is_object}});
    if (!fault.empty()) return fault;
    const std::string inside = fault_of(body.get("error"), {{"code", true, is_error_code},
                                                            {"message", true, is_full_text},
                                                            {"retryable", false, is_flag},
                                                            {"details", false, is_object}});
    return inside.empty() ? inside : "error: " + inside;
}
}  // namespace schemas
