#pragma once

#include "../base/detail/text.hpp"
#include "http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// A method or a header name.
inline bool is_token(std::string_view text) noexcept {
    constexpr std::string_view others = "!#$%&'*+-.^_`|~";
    return !text.empty() && all_of(text, [&](char c) { return is_alphanumeric(c) || others.find(c) != others.npos; });
}

inline bool is_field_value(std::string_view text) noexcept {
    return all_of(text, [](char c) { return c == '\t' || !is_ascii_control(c); });
}

inline bool is_target(std::string_view text) noexcept {
    return !text.empty() && all_of(text, [](char c) { return c != ' ' && !is_ascii_control(c); });
}

// Whether a comma-separated header ("keep-alive, close") contains `word`.
inline bool has_list_word(std::string_view header, std::string_view word) noexcept {
    while (!header.empty()) {
        if (equals_ignore_case(trim_blanks(next_part(header, ",")), word)) return true;
    }
    return false;
}

// Whether only the library sets this header.
inline bool is_framing_header(std::string_view name) noexcept {
    return has_list_word("Content-Length,Transfer-Encoding,Connection", name);
}

// Unless it is there.
inline void add_header(http_headers& headers, const char* name, std::string value) {
    if (find_header(headers, name).data() == nullptr) headers.insert(headers.begin(), {name, std::move(value)});
}

inline void append_header(std::string& head, std::string_view name, std::string_view value) {
    append(head, {name, ": ", value, "\r\n"});
}
}  // namespace detail

OJS_SHUTDOWN_INLINE std::string_view find_header(const http_headers& headers, std::string_view name) noexcept {
    for (const http_header& header : headers) {
        if (detail::equals_ignore_case(header.name, name)) return header.value;
    }
    return {};
}
}  // namespace v0_1_0
}  // namespace ojs
