// Text helpers without streams: concatenation, number parsing, errno texts, UTF-8, JSON strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "light.hpp"

namespace ojs::detail {

struct json_string {
    std::string_view text;
};

// One part of a concatenation: text, or a number to be written in decimal.
class text_part {
  public:
    text_part(std::string_view text) noexcept : text_(text), kind_(kind::text) {}
    text_part(const std::string& text) noexcept : text_(text), kind_(kind::text) {}
    text_part(const char* text) noexcept : text_(text), kind_(kind::text) {}
    text_part(json_string quoted) noexcept : text_(quoted.text), kind_(kind::json) {}
    template <class Number, std::enable_if_t<std::is_integral_v<Number>, int> = 0>
    text_part(Number number) noexcept
        : number_(static_cast<unsigned long long>(number)),
          kind_(std::is_signed_v<Number> ? kind::integer : kind::natural) {}

    bool is_number() const noexcept { return kind_ == kind::integer || kind_ == kind::natural; }
    std::size_t size() const noexcept { return is_number() ? 5 : text_.size() + 2; }  // about
    void append_to(std::string& out) const;

  private:
    enum class kind : unsigned char { text, json, integer, natural };
    std::string_view text_;
    unsigned long long number_ = 0;
    kind kind_;
};

// cat({"job ", 7, " lost"}) == "job 7 lost"; append() adds to `out`. Lists, not parameter packs, which would compile
// one function for each mix of types.
inline void append(std::string& out, std::initializer_list<text_part> parts) {
    for (const text_part& part : parts) part.append_to(out);
}

inline std::string cat(std::initializer_list<text_part> parts) {
    std::string out;
    std::size_t size = 0;
    for (const text_part& part : parts) size += part.size();
    out.reserve(size);
    append(out, parts);
    return out;
}

// Parses all of `text` as a decimal number in [0, max]; false if it is anything else.
inline bool parse_number(std::string_view text, std::uint64_t max, std::uint64_t& out) noexcept {
    if (text.empty()) return false;
    std::uint64_t number = 0;
    for (const char c : text) {
        if (c < '0' || c > '9') return false;
        const auto digit = static_cast<std::uint64_t>(c - '0');
        if (number > (max - digit) / 10 || digit > max) return false;
        number = number * 10 + digit;
    }
    out = number;
    return true;
}

// As parse_number(), but of no digits 0; a failure changes `out`, too.
inline bool parse_hex(std::string_view text, std::uint64_t max, std::uint64_t& out) noexcept {
    out = 0;
    for (const char c : text) {
        const std::uint64_t at = std::string_view("0123456789abcdefABCDEF").find(c);
        const std::uint64_t digit = at < 16 ? at : at - 6;
        if (out > max / 16 || digit > max - out * 16) return false;
        out = out * 16 + digit;
    }
    return true;
}

// strerror_r has two signatures, GNU and POSIX; overloading accepts either.
inline const char* strerror_text(int /*failed*/, const char* buffer) {
    return buffer;
}
inline const char* strerror_text(const char* text, const char* /*buffer*/) {
    return text;
}

// "Connection refused (errno 111)"
inline std::string errno_text(int sys_errno) {
    char buffer[128] = "unknown error";
    return cat(
        {strerror_text(strerror_r(sys_errno, buffer, sizeof buffer), buffer), " (errno ", sys_errno, ")"});
}

// The length in bytes of the UTF-8 sequence at the front of a text that is not empty; 0 if there is none.
inline std::size_t utf8_length(std::string_view text) noexcept {
    const auto byte = [text](std::size_t i) {
        return static_cast<unsigned char>(i < text.size() ? text[i] : 0);
    };
    const unsigned first = byte(0);
    if (first < 0x80) return 1;
    if (first < 0xc2 || first > 0xf4) return 0;
    const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0U) != 0x80) return 0;
    }
    const unsigned second = byte(1);
    const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool surrogate = first == 0xed && second > 0x9f;
    const bool too_large = first == 0xf4 && second > 0x8f;
    return overlong || surrogate || too_large ? 0 : length;
}

// Removes and returns one character; U+FFFD for a byte that belongs to none.
inline std::string_view take_utf8(std::string_view& text) noexcept {
    const std::size_t length = utf8_length(text);
    const std::string_view out = length > 0 ? text.substr(0, length) : std::string_view("\xef\xbf\xbd");
    text.remove_prefix(length > 0 ? length : 1);
    return out;
}

