// message_fields: the table of the messages, which the reader and the writer of JSON walk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "../../base/detail/light.hpp"
#include "../messages.hpp"

namespace ojs::detail {

// The values of an enumeration, from 0 up. Its name holds that of the message it stands in: "ShutdownStatus.State".
struct enum_type {
    const char* name;
    const char* const* values;
    std::size_t count;
};

// Specialised for each enumeration: `static const enum_type& get() noexcept`.
template <class Enum>
struct enum_of;

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

// A list of messages, whatever their type is.
struct message_list {
    std::size_t (*size)(const void* list);
    message_view (*element)(void* list, std::size_t index);  // index == size: one is added
};

// A field of one message that exists: where its value is, and what it is called. The member's own type picks the kind, so
// no table can say it wrong.
struct message_field {
    message_field() = default;
    message_field(int no, const char* id, std::string& at) : message_field(no, id, &at, field_kind::text) {}
    message_field(int no, const char* id, bool& at) : message_field(no, id, &at, field_kind::flag) {}
    message_field(int no, const char* id, std::int32_t& at) : message_field(no, id, &at, field_kind::int32) {}
    message_field(int no, const char* id, std::int64_t& at) : message_field(no, id, &at, field_kind::int64) {}
    message_field(int no, const char* id, std::vector<std::string>& at)
        : message_field(no, id, &at, field_kind::texts) {}
    message_field(int no, const char* id, std::vector<readiness_check>& at)
        : message_field(no, id, &at, field_kind::checks) {}
    template <class Enum>
    message_field(int no, const char* id, Enum& at) : message_field(no, id, &at, field_kind::enumeration) {
        enumerated = &enum_of<Enum>::get();
    }
    template <class Message>
    message_field(int no, const char* id, std::vector<Message>& at);
    message_field(int number, const char* name, message_view value);

    int number = 0;         // from 1, as in the .proto
    const char* name = "";  // as there, in snake_case
    field_kind kind = field_kind::message;
    void* value = nullptr;                  // null for a message
    const enum_type* enumerated = nullptr;  // of an enumeration
    message_list list = {};                 // of a repeated message
    const char* message_name = "";          // of a message, as are its fields
    array<message_field> fields;

  private:
    message_field(int number, const char* name, void* value, field_kind kind);
};

// Good for as long as the message stays where it is.
struct message_view {
    const char* name;
    array<message_field> fields;
};

// Finds the description of a message here, by its second argument, wherever it is declared.
struct in_detail {};
message_view describe(shutdown_request& message, in_detail);
message_view describe(shutdown_ack& message, in_detail);
message_view describe(shutdown_status_request& message, in_detail);
message_view describe(shutdown_status& message, in_detail);
message_view describe(shutdown_metrics& message, in_detail);
message_view describe(shutdown_complete& message, in_detail);
message_view describe(shutdown_complete_ack& message, in_detail);
message_view describe(readiness_request& message, in_detail);
message_view describe(readiness_response& message, in_detail);
message_view describe(readiness_checks& message, in_detail);
message_view describe(ready_notification& message, in_detail);
message_view describe(ready_ack& message, in_detail);

template <class Message>
message_view view_of(Message& message) {
    return describe(message, in_detail{});
}

template <class Message>
message_field::message_field(int no, const char* id, std::vector<Message>& at)
    : message_field(no, id, &at, field_kind::messages) {
    list.size = [](const void* all) { return static_cast<const std::vector<Message>*>(all)->size(); };
    list.element = [](void* all, std::size_t index) {
        auto& messages = *static_cast<std::vector<Message>*>(all);
        if (index == messages.size()) messages.emplace_back();
        return view_of(messages[index]);
    };
}

// What a service's methods take and give.
struct rpc_method {
    const char* name;
    const char* request;
    const char* answer;
};

inline constexpr rpc_method lifecycle_methods[] = {
    {"Shutdown", "ShutdownRequest", "ShutdownAck"},
    {"GetShutdownStatus", "ShutdownStatusRequest", "ShutdownStatus"},
    {"NotifyShutdownComplete", "ShutdownComplete", "ShutdownCompleteAck"},
    {"GetReadinessStatus", "ReadinessRequest", "ReadinessResponse"},
    {"NotifyReady", "ReadyNotification", "ReadyAck"},
};

}  // namespace ojs::detail
