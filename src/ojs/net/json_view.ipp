#pragma once

#include <langinfo.h>

#include <cstdlib>
#include <limits>

#include "json_view.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
constexpr bool is_json_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Removes the escape at the front: a character, or half of a surrogate pair. False: it is no JSON escape.
inline bool take_json_escape(std::string_view& text, std::uint64_t& unit) noexcept {
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const std::size_t known = std::string_view("\"\\/bfnrtu").find(text.size() < 2 ? '\0' : text[1]);
    const std::size_t length = known == meanings.size() ? 6 : 2;
    if (known == text.npos || text.front() != '\\' || text.size() < length) return false;
    if (length == 6 && !parse_number(text.substr(2, 4), 0xffff, unit, 16)) return false;
    if (length == 2) unit = static_cast<unsigned char>(meanings[known]);
    text.remove_prefix(length);
    return true;
}

inline void append_code_point(std::string& out, std::uint64_t code) {
    const unsigned tails = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr unsigned leads[] = {0, 0xc0, 0xe0, 0xf0};
    out += static_cast<char>(leads[tails] | (code >> (6 * tails)));
    for (unsigned i = tails; i-- > 0;) out += static_cast<char>(0x80U | ((code >> (6 * i)) & 0x3fU));
}

// Whether `source` is a JSON string; it is decoded into `out`, if not null: half of a surrogate pair cannot be.
inline bool decode_json(std::string_view source, std::string* out) {
    if (source.size() < 2 || source.front() != '"' || source.back() != '"') return false;
    source = source.substr(1, source.size() - 2);
    const auto is_plain = [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != '"' && c != '\\'; };
    while (!source.empty()) {
        std::size_t plain = 0;
        while (plain < source.size() && is_plain(source[plain])) ++plain;
        if (out != nullptr) out->append(source.data(), plain);
        source.remove_prefix(plain);
        if (source.empty()) return true;
        std::uint64_t code = 0;
        std::uint64_t low = 0;
        if (!take_json_escape(source, code)) return false;
        if (out != nullptr && code >= 0xd800 && code <= 0xdfff) {
            if (code > 0xdbff || !take_json_escape(source, low) || low < 0xdc00 || low > 0xdfff) return false;
            code = 0x10000 + ((code - 0xd800) << 10U) + (low - 0xdc00);
        }
        if (out != nullptr) append_code_point(*out, code);
    }
    return true;
}

OJS_SHUTDOWN_INLINE bool read_json_string(std::string_view source, std::string& out) {
    std::string text;
    if (!decode_json(source, &text)) return false;
    out = std::move(text);
    return true;
}

OJS_SHUTDOWN_INLINE bool is_json_number(std::string_view source) noexcept {
    const auto take = [&source](std::string_view accepted, std::size_t max = 1) {
        const std::size_t count = min(source.find_first_not_of(accepted), min(source.size(), max));
        source.remove_prefix(count);
        return count > 0;
    };
    const auto take_digits = [&] { return take("0123456789", source.npos); };
    take("-");
    if (!take("0") && !take_digits()) return false;
    if (take(".") && !take_digits()) return false;
    if (!take("eE")) return source.empty();
    take("+-");
    return take_digits() && source.empty();
}

OJS_SHUTDOWN_INLINE bool json_integer(std::string_view source, std::int64_t min, std::uint64_t max,
                                      std::uint64_t& out) noexcept {
    const bool negative = !source.empty() && source.front() == '-';
    const std::uint64_t max_magnitude = negative ? 0 - static_cast<std::uint64_t>(min) : max;
    if (!is_json_number(source) || !parse_number(source.substr(negative ? 1 : 0), max_magnitude, out)) return false;
    out = negative ? 0 - out : out;
    return true;
}

// Removes so many characters and the blanks behind.
inline void skip_json(std::string_view& rest, std::size_t count) noexcept {
    while (count < rest.size() && is_json_blank(rest[count])) ++count;
    rest.remove_prefix(min(count, rest.size()));
}

inline bool take_json(std::string_view& rest, char expected) noexcept {
    if (rest.empty() || rest.front() != expected) return false;
    skip_json(rest, 1);
    return true;
}

// The index behind the string. A quote after an odd number of backslashes is within it.
inline std::size_t json_string_end(std::string_view text, std::size_t quote) noexcept {
    std::size_t end = quote;
    for (bool is_escaped = true; is_escaped;) {
        end = min(text.find('"', end + 1), text.size());
        is_escaped = false;
        for (std::size_t i = end; end < text.size() && text[i - 1] == '\\'; --i) is_escaped = !is_escaped;
    }
    return end + 1;
}

// Removes and returns a value without checking what is in its brackets; empty: there is none.
inline std::string_view take_json_value(std::string_view& rest) noexcept {
    const std::string_view text = rest;
    std::size_t at = 0;
    for (std::size_t depth = 0; at < text.size();) {
        const char c = text[at];
        const bool opens = c == '[' || c == '{';
        const bool closes = c == ']' || c == '}';
        if (depth == 0 && (closes || c == ',' || is_json_blank(c))) break;
        at = c == '"' ? json_string_end(text, at) : at + 1;
        if (opens) ++depth;
        if ((c == '"' && depth == 0) || (closes && --depth == 0)) break;
    }
    skip_json(rest, at);
    return text.substr(0, at);
}

// Removes a key, which keeps its quotes, and its colon.
inline bool take_json_key(std::string_view& rest, std::string_view& key) {
    std::string_view left = rest;
    key = take_json_value(left);
    if (!decode_json(key, nullptr)) return false;
    rest = left;
    return take_json(rest, ':');
}

