// schemas: the request schemas of OJS as a table; they all refuse members they do not list.
#include "schemas.hpp"

#include <picojson.h>

#include <algorithm>
#include <exception>
#include <vector>

namespace probe {
namespace {

enum class shape { text, texts, whole, flag, object, anything };

struct field {
    const char* name;
    shape of;
    bool required;
};
using fields = std::vector<field>;

const fields fetch_fields = {{"queues", shape::texts, true},
                             {"count", shape::whole, false},
                             {"worker_id", shape::text, false},
                             {"visibility_timeout_ms", shape::whole, false}};
const fields ack_fields = {{"job_id", shape::text, true}, {"result", shape::anything, false}};
const fields fail_fields = {{"job_id", shape::text, true}, {"error", shape::object, true}};
const fields error_fields = {{"code", shape::text, true},
                             {"message", shape::text, true},
                             {"retryable", shape::flag, false},
                             {"details", shape::object, false}};
const fields beat_fields = {{"worker_id", shape::text, true},
                            {"active_jobs", shape::texts, false},
                            {"visibility_timeout_ms", shape::whole, false}};
const std::vector<std::string> error_codes = {
    "handler_error", "timeout",      "cancelled", "invalid_payload", "invalid_request",   "not_found",
    "backend_error", "rate_limited", "duplicate", "queue_paused",    "schema_validation", "unsupported"};

bool is_text(const picojson::value& value) {
    return value.is<std::string>() && !value.get<std::string>().empty();
}

bool fits(const picojson::value& value, shape wanted) {
    switch (wanted) {
        case shape::text: return is_text(value);
        case shape::whole: return value.is<double>() && value.get<double>() >= 1;
        case shape::flag: return value.is<bool>();
        case shape::object: return value.is<picojson::object>();
        case shape::anything: return true;
        case shape::texts: break;
    }
    if (!value.is<picojson::array>()) return false;
    const picojson::array& items = value.get<picojson::array>();
    return std::all_of(items.begin(), items.end(), is_text);
}

std::string fault(const picojson::value& object, const fields& allowed) {
    if (!object.is<picojson::object>()) return "not an object";
    const picojson::object& members = object.get<picojson::object>();
    for (const field& each : allowed) {
        const auto found = members.find(each.name);
        if (found == members.end() && each.required) return std::string(each.name) + " is missing";
        if (found != members.end() && !fits(found->second, each.of))
            return std::string(each.name) + " has the wrong type";
    }
    for (const auto& member : members) {
        const bool known = std::any_of(allowed.begin(), allowed.end(),
                                       [&](const field& each) { return member.first == each.name; });
        if (!known) return "unknown member " + member.first.substr(0, 40);
    }
    return "";
}

}  // namespace

std::string schema_fault(kind what, const std::string& body) {
    picojson::value parsed;
    std::string why;
    try {
        picojson::parse(parsed, body.begin(), body.end(), &why);
    } catch (const std::exception&) {
        return "not JSON";
    }
    if (what == kind::other) return "";
    if (!why.empty()) return "not JSON";
    if (what == kind::fetch) return fault(parsed, fetch_fields);
    if (what == kind::ack) return fault(parsed, ack_fields);
    if (what == kind::beat) return fault(parsed, beat_fields);
    why = fault(parsed, fail_fields);
    if (!why.empty()) return why;
    const picojson::value& error = parsed.get("error");
    why = fault(error, error_fields);
    if (!why.empty()) return "error: " + why;
    const std::string& code = error.get("code").get<std::string>();
    const bool known = std::find(error_codes.begin(), error_codes.end(), code) != error_codes.end();
    return known ? "" : "error.code is not one of the list";
}

}  // namespace probe
