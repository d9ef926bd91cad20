#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "../base/detail/text.hpp"
#include "../net/json_view.ipp"
#include "message_json.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// ---- the messages, as RFC-041 lists them ----

inline constexpr const char* shutdown_state_names[] = {"RUNNING",          "SHUTDOWN_REQUESTED", "SHUTDOWN_DRAINING",
                                                       "SHUTDOWN_BLOCKED", "SHUTDOWN_COMPLETE",  "SHUTDOWN_FORCED"};
inline constexpr const char* readiness_state_names[] = {"STARTING", "WARMING", "READY", "DRAINING", "UNHEALTHY"};
template <>
inline constexpr enum_type enum_of<shutdown_state>{"ShutdownStatus.State", shutdown_state_names, 6};
template <>
inline constexpr enum_type enum_of<readiness_state>{"ReadinessResponse.ReadinessState", readiness_state_names, 5};

template <class Enum>
const char* enum_name(Enum value) noexcept {
    const auto place = static_cast<std::size_t>(value);  // a negative one is beyond them all
    return place < enum_of<Enum>.count ? enum_of<Enum>.values[place] : "UNKNOWN";
}

using item = message_field;

OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_request& body, adl_tag) {
    return {"ShutdownRequest",
            {item("process_id", body.process_id), item("reason", body.reason),
             item("grace_period_seconds", body.grace_period_seconds),
             item("max_shutdown_seconds", body.max_shutdown_seconds)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_ack& body, adl_tag) {
    return {"ShutdownAck",
            {item("acknowledged", body.acknowledged), item("estimated_seconds", body.estimated_seconds),
             item("message", body.message)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_status_request& body, adl_tag) {
    return {"ShutdownStatusRequest", {item("process_id", body.process_id)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_status& body, adl_tag) {
    return {"ShutdownStatus",
            {item("state", body.state), item("message", body.message), item("metrics", body.metrics),
             item("need_more_time", body.need_more_time), item("additional_seconds", body.additional_seconds)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_metrics& body, adl_tag) {
    return {"ShutdownMetrics",
            {item("in_flight_requests", body.in_flight_requests), item("open_connections", body.open_connections),
             item("buffered_bytes", body.buffered_bytes), item("blocking_operations", body.blocking_operations)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_complete& body, adl_tag) {
    return {"ShutdownComplete",
            {item("process_id", body.process_id), item("message", body.message),
             item("shutdown_duration_ms", body.shutdown_duration_ms)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(shutdown_complete_ack& body, adl_tag) {
    return {"ShutdownCompleteAck", {item("acknowledged", body.acknowledged)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(readiness_request& body, adl_tag) {
    return {"ReadinessRequest", {item("process_id", body.process_id)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(readiness_response& body, adl_tag) {
    return {"ReadinessResponse",
            {item("state", body.state), item("message", body.message), item("checks", body.checks)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(readiness_checks& body, adl_tag) {
    return {"ReadinessChecks",
            {item("grpc_server_ready", body.grpc_server_ready), item("backend_connected", body.backend_connected),
             item("backend_warmed", body.backend_warmed), item("custom_checks", body.custom_checks)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(ready_notification& body, adl_tag) {
    return {"ReadyNotification", {item("process_id", body.process_id), item("message", body.message)}};
}
OJS_SHUTDOWN_INLINE message_view json_fields(ready_ack& body, adl_tag) {
    return {"ReadyAck", {item("acknowledged", body.acknowledged)}};
}

inline constexpr std::chrono::milliseconds max_shutdown_time{std::chrono::hours(24)};

// Rounded up, and at least 1: 0 would mean "not set".
inline std::int32_t wire_seconds(std::chrono::milliseconds time) noexcept {
    const auto ms = std::min(time, max_shutdown_time).count();
    return ms < 1 ? 1 : static_cast<std::int32_t>((ms + 999) / 1000);
}

// The time a message sets, or `fallback` if it sets none.
inline std::chrono::milliseconds time_or(std::int32_t seconds, std::chrono::milliseconds fallback) noexcept {
    return std::min(seconds == 0 ? fallback : std::chrono::seconds(seconds), max_shutdown_time);
}

// "shutdown_duration_ms" is "shutdownDurationMs".
inline std::string camel_case(std::string_view name) {
    std::string out;
    bool raise = false;
    for (const char c : name) {
        if (c != '_') out += raise ? static_cast<char>(c - 'a' + 'A') : c;
        raise = c == '_';
    }
    return out;
}

// ---- writing ----

// Each enumeration has the representation of an int32.
inline std::string number_json(const message_field& from) {
    if (from.kind == field_kind::int64) {
        const std::int64_t wide = *static_cast<const std::int64_t*>(from.value);
        return wide == 0 ? "" : cat({"\"", wide, "\""});
    }
    std::int32_t number = 0;
    std::memcpy(&number, from.value, sizeof number);
    if (number == 0) return "";
    const bool has_name = from.enumerated != nullptr && static_cast<std::uint64_t>(number) < from.enumerated->count;
    return has_name ? json_quote(from.enumerated->values[number]) : cat({number});
}

inline std::string texts_json(const std::vector<std::string>& texts) {
    std::string out;
    for (const std::string& each : texts) append(out, {out.empty() ? "[" : ",", json_quote(each)});
    return out.empty() ? out : out + "]";
}

inline std::string checks_json(const std::vector<readiness_check>& checks) {
    std::string out;
    for (auto each = checks.begin(); each != checks.end(); ++each) {
        const auto same_name = [&](const readiness_check& later) { return later.name == each->name; };
        if (std::any_of(each + 1, checks.end(), same_name)) continue;
        append(out, {out.empty() ? "{" : ",", json_quote(each->name), each->passed ? ":true" : ":false"});
    }
    return out.empty() ? out : out + "}";
}

inline std::string fields_json(const array<message_field>& fields);

inline std::string messages_json(const message_field& from) {
    std::string out;
    for (std::size_t i = 0; i < from.size(from.value); ++i)
        append(out, {out.empty() ? "[" : ",", write_fields(from.element(from.value, i))});
    return out.empty() ? out : out + "]";
}

// Empty for a default, which is not sent.
inline std::string value_json(const message_field& from) {
    switch (from.kind) {
        case field_kind::text: {
            const std::string& text = *static_cast<const std::string*>(from.value);
            return text.empty() ? text : json_quote(text);
        }
        case field_kind::flag: return *static_cast<const bool*>(from.value) ? "true" : "";
        case field_kind::texts: return texts_json(*static_cast<const std::vector<std::string>*>(from.value));
        case field_kind::checks: return checks_json(*static_cast<const std::vector<readiness_check>*>(from.value));
        case field_kind::int32:
        case field_kind::int64:
        case field_kind::enumeration: return number_json(from);
        case field_kind::message: return fields_json(from.fields);
        case field_kind::messages: return messages_json(from);
    }
    return "";
}

inline std::string fields_json(const array<message_field>& fields) {
    std::string out;
    for (const message_field& each : fields) {
        const std::string value = value_json(each);
        if (!value.empty()) append(out, {out.empty() ? "{\"" : ",\"", camel_case(each.name), "\":", value});
    }
    return out.empty() ? out : out + "}";
}

OJS_SHUTDOWN_INLINE std::string write_fields(const message_view& from) {
    const std::string out = fields_json(from.fields);
    return out.empty() ? "{}" : out;
}

// ---- reading: each returns the fault, with the path to it; empty if there is none ----

// The digits after the `e` of a number, saturated at 10^12.
inline std::int64_t decimal_exponent(std::string_view text) noexcept {
    constexpr std::int64_t far = 1000000000000;
    if (text.empty()) return 0;
    const bool negative = text.front() == '-';
    std::int64_t out = 0;
    for (const char c : text) {
        if (c >= '0' && c <= '9' && out < far) out = out * 10 + (c - '0');
    }
    return negative ? -out : out;
}

// The exact whole number in `source`, also written as 3.0 or 3e0. False beyond the range.
inline bool read_whole_number(std::string_view source, std::uint64_t max, std::int64_t& out) {
    if (!is_json_number(source)) return false;
    const bool negative = source.front() == '-';
    if (negative) source.remove_prefix(1);
    const std::size_t e = source.find_first_of("eE");
    std::string digits(source.substr(0, e));
    const std::size_t point = std::min(digits.find('.'), digits.size());
    digits.erase(point, 1);
    const std::size_t zeros = digits.find_first_not_of('0');
    if (zeros == std::string::npos) {
        out = 0;
        return true;
    }
    digits.erase(digits.find_last_not_of('0') + 1);
    digits.erase(0, zeros);
    const std::int64_t exponent = e == std::string_view::npos ? 0 : decimal_exponent(source.substr(e + 1));
    const std::int64_t length = exponent + static_cast<std::int64_t>(point) - static_cast<std::int64_t>(zeros);
    if (length < static_cast<std::int64_t>(digits.size()) || length > 19) return false;
    digits.resize(static_cast<std::size_t>(length), '0');
    std::uint64_t magnitude = 0;
    if (!parse_number(digits, max + (negative ? 1 : 0), magnitude)) return false;
    out = static_cast<std::int64_t>(negative ? 0 - magnitude : magnitude);
    return true;
}

inline std::string read_number_or_fault(const message_field& into, std::string_view source, std::int64_t& out) {
    const bool is_wide = into.kind == field_kind::int64;
    std::string text;
    const std::string_view number = read_json_string(source, text) ? text : source;
    if (read_whole_number(number, is_wide ? INT64_MAX : INT32_MAX, out)) return "";
    return is_wide ? ": must be a 64-bit integer" : ": must be a 32-bit integer";
}

inline std::string read_enumeration_or_fault(const enum_type& type, std::string_view source, std::int64_t& out) {
    std::string name;
    if (read_json_string(source, name)) {
        for (std::size_t each = 0; each < type.count; ++each) {
            out = static_cast<std::int64_t>(each);
            if (name == type.values[each]) return "";
        }
    } else if (read_whole_number(source, type.count - 1, out) && out >= 0) {
        return "";
    }
    return cat({": must be a known ", type.name});
}

inline std::string read_texts_or_fault(std::string_view source, std::vector<std::string>& out) {
    if (source.front() != '[') return ": must be a list";
    for (const auto& each : json_view(source)) {
        out.emplace_back();
        if (!read_json_string(each.value.text(), out.back())) return cat({"[", out.size() - 1, "]: must be a string"});
    }
    return "";
}

inline std::string read_checks_or_fault(std::string_view source, std::vector<readiness_check>& out) {
    if (source.front() != '{') return ": must be an object";
    std::vector<std::string> names;
    for (const auto& each : json_view(source)) {
        const result<bool> passed = each.value.boolean();
        if (!passed) return ": must be an object of true and false";
        names.push_back(each.key.string().value_or(""));
        out.push_back({names.back(), *passed});
    }
    std::sort(names.begin(), names.end());
    return std::adjacent_find(names.begin(), names.end()) == names.end() ? "" : ": duplicate name";
}

inline std::string read_members_or_fault(std::string_view object, const array<message_field>& fields);

inline std::string read_messages_or_fault(std::string_view source, const message_field& into) {
    if (source.front() != '[') return ": must be a list";
    std::size_t i = 0;
    for (const auto& each : json_view(source)) {
        const std::string fault = read_members_or_fault(each.value.text(), into.element(into.value, i).fields);
        if (!fault.empty()) return cat({"[", i, "]", fault});
        ++i;
    }
    return "";
}

inline std::string read_value_or_fault(const message_field& into, std::string_view source) {
    if (source == "null") return "";
    std::int64_t number = 0;
    std::string fault;
    switch (into.kind) {
        case field_kind::text:
            return read_json_string(source, *static_cast<std::string*>(into.value)) ? "" : ": must be a string";
        case field_kind::flag:
            *static_cast<bool*>(into.value) = source == "true";
            return source == "true" || source == "false" ? "" : ": must be true or false";
        case field_kind::texts: return read_texts_or_fault(source, *static_cast<std::vector<std::string>*>(into.value));
        case field_kind::checks:
            return read_checks_or_fault(source, *static_cast<std::vector<readiness_check>*>(into.value));
        case field_kind::int32:
        case field_kind::int64: fault = read_number_or_fault(into, source, number); break;
        case field_kind::enumeration: fault = read_enumeration_or_fault(*into.enumerated, source, number); break;
        case field_kind::message: return read_members_or_fault(source, into.fields);
        case field_kind::messages: return read_messages_or_fault(source, into);
    }
    if (!fault.empty()) return fault;
    const auto narrow = static_cast<std::int32_t>(number);
    if (into.kind == field_kind::int64) *static_cast<std::int64_t*>(into.value) = number;
    if (into.kind != field_kind::int64) std::memcpy(into.value, &narrow, sizeof narrow);
    return "";
}

// Null for an unknown name, which a newer peer may send.
inline const message_field* find_field(const array<message_field>& fields, std::string_view name) {
    for (const message_field& each : fields) {
        if (name == each.name || name == camel_case(each.name)) return &each;
    }
    return nullptr;
}

inline std::string read_members_or_fault(std::string_view object, const array<message_field>& fields) {
    if (object.front() != '{') return ": must be an object";
    std::uint32_t seen = 0;
    for (const auto& each : json_view(object)) {
        const message_field* const found = find_field(fields, each.key.string().value_or(""));
        if (found == nullptr) continue;
        const std::uint32_t bit = 1U << static_cast<unsigned>(found - fields.begin());
        const std::string fault =
            (seen & bit) != 0 ? ": duplicate key" : read_value_or_fault(*found, each.value.text());
        if (!fault.empty()) return cat({".", found->name, fault});
        seen |= bit;
    }
    return "";
}

OJS_SHUTDOWN_INLINE result<void> read_fields(std::string_view json, const message_view& into) {
    const result<json_view> read = json_view::parse(json, json.size());
    if (!read) return read.error();
    const std::string fault = read_members_or_fault(read->text(), into.fields);
    if (fault.empty()) return {};
    return error{errc::bad_response, 0, cat({into.name, fault})};
}
}  // namespace detail

OJS_SHUTDOWN_INLINE const char* to_string(shutdown_state state) noexcept { return detail::enum_name(state); }
OJS_SHUTDOWN_INLINE const char* to_string(readiness_state state) noexcept { return detail::enum_name(state); }
}  // namespace v0_1_0
}  // namespace ojs