OJS_SHUTDOWN_INLINE json_iterator::json_iterator(std::string_view text, char open)
    : rest_(json_view(text).text()), open_(open) {
    if (!take_json(rest_, open)) rest_ = {};
    ++*this;
}

OJS_SHUTDOWN_INLINE json_iterator& json_iterator::operator++() {
    std::string_view rest = rest_;
    std::string_view key;
    if (exchange(item_, {}).value && !take_json(rest, ',')) return *this;
    if (open_ == '{' && !take_json_key(rest, key)) return *this;
    const std::string_view value = take_json_value(rest);
    if (value.empty()) return *this;
    item_ = {json_view(key), json_view(value)};
    rest_ = rest;
    return *this;
}

OJS_SHUTDOWN_INLINE bool json_iterator::is_complete() const noexcept {
    std::string_view rest = rest_;
    return !*this && take_json(rest, open_ == '{' ? '}' : ']') && rest.empty();
}

inline bool is_json_scalar(std::string_view source, bool is_limited) {
    if (is_json_number(source)) return !is_limited || json_view(source).number();
    return source == "true" || source == "false" || source == "null" || decode_json(source, nullptr);
}

// Removes a value; false: the fault is in the line where `rest` begins. Iterative: nesting cannot overflow the stack.
inline bool take_checked_json(std::string_view& rest, bool is_limited) {
    std::string open;  // the brackets around this place
    for (;;) {
        std::string_view left = rest;
        const char begin = rest.empty() ? '\0' : rest.front();
        bool follows_value = begin != '[' && begin != '{';
        if (follows_value) {
            if (!is_json_scalar(take_json_value(left), is_limited)) return false;
            rest = left;
        } else {
            if (is_limited && open.size() == 100) return false;
            open += begin;
            take_json(rest, begin);
        }
        for (;; follows_value = true, open.pop_back()) {
            if (open.empty()) return true;
            if (!take_json(rest, open.back() == '{' ? '}' : ']')) break;
        }
        if (follows_value && !take_json(rest, ',')) return false;
        if (open.back() == '{' && !take_json_key(rest, left)) return false;
    }
}

OJS_SHUTDOWN_INLINE result<void> check_json(std::string_view text, bool is_limited) {
    std::string_view rest = json_view(text).text();
    if (take_checked_json(rest, is_limited) && rest.empty()) return {};
    std::size_t line = 1;
    for (const char c : text.substr(0, static_cast<std::size_t>(rest.data() - text.data()))) line += c == '\n' ? 1 : 0;
    return error{errc::bad_response, 0, cat({"invalid JSON in line ", line, is_limited ? ", or beyond a limit" : ""})};
}
}  // namespace detail

OJS_SHUTDOWN_INLINE result<json_view> json_view::parse(std::string_view text, std::size_t max_bytes) {
    if (text.size() > max_bytes)
        return error{errc::bad_response, 0, detail::cat({"JSON larger than ", max_bytes, " bytes"})};
    const result<void> checked = detail::check_json(text, true);
    if (!checked) return checked.error();
    if (!detail::is_utf8(text)) return error{errc::bad_response, 0, "invalid JSON: not UTF-8"};
    return json_view(text);
}

OJS_SHUTDOWN_INLINE json_type json_view::type() const noexcept {
    switch (text_.empty() ? '\0' : text_.front()) {
        case '{': return json_type::object;
        case '[': return json_type::array;
        case '"': return json_type::string;
        case 't':
        case 'f': return json_type::boolean;
        case 'n': return json_type::null;
        default: return detail::is_json_number(text_) ? json_type::number : json_type::none;
    }
}

OJS_SHUTDOWN_INLINE result<std::string> json_view::string() const {
    std::string out;
    if (detail::read_json_string(text_, out)) return out;
    return detail::invalid(type() == json_type::string ? "half of a surrogate pair" : "not a string");
}

OJS_SHUTDOWN_INLINE result<double> json_view::number() const {
    constexpr double max = std::numeric_limits<double>::max();
    if (detail::is_json_number(text_)) {
        std::string digits(text_);
        const std::size_t point = digits.find('.');  // strtod() expects that of the program's locale
        if (point != digits.npos) digits.replace(point, 1, ::nl_langinfo(RADIXCHAR));
        const double out = std::strtod(digits.c_str(), nullptr);
        if (out >= -max && out <= max) return out;
    }
    return detail::invalid(type() == json_type::number ? "too large for a double" : "not a number");
}

OJS_SHUTDOWN_INLINE result<std::int64_t> json_view::integer() const {
    using limits = std::numeric_limits<std::int64_t>;
    std::uint64_t out = 0;
    if (!detail::json_integer(text_, limits::min(), limits::max(), out)) return detail::invalid("not a 64-bit integer");
    return static_cast<std::int64_t>(out);
}

OJS_SHUTDOWN_INLINE result<bool> json_view::boolean() const {
    if (text_ != "true" && text_ != "false") return detail::invalid("not true or false");
    return text_ == "true";
}

OJS_SHUTDOWN_INLINE json_view json_view::member(std::string_view name) const {
    json_view out;
    for (detail::json_iterator at(text_, '{'); at; ++at) {
        if (detail::json_key_is(at->key, name)) out = at->value;
    }
    return out;
}

OJS_SHUTDOWN_INLINE json_view json_view::element(std::size_t index) const {
    detail::json_iterator at(text_, '[');
    while (at && index-- > 0) ++at;
    return at->value;
}

OJS_SHUTDOWN_INLINE detail::json_iterator json_view::begin() const {
    return {text_, type() == json_type::object ? '{' : '['};
}
OJS_SHUTDOWN_INLINE detail::json_iterator json_view::end() const noexcept { return {}; }
}  // namespace v0_1_0
}  // namespace ojs