inline bool is_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

// Replaces each byte that belongs to no character by U+FFFD.
inline std::string repair_utf8(std::string text) {
    if (is_utf8(text)) return text;
    std::string out;
    for (std::string_view rest = text; !rest.empty();) append(out, {take_utf8(rest)});
    return out;
}

// The code point of a character of up to three bytes; for a longer one, a value above all controls.
inline unsigned code_of(std::string_view character) noexcept {
    const auto first = static_cast<unsigned char>(character.front());
    unsigned code = character.size() == 1 ? first : first & (0x7fU >> character.size());
    for (const char next : character.substr(1))
        code = code << 6U | (static_cast<unsigned char>(next) & 0x3fU);
    return code;
}

// C0, DEL, C1, line separators, and bidirectional controls, which can disguise a text.
inline bool is_control(unsigned code) noexcept {
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e ||
           code == 0x200f || (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

inline std::string_view trim_blanks(std::string_view text, const char* blanks = " \t") noexcept {
    text.remove_suffix(text.size() - (text.find_last_not_of(blanks) + 1));
    const std::size_t first = text.find_first_not_of(blanks);
    return text.substr(first == std::string_view::npos ? 0 : first);
}

// Removes and returns the part before the first of `separators`, which is removed as well.
inline std::string_view next_part(std::string_view& text, std::string_view separators) noexcept {
    const std::size_t end = text.find_first_of(separators);
    const std::string_view out = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return out;
}

// At most `max` bytes of `text` for a log line: control characters and bytes that are not UTF-8 are escaped.
inline std::string printable(std::string_view text, std::size_t max = 200) {
    std::string out;
    for (std::string_view rest = text.substr(0, max); !rest.empty();) {
        std::size_t length = utf8_length(rest);
        if (length > 0 && !is_control(code_of(rest.substr(0, length)))) {
            append(out, {rest.substr(0, length)});
        } else {
            char escaped[5];
            std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(rest.front()));
            out += escaped;
            length = 1;
        }
        rest.remove_prefix(length);
    }
    if (text.size() > max) out += "...";
    return out;
}

inline bool is_plain_in_json(char c) noexcept {
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

// For a character of up to 16 bits.
inline void append_json_escape(std::string& out, unsigned code) {
    if (code == '"' || code == '\\') {
        out += '\\';
        out += static_cast<char>(code);
        return;
    }
    append(out, {"\\u"});
    for (unsigned shift = 16; shift != 0;) out += "0123456789abcdef"[code >> (shift -= 4) & 0xfU];
}

// Appends `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
inline void append_json_string(std::string& out, std::string_view text) {
    out += '"';
    while (!text.empty()) {
        std::size_t plain = 0;
        while (plain < text.size() && is_plain_in_json(text[plain])) ++plain;
        out.append(text.data(), plain);
        text.remove_prefix(plain);
        if (text.empty()) break;
        const std::string_view character = take_utf8(text);
        const unsigned code = code_of(character);
        if (character.size() == 1 || is_control(code)) {
            append_json_escape(out, code);
        } else {
            append(out, {character});
        }
    }
    out += '"';
}

inline void text_part::append_to(std::string& out) const {
    switch (kind_) {
        case kind::text: out.append(text_.data(), text_.size()); return;
        case kind::json: return append_json_string(out, text_);
        case kind::integer: out += std::to_string(static_cast<long long>(number_)); return;
        case kind::natural: out += std::to_string(number_); return;
    }
}

// Quotes `text` as a JSON string. Bytes that are not UTF-8 become U+FFFD.
inline std::string json_quote(std::string_view text) {
    return cat({json_string{text}});
}

inline bool contains(const std::vector<std::string>& texts, std::string_view text) noexcept {
    for (const std::string& candidate : texts) {
        if (candidate == text) return true;
    }
    return false;
}

inline bool starts_with(std::string_view text, std::string_view prefix) {
    return text.substr(0, prefix.size()) == prefix;
}
inline bool has_part(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}
inline bool is_listed(std::string_view word, std::string_view space_separated) {
    while (!space_separated.empty()) {
        if (next_part(space_separated, " ") == word) return true;
    }
    return false;
}

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

}  // namespace ojs::detail
