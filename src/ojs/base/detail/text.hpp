// Texts without streams: concatenation, numbers, UTF-8, JSON strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "light.hpp"

namespace ojs::detail {
// Text, or a number to be written in decimal.
class text_part {
  public:
    text_part(std::string_view text) noexcept : text_(text) {}
    text_part(const std::string& text) noexcept : text_(text) {}
    text_part(const char* text) noexcept : text_(text) {}
    template <class Number, std::enable_if_t<std::is_integral_v<Number>, int> = 0>
    text_part(Number number) noexcept
        : text_(number < Number{} ? "-" : ""), magnitude_(static_cast<unsigned long long>(number)), is_number_(true) {
        if (!text_.empty()) magnitude_ = 0 - magnitude_;
    }

    bool is_number() const noexcept { return is_number_; }
    std::size_t size() const noexcept { return is_number_ ? 20 : text_.size(); }  // at most
    void append_to(std::string& out) const {
        out.append(text_.data(), text_.size());
        if (is_number_) out += std::to_string(magnitude_);
    }

  private:
    std::string_view text_;  // of a negative number "-"
    unsigned long long magnitude_ = 0;
    bool is_number_ = false;
};

// Lists: parameter packs would compile one function for each mix of types.
inline void append(std::string& out, std::initializer_list<text_part> parts) {
    for (const text_part& part : parts) part.append_to(out);
}

inline std::string cat(std::initializer_list<text_part> parts) {
    std::size_t size = 0;
    for (const text_part& part : parts) size += part.size();
    std::string out;
    out.reserve(size);
    append(out, parts);
    return out;
}

inline char lower_ascii(char c) noexcept { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

// All of `text` as a number up to `max`, in decimal or in base 16; false if it is anything else.
inline bool parse_number(std::string_view text, std::uint64_t max, std::uint64_t& out, unsigned base = 10) noexcept {
    if (text.empty()) return false;
    std::uint64_t number = 0;
    for (const char c : text) {
        const std::uint64_t digit = std::string_view("0123456789abcdef").find(lower_ascii(c));
        if (digit >= base || digit > max || number > (max - digit) / base) return false;
        number = number * base + digit;
    }
    out = number;
    return true;
}

std::string errno_text(int sys_errno);

// One character of a text, or a byte that belongs to none.
struct character {
    static constexpr unsigned none = ~0U;

    std::string_view bytes;
    unsigned code;  // its code point; none: not UTF-8

    std::string_view repaired() const noexcept { return code == none ? "\xef\xbf\xbd" : bytes; }
    // C0, DEL, C1, line separators, and bidirectional controls, which can disguise a text.
    bool is_control() const noexcept {
        return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x61c || code == 0x200e || code == 0x200f ||
               (code >= 0x2028 && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
    }
};

// Removes the first character of a text that is not empty, and returns it.
inline character take_character(std::string_view& text) noexcept {
    const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
    const unsigned first = byte(0);
    const std::size_t length = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    unsigned code = first & (0x7fU >> length);
    bool is_valid = first >= 0xc2 && first < 0xf5;
    for (std::size_t i = 1; i < length; ++i) {
        is_valid = is_valid && (byte(i) & 0xc0U) == 0x80;
        code = code << 6U | (byte(i) & 0x3fU);
    }
    // Too long a form, half of a surrogate pair, or above U+10FFFF.
    if (length == 3) is_valid = is_valid && code >= 0x800 && (code < 0xd800 || code >= 0xe000);
    if (length == 4) is_valid = is_valid && code >= 0x10000 && code <= 0x10ffff;
    const character out{text.substr(0, is_valid ? length : 1), first < 0x80 ? first
                                                               : is_valid   ? code
                                                                            : character::none};
    text.remove_prefix(out.bytes.size());
    return out;
}

inline bool is_utf8(std::string_view text) noexcept {
    while (!text.empty()) {
        if (take_character(text).code == character::none) return false;
    }
    return true;
}

inline std::string repair_utf8(std::string_view text) {
    std::string out;
    while (!text.empty()) append(out, {take_character(text).repaired()});
    return out;
}

inline std::string_view trim_blanks(std::string_view text, std::string_view blanks = " \t") noexcept {
    const auto is_blank = [blanks](char c) { return c <= ' ' && blanks.find(c) != blanks.npos; };
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    return text;
}

// Removes and returns the part before the first of `separators`, which is removed as well.
inline std::string_view next_part(std::string_view& text, std::string_view separators) noexcept {
    const std::size_t end = text.find_first_of(separators);
    const std::string_view out = text.substr(0, end);
    text.remove_prefix(end == text.npos ? text.size() : end + 1);
    return out;
}

// Escapes control characters and bytes that are not UTF-8. In JSON those bytes become U+FFFD.
inline void append_escaped(std::string& out, std::string_view text, bool is_json) {
    const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; };
    while (!text.empty()) {
        std::size_t plain = 0;
        while (plain < text.size() && is_plain(text[plain])) ++plain;
        out.append(text.data(), plain);
        text.remove_prefix(plain);
        if (text.empty()) return;
        const character next = take_character(text);
        char escaped[7];
        if (is_json && (next.bytes == "\"" || next.bytes == "\\")) {
            append(out, {"\\", next.bytes});
        } else if (!next.is_control() && (is_json || next.code != character::none)) {
            append(out, {next.repaired()});
        } else if (is_json) {
            std::snprintf(escaped, sizeof escaped, "\\u%04x", next.code & 0xffffU);
            out += escaped;
        } else {
            for (const char c : next.bytes) {
                std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
                out += escaped;
            }
        }
    }
}

// At most `max` bytes of `text`, escaped for a log line: up to four times as many.
inline std::string printable(std::string_view text, std::size_t max = 200) {
    std::string out;
    append_escaped(out, text.substr(0, max), false);
    if (text.size() > max) out += "...";
    return out;
}

inline std::string json_quote(std::string_view text) {
    std::string out = "\"";
    out.reserve(text.size() + 2);
    append_escaped(out, text, true);
    out += '"';
    return out;
}

inline bool contains(const std::vector<std::string>& texts, std::string_view text) noexcept {
    for (const std::string& candidate : texts) {
        if (candidate == text) return true;
    }
    return false;
}

inline bool starts_with(std::string_view text, std::string_view start) { return text.substr(0, start.size()) == start; }
inline bool has_part(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }
// From 0; -1: it is not listed.
inline int place_in(std::string_view word, std::string_view space_separated) {
    for (int place = 0; !space_separated.empty(); ++place) {
        if (next_part(space_separated, " ") == word) return place;
    }
    return -1;
}
inline bool is_listed(std::string_view word, std::string_view space_separated) {
    return place_in(word, space_separated) >= 0;
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

inline bool is_ascii_control(char c) noexcept { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

template <class Predicate>
bool all_of(std::string_view text, Predicate holds) noexcept {
    for (const char c : text) {
        if (!holds(c)) return false;
    }
    return true;
}
}  // namespace ojs::detail
