#pragma once

#include "../base/detail/text.hpp"
#include "detail/http_parser.hpp"
#include "http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {

OJS_SHUTDOWN_INLINE std::string_view find_header(const http_headers& headers,
                                                 std::string_view name) noexcept {
    for (const http_header& header : headers) {
        if (detail::same_word(header.name, name)) return header.value;
    }
    return {};
}

namespace detail {

OJS_SHUTDOWN_INLINE bool same_word(std::string_view a, std::string_view b) noexcept {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (lower_ascii(a[i]) != lower_ascii(b[i])) return false;
    }
    return true;
}

inline bool is_token_char(char c) noexcept {
    const char low = lower_ascii(c);
    if ((low >= 'a' && low <= 'z') || (c >= '0' && c <= '9')) return true;
    return c != '\0' && std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

OJS_SHUTDOWN_INLINE bool is_token(std::string_view text) noexcept {
    for (const char c : text) {
        if (!is_token_char(c)) return false;
    }
    return !text.empty();
}

OJS_SHUTDOWN_INLINE bool is_field_value(std::string_view text) noexcept {
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if ((byte < 0x20 && c != '\t') || byte == 0x7f) return false;
    }
    return true;
}

OJS_SHUTDOWN_INLINE bool is_target(std::string_view text) noexcept {
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte <= 0x20 || byte == 0x7f) return false;
    }
    return !text.empty();
}

OJS_SHUTDOWN_INLINE bool has_list_word(const http_headers& headers, std::string_view name,
                                       std::string_view word) noexcept {
    for (const http_header& header : headers) {
        if (!same_word(header.name, name)) continue;
        std::string_view rest = header.value;
        while (!rest.empty()) {
            const std::size_t comma = rest.find(',');
            if (same_word(trim_blanks(rest.substr(0, comma)), word)) return true;
            rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
        }
    }
    return false;
}

OJS_SHUTDOWN_INLINE bool is_framing_header(std::string_view name) noexcept {
    return same_word(name, "Content-Length") || same_word(name, "Transfer-Encoding") ||
           same_word(name, "Connection");
}

OJS_SHUTDOWN_INLINE void append_header(std::string& head, std::string_view name, std::string_view value) {
    append(head, {name});
    append(head, {": "});
    append(head, {value});
    append(head, {"\r\n"});
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
