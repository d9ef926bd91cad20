#pragma once

#include "../base/detail/text.hpp"
#include "http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {

namespace detail {

inline char lower_ascii(char c) noexcept {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}

inline bool equals_ignore_case(std::string_view a, std::string_view b) noexcept {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (lower_ascii(a[i]) != lower_ascii(b[i])) return false;
    }
    return true;
}

inline bool is_alphanumeric(char c) noexcept {
    const char low = lower_ascii(c);
    return (low >= 'a' && low <= 'z') || (c >= '0' && c <= '9');
}

inline bool is_token_char(char c) noexcept {
    return is_alphanumeric(c) ||
           (c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos);
}

inline bool is_ascii_control(char c) noexcept {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

template <class Predicate>
bool all_of(std::string_view text, Predicate holds) noexcept {
    for (const char c : text) {
        if (!holds(c)) return false;
    }
    return true;
}

// A method or a header name.
inline bool is_token(std::string_view text) noexcept {
    return !text.empty() && all_of(text, is_token_char);
}

inline bool is_field_value(std::string_view text) noexcept {
    return all_of(text, [](char c) { return c == '\t' || !is_ascii_control(c); });
}

inline bool is_target(std::string_view text) noexcept {
    return !text.empty() && all_of(text, [](char c) { return c != ' ' && !is_ascii_control(c); });
}

// Whether a comma-separated header ("Connection: keep-alive, close") contains `word`.
inline bool has_list_word(const http_headers& headers, std::string_view name,
                          std::string_view word) noexcept {
    for (const http_header& header : headers) {
        if (!equals_ignore_case(header.name, name)) continue;
        for (std::string_view rest = header.value; !rest.empty();) {
            if (equals_ignore_case(trim_blanks(next_part(rest, ",")), word)) return true;
        }
    }
    return false;
}

// Whether the library writes this header itself and ignores the caller's.
inline bool is_framing_header(std::string_view name) noexcept {
    return equals_ignore_case(name, "Content-Length") || equals_ignore_case(name, "Transfer-Encoding") ||
           equals_ignore_case(name, "Connection");
}

inline void append_header(std::string& head, std::string_view name, std::string_view value) {
    append(head, {name, ": ", value, "\r\n"});
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::string_view find_header(const http_headers& headers,
                                                 std::string_view name) noexcept {
    for (const http_header& header : headers) {
        if (detail::equals_ignore_case(header.name, name)) return header.value;
    }
    return {};
}

}  // namespace v0_1_0
}  // namespace ojs
