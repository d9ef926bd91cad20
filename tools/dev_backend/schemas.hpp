// schemas: the published JSON schemas of a worker's four requests, as tables.
#pragma once

#include <picojson.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

namespace schemas {

enum class kind { text, texts, whole_number, flag, object, any };

struct table;

// One member of an object.
struct field {
    const char* name;
    kind what;
    bool required = false;
    double least = 0;                            // of a number, or of the number of texts
    bool (*fits)(const std::string&) = nullptr;  // of a text, or of each of the texts
    const table* members = nullptr;              // of an object; null: any
};

struct table {
    const field* begin_;
    const field* end_;
    const field* begin() const { return begin_; }
    const field* end() const { return end_; }
};
template <std::size_t Count>
constexpr table table_of(const field (&fields)[Count]) {
    return {fields, fields + Count};
}

inline bool not_empty(const std::string& text) {
    return !text.empty();
}
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
inline bool is_error_code(const std::string& text) {
    constexpr std::array<std::string_view, 12> known = {
        "handler_error", "timeout",      "cancelled", "invalid_payload", "invalid_request",   "not_found",
        "backend_error", "rate_limited", "duplicate", "queue_paused",    "schema_validation", "unsupported"};
    return std::find(known.begin(), known.end(), text) != known.end();
}

inline constexpr field error_fields[] = {
    {"code", kind::text, true, 0, is_error_code},
    {"message", kind::text, true, 0, not_empty},
    {"retryable", kind::flag},
    {"details", kind::object},
};
inline constexpr table error_table = table_of(error_fields);
inline constexpr field fetch_fields[] = {
    {"queues", kind::texts, true, 1, is_queue_name},
    {"count", kind::whole_number, false, 1},
    {"worker_id", kind::text, false, 0, not_empty},
    {"visibility_timeout_ms", kind::whole_number, false, 1000},
};
inline constexpr field ack_fields[] = {
    {"job_id", kind::text, true, 0, is_uuid7},
    {"result", kind::any},
};
inline constexpr field nack_fields[] = {
    {"job_id", kind::text, true, 0, is_uuid7},
    {"error", kind::object, true, 0, nullptr, &error_table},
};
inline constexpr field heartbeat_fields[] = {
    {"worker_id", kind::text, true, 0, not_empty},
    {"active_jobs", kind::texts},
    {"visibility_timeout_ms", kind::whole_number, false, 1000},
};

struct route_schema {
    std::string_view path;
    table fields;
};
inline constexpr route_schema route_schemas[] = {
    {"/ojs/v1/workers/fetch", table_of(fetch_fields)},
    {"/ojs/v1/workers/ack", table_of(ack_fields)},
    {"/ojs/v1/workers/nack", table_of(nack_fields)},
    {"/ojs/v1/workers/heartbeat", table_of(heartbeat_fields)},
};

std::string fault_of(const picojson::value& object, const table& fields);

inline bool fits_texts(const picojson::value& value, const field& rule) {
    if (!value.is<picojson::array>()) return false;
    const picojson::array& items = value.get<picojson::array>();
    return static_cast<double>(items.size()) >= rule.least &&
           std::all_of(items.begin(), items.end(), [&](const picojson::value& item) {
               return item.is<std::string>() && (rule.fits == nullptr || rule.fits(item.get<std::string>()));
           });
}

inline bool fits(const picojson::value& value, const field& rule) {
    switch (rule.what) {
        case kind::text:
            return value.is<std::string>() && (rule.fits == nullptr || rule.fits(value.get<std::string>()));
        case kind::texts: return fits_texts(value, rule);
        case kind::whole_number:
            return value.is<double>() && value.get<double>() >= rule.least &&
                   std::floor(value.get<double>()) >= value.get<double>();
        case kind::flag: return value.is<bool>();
        case kind::object: return value.is<picojson::object>();
        case kind::any: break;
    }
    return true;
}

// The first violation, naming the member; empty: none. Unknown members are refused, as by the schemas.
inline std::string fault_of(const picojson::value& object, const table& fields) {
    if (!object.is<picojson::object>()) return "the body is not a JSON object";
    const picojson::object& members = object.get<picojson::object>();
    for (const auto& [name, value] : members) {
        const auto* rule = std::find_if(fields.begin(), fields.end(),
                                        [&key = name](const field& each) { return key == each.name; });
        if (rule == fields.end()) return "unknown member " + name;
        if (!fits(value, *rule)) return name + " is not what the schema says";
        if (rule->members == nullptr) continue;
        const std::string inside = fault_of(value, *rule->members);
        if (!inside.empty()) return name + ": " + inside;
    }
    for (const field& each : fields) {
        if (each.required && members.count(each.name) == 0) return std::string(each.name) + " is missing";
    }
    return {};
}

// Likewise for a request of a worker; empty for other routes.
inline std::string fault_of_request(std::string_view path, const picojson::value& body) {
    for (const route_schema& each : route_schemas) {
        if (path == each.path) return fault_of(body, each.fields);
    }
    return {};
}

}  // namespace schemas
