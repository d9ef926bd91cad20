// message_json: reads and writes the messages as JSON.
//
// Written as proto3's JSON: names in lowerCamelCase, enumerations by name, 64-bit numbers as strings, defaults left
// out. Read as well: snake_case names, enumerations by number, numbers as numbers or strings ("3", 3.0, 3e0), null for
// "not set", and unknown fields, which are ignored: a newer peer may send them. [RFC-041, WIRE 4]
//
// Refused, with an error that names the field and repeats nothing of the text: text that is not JSON or not UTF-8, a
// value of another type, a number out of its field's range, a duplicate field or check, and an unknown state. No
// default replaces an unknown state: the first state is RUNNING, which would hide a shutdown.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "../base/detail/light.hpp"
#include "../base/error.hpp"
#include "messages.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// The values of an enumeration, from 0 up. Its name includes its message: "ShutdownStatus.State".
struct enum_type {
    const char* name;
    const char* const* values;
    std::size_t count;
};
template <class Enum>
inline constexpr enum_type enum_of{};  // specialised for each one

enum class field_kind : unsigned char {
    text,
    flag,
    int32,
    int64,
    texts,   // repeated string
    checks,  // map<string, bool>
    enumeration,
    message,
    messages  // repeated message
};

struct message_view;

// A field of one existing message: its name, and where its value is. The member's type determines the kind. Its number
// in the .proto is its index in the table plus 1.
struct message_field {
    message_field() = default;
    message_field(const char* id, void* at, field_kind type) : name(id), kind(type), value(at) {}
    message_field(const char* id, std::string& at) : message_field(id, &at, field_kind::text) {}
    message_field(const char* id, bool& at) : message_field(id, &at, field_kind::flag) {}
    message_field(const char* id, std::int32_t& at) : message_field(id, &at, field_kind::int32) {}
    message_field(const char* id, std::int64_t& at) : message_field(id, &at, field_kind::int64) {}
    message_field(const char* id, std::vector<std::string>& at) : message_field(id, &at, field_kind::texts) {}
    message_field(const char* id, std::vector<readiness_check>& at) : message_field(id, &at, field_kind::checks) {}
    template <class Message>
    message_field(const char* id, std::vector<Message>& at);
    template <class Other>
    message_field(const char* id, Other& at);  // an enumeration, or a message

    const char* name = "";  // as in the .proto, in snake_case
    field_kind kind = field_kind::message;
    void* value = nullptr;                  // null for a message
    const enum_type* enumerated = nullptr;  // of an enumeration
    const char* message_name = "";          // of a message, as are its fields
    array<message_field> fields;
    // Only for a repeated message. element() with index == size appends one.
    std::size_t (*size)(const void* list) = nullptr;
    message_view (*element)(void* list, std::size_t index) = nullptr;
};

// Valid while the message is not moved.
struct message_view {
    const char* name;
    array<message_field> fields;
};

// A tag: finds describe() here by argument-dependent lookup, for messages of any namespace.
struct adl_tag {};
message_view json_fields(shutdown_request& message, adl_tag);
message_view json_fields(shutdown_ack& message, adl_tag);
message_view json_fields(shutdown_status_request& message, adl_tag);
message_view json_fields(shutdown_status& message, adl_tag);
message_view json_fields(shutdown_metrics& message, adl_tag);
message_view json_fields(shutdown_complete& message, adl_tag);
message_view json_fields(shutdown_complete_ack& message, adl_tag);
message_view json_fields(readiness_request& message, adl_tag);
message_view json_fields(readiness_response& message, adl_tag);
message_view json_fields(readiness_checks& message, adl_tag);
message_view json_fields(ready_notification& message, adl_tag);
message_view json_fields(ready_ack& message, adl_tag);

template <class Message>
message_view view_of(Message& message) {
    return json_fields(message, adl_tag{});
}

template <class Message>
message_field::message_field(const char* id, std::vector<Message>& at) : message_field(id, &at, field_kind::messages) {
    size = [](const void* all) { return static_cast<const std::vector<Message>*>(all)->size(); };
    element = [](void* all, std::size_t index) {
        auto& messages = *static_cast<std::vector<Message>*>(all);
        if (index == messages.size()) messages.emplace_back();
        return view_of(messages[index]);
    };
}

template <class Other>
message_field::message_field(const char* id, Other& at) : name(id) {
    if constexpr (std::is_enum_v<Other>) {
        kind = field_kind::enumeration;
        value = &at;
        enumerated = &enum_of<Other>;
    } else {
        message_view described = view_of(at);
        message_name = described.name;
        fields = std::move(described.fields);
    }
}

result<void> read_fields(std::string_view json, const message_view& into);
std::string write_fields(const message_view& from);
}  // namespace detail

/// Reads a message: `read_message<shutdown_request>(body)`. errc::bad_response: not such a message. Thread-safe; throws
/// only when out of memory. The caller limits the length: time and memory are linear, up to 300 bytes per byte of text.
template <class Message>
result<Message> read_message(std::string_view json) {
    Message out;
    const result<void> read = detail::read_fields(json, detail::view_of(out));
    if (!read) return read.error();
    return out;
}

/// Writes a message as JSON; invalid UTF-8 becomes U+FFFD. Takes it by value: the field table needs a mutable message.
template <class Message>
std::string write_message(Message message) {
    return detail::write_fields(detail::view_of(message));
}
}  // namespace v0_1_0
}  // namespace ojs
