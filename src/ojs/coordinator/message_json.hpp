// message_json: the messages as JSON, and back.
//
// As proto3 writes JSON: names in lowerCamelCase, enumerations by name, 64-bit numbers as strings, defaults left out.
// Read is more: snake_case names, enumerations by number, numbers as numbers or strings ("3", 3.0, 3e0), null for "not
// said", and unknown fields, which are ignored: a newer peer may send them. [RFC-041, WIRE 4]
//
// What is refused, with an error that names the field and repeats nothing of the text: what is not JSON or not UTF-8, a
// value of another type, a number out of its field's range, a field or a check that is there twice, and a state that is
// not known. That one is no default: the first state is RUNNING, which would hide that somebody shuts down.
#pragma once

#include <string>
#include <string_view>

#include "../base/error.hpp"
#include "detail/message_fields.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

result<void> read_fields(std::string_view json, const message_view& into);
std::string write_fields(const message_view& from);

}  // namespace detail

// read_message<shutdown_request>(body). errc::bad_answer where it is none. Thread-safe; never throws but for want of
// memory. The length is for the caller to limit: time and memory grow no faster, but a byte may come to take 300.
template <class Message>
result<Message> read_message(std::string_view json) {
    Message out;
    const result<void> read = detail::read_fields(json, detail::view_of(out));
    if (!read) return read.error();
    return out;
}

// By value: the table it walks is for reading as well, and wants places to write to. What is not UTF-8 becomes U+FFFD.
template <class Message>
std::string write_message(Message message) {
    return detail::write_fields(detail::view_of(message));
}

}  // namespace v0_1_0
}  // namespace ojs
