#pragma once

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif
#include <stdlib.h>

#include <exception>

#ifndef PICOJSON_USE_LOCALE
#define PICOJSON_USE_LOCALE 0
#endif
#include <picojson.h>

#include "../base/detail/text.hpp"
#include "json_view.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

inline constexpr std::size_t deepest_nesting = 100;

// Numbers are read and written with a point, whatever locale the program has set. Only this thread is affected.
class c_locale_scope {
  public:
    c_locale_scope() noexcept : previous_(::uselocale(c_locale())) {}
    c_locale_scope(const c_locale_scope&) = delete;
    c_locale_scope& operator=(const c_locale_scope&) = delete;
    ~c_locale_scope() { ::uselocale(previous_); }

  private:
    static locale_t c_locale() noexcept {
        static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", static_cast<locale_t>(nullptr));
        return plain;
    }
    const locale_t previous_;
};

// ---- walking over JSON text ----

inline bool is_json_blank(char c) noexcept {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

inline std::size_t skip_json_blanks(std::string_view text, std::size_t at) noexcept {
    while (at < text.size() && is_json_blank(text[at])) ++at;
    return at;
}

// One past the closing quote of the string whose opening quote is at `at`; the size of `text` if there is none.
inline std::size_t json_string_end(std::string_view text, std::size_t at) noexcept {
    const char* const data = text.data();
    const std::size_t size = text.size();
    for (++at; at < size; ++at) {
        if (data[at] == '"') return at + 1;
        if (data[at] == '\\') ++at;
    }
    return size;
}

// One past the value that starts at `at`.
inline std::size_t json_value_end(std::string_view text, std::size_t at) noexcept {
    if (at < text.size() && text[at] == '"') return json_string_end(text, at);
    for (std::size_t depth = 0; at < text.size();) {
        const char c = text[at];
        if (c == '"') {
            at = json_string_end(text, at);
            continue;
        }
        if (depth == 0 && (c == ',' || c == ']' || c == '}' || is_json_blank(c))) return at;
        ++at;
        if (c == '[' || c == '{') ++depth;
        if ((c == ']' || c == '}') && --depth == 0) return at;
    }
    return at;
}

OJS_SHUTDOWN_INLINE bool next_raw_element(std::string_view& rest, std::string_view& element) {
    std::size_t at = skip_json_blanks(rest, 0);
    // '[' starts the array on the first call; later ones find the comma, or the closing bracket.
    if (at >= rest.size() || (rest[at] != '[' && rest[at] != ',')) return false;
    at = skip_json_blanks(rest, at + 1);
    const std::size_t end = json_value_end(rest, at);
    if (end == at) return false;
    element = rest.substr(at, end - at);
    rest.remove_prefix(end);
    return true;
}

inline bool json_key_is(std::string_view quoted, std::string_view key) {
    std::string unescaped;
    if (quoted.find('\\') == std::string_view::npos) return quoted.substr(1, quoted.size() - 2) == key;
    return raw_string(quoted, unescaped) && unescaped == key;
}

OJS_SHUTDOWN_INLINE bool next_raw_member(std::string_view& rest, std::string_view& key,
                                         std::string_view& value) {
    std::size_t at = skip_json_blanks(rest, 0);
    // '{' starts the object on the first call; later ones find the comma, or the closing brace.
    if (at >= rest.size() || (rest[at] != '{' && rest[at] != ',')) return false;
    at = skip_json_blanks(rest, at + 1);
    if (at >= rest.size() || rest[at] != '"') return false;
    const std::size_t key_end = json_string_end(rest, at);
    key = rest.substr(at, key_end - at);
    at = skip_json_blanks(rest, key_end);
    if (at >= rest.size() || rest[at] != ':') return false;
    at = skip_json_blanks(rest, at + 1);
    const std::size_t end = json_value_end(rest, at);
    if (end == at) return false;
    value = rest.substr(at, end - at);
    rest.remove_prefix(end);
    return true;
}

OJS_SHUTDOWN_INLINE bool raw_walk_ended(std::string_view rest, char open, char close) noexcept {
    std::size_t at = skip_json_blanks(rest, 0);
    if (at < rest.size() && rest[at] == open) at = skip_json_blanks(rest, at + 1);  // there was nothing in it
    return at < rest.size() && rest[at] == close && skip_json_blanks(rest, at + 1) == rest.size();
}

OJS_SHUTDOWN_INLINE std::string_view raw_member(std::string_view object, std::string_view key) {
    std::string_view found;
    std::string_view name;
    std::string_view value;
    while (next_raw_member(object, name, value)) {
        if (json_key_is(name, key)) found = value;  // of several, the last one counts
    }
    return found;
}

OJS_SHUTDOWN_INLINE std::string with_raw_member(std::string_view object, std::string_view key,
                                                std::string_view value) {
    std::string out = "{";
    std::string_view name;
    std::string_view source;
    while (next_raw_member(object, name, source)) {
        if (!json_key_is(name, key)) append(out, {out.size() > 1 ? "," : "", name, ":", source});
    }
    if (!value.empty()) append(out, {out.size() > 1 ? "," : "", json_quote(key), ":", value});
    return out + "}";
}

// ---- strings ----

// The value of four hexadecimal digits; a number above them all where there are none.
inline std::uint32_t four_hex_digits(std::string_view text) noexcept {
    std::uint32_t out = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        const char c = i < text.size() ? text[i] : '\0';
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0) return 0x10000;
        out = out * 16 + static_cast<std::uint32_t>(digit);
    }
    return out;
}

inline bool is_surrogate(std::uint32_t code) noexcept {
    return code >= 0xd800 && code <= 0xdfff;
}

// Takes the escape whose backslash `text` begins with. Of a pair of surrogates it makes one character; one that stands
// alone is returned as such.
inline bool take_json_escape(std::string_view& text, std::uint32_t& code) noexcept {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char letter = text.size() > 1 ? text[1] : '\0';
    const std::size_t known = letters.find(letter);
    text.remove_prefix(text.size() > 1 ? 2 : 1);
    if (known != std::string_view::npos) {
        code = static_cast<unsigned char>(meanings[known]);
        return true;
    }
    if (letter != 'u' || (code = four_hex_digits(text)) > 0xffff) return false;
    text.remove_prefix(4);
    if (code < 0xd800 || code > 0xdbff || text.substr(0, 2) != "\\u") return true;
    const std::uint32_t second = four_hex_digits(text.substr(2));
    if (second < 0xdc00 || second > 0xdfff) return true;
    code = 0x10000 + ((code - 0xd800) << 10U) + (second - 0xdc00);
    text.remove_prefix(6);
    return true;
}

// In UTF-8; a surrogate that stands alone becomes the three bytes it would have, which no valid text contains.
inline void append_code_point(std::string& out, std::uint32_t code) {
    const auto tail = [&](unsigned shift) { return static_cast<char>(0x80U | ((code >> shift) & 0x3fU)); };
    if (code < 0x80) {
        out += static_cast<char>(code);
    } else if (code < 0x800) {
        out += {static_cast<char>(0xc0U | (code >> 6U)), tail(0)};
    } else if (code < 0x10000) {
        out += {static_cast<char>(0xe0U | (code >> 12U)), tail(6), tail(0)};
    } else {
        out += {static_cast<char>(0xf0U | (code >> 18U)), tail(12), tail(6), tail(0)};
    }
}

OJS_SHUTDOWN_INLINE json_text read_json_string(std::string_view source, std::string& out) {
    out.clear();
    if (source.size() < 2 || source.front() != '"' || source.back() != '"') return json_text::none;
    json_text found = json_text::proper;
    for (std::string_view rest = source.substr(1, source.size() - 2); !rest.empty();) {
        const std::size_t plain = rest.find('\\');
        for (const char c : rest.substr(0, plain)) {
            if (c == '"') return json_text::none;
            if (static_cast<unsigned char>(c) < 0x20) found = json_text::odd;
        }
        append(out, {rest.substr(0, plain)});
        if (plain == std::string_view::npos) break;
        rest.remove_prefix(plain);
        std::uint32_t code = 0;
        if (!take_json_escape(rest, code)) return json_text::none;
        if (is_surrogate(code)) found = json_text::odd;
        append_code_point(out, code);
    }
    return found;
}

OJS_SHUTDOWN_INLINE bool raw_string(std::string_view source, std::string& out) {
    std::string text;
    if (read_json_string(source, text) != json_text::proper) return false;
    out = std::move(text);
    return true;
}

// ---- numbers ----

inline bool is_digit_at(std::string_view text, std::size_t at) noexcept {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
}
inline std::size_t skip_digits(std::string_view text, std::size_t at) noexcept {
    while (is_digit_at(text, at)) ++at;
    return at;
}

// The end of a number that JSON allows, or npos. [RFC 8259 6]
inline std::size_t number_end(std::string_view text, std::size_t at) noexcept {
    if (at < text.size() && text[at] == '-') ++at;
    if (!is_digit_at(text, at)) return std::string_view::npos;
    at = text[at] == '0' ? at + 1 : skip_digits(text, at);
    if (at < text.size() && text[at] == '.') {
        if (!is_digit_at(text, at + 1)) return std::string_view::npos;
        at = skip_digits(text, at + 1);
    }
    if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
        ++at;
        if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
        if (!is_digit_at(text, at)) return std::string_view::npos;
        at = skip_digits(text, at);
    }
    const bool goes_on = at < text.size() && std::string_view("0123456789+-.eE").find(text[at]) != text.npos;
    return goes_on ? std::string_view::npos : at;
}

OJS_SHUTDOWN_INLINE bool is_json_number(std::string_view source) noexcept {
    return number_end(source, 0) == source.size();
}

// What follows the `e` of a number; beyond any length of text it stays where it is.
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

// Whether a number that JSON allows is finite as a double, told from its digits: those before the exponent against
// the least that no double can hold, 2^1024 - 2^970, which ends the numbers that round to the largest one.
inline bool is_finite_number(std::string_view number) noexcept {
    constexpr std::string_view least_infinite = "1797693134862315807937289714053034150799";  // and 269 digits
    const std::size_t e = number.find_first_of("eE");
    const std::string_view digits = number.substr(0, e);
    const std::size_t first = digits.find_first_of("123456789");
    if (first == std::string_view::npos) return true;
    const std::size_t point = digits.find('.') < digits.size() ? digits.find('.') : digits.size();
    const std::int64_t exponent = e == std::string_view::npos ? 0 : decimal_exponent(number.substr(e + 1));
    const auto ahead = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first);
    const std::int64_t magnitude = exponent + ahead - (ahead > 0 ? 1 : 0);  // of the first digit
    if (magnitude != 308) return magnitude < 308;
    std::size_t same = 0;
    for (std::size_t at = first; same < least_infinite.size(); ++at) {
        const char c = at < digits.size() ? digits[at] : '0';
        if (c == '.') continue;
        if (c != least_infinite[same]) return c < least_infinite[same];
        ++same;
    }
    return false;
}

OJS_SHUTDOWN_INLINE bool json_number(std::string_view source, double& out) {
    if (!is_json_number(source) || !is_finite_number(source)) return false;
    const c_locale_scope plain;
    out = ::strtod(std::string(source).c_str(), nullptr);
    return true;
}

// ---- checking ----

// Goes through one JSON value without recursion, with the same little memory whatever it is.
class json_walk {
  public:
    explicit json_walk(std::string_view text) noexcept : text_(text) { skip_blanks(); }

    // Null, or what is wrong.
    const char* fault() noexcept {
        if (at_ == text_.size()) return "there is nothing";
        do {
            take_value();
            take_ends();
        } while (fault_ == nullptr && depth_ > 0);
        if (fault_ == nullptr && at_ < text_.size()) fault_ = "something follows the value in line ";
        return fault_;
    }
    std::size_t line() const noexcept {
        std::size_t out = 1;
        for (const char c : text_.substr(0, at_)) out += c == '\n' ? 1 : 0;
        return out;
    }

  private:
    static constexpr const char* syntax = "syntax error in line ";

    char next() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
    void skip_blanks() noexcept { at_ = skip_json_blanks(text_, at_); }

    // A value up to its end; of an array or object that holds something, all that comes before the first end.
    void take_value() noexcept {
        while (fault_ == nullptr && (next() == '[' || next() == '{')) {
            if (depth_ == deepest_nesting) {
                fault_ = "nested deeper than 100";
                return;
            }
            in_object_[depth_++] = next() == '{';
            ++at_;
            skip_blanks();
            if (next() == closing()) return;
            if (in_object_[depth_ - 1]) take_key();
        }
        take_scalar();
    }

    char closing() const noexcept { return in_object_[depth_ - 1] ? '}' : ']'; }

    // The ends of arrays and objects that follow a value, and the way to the next one.
    void take_ends() noexcept {
        skip_blanks();
        while (fault_ == nullptr && depth_ > 0) {
            const char c = next();
            if (c != closing() && c != ',') fault_ = syntax;
            if (fault_ != nullptr) return;
            ++at_;
            skip_blanks();
            if (c == ',') {
                if (in_object_[depth_ - 1]) take_key();
                return;
            }
            --depth_;
        }
    }

    void take_key() noexcept {
        if (fault_ != nullptr) return;
        take_string();
        skip_blanks();
        if (next() != ':') fault_ = syntax;
        if (fault_ != nullptr) return;
        ++at_;
        skip_blanks();
    }

    void take_scalar() noexcept {
        if (fault_ != nullptr) return;
        const char c = next();
        if (c == '"') return take_string();
        if (c == '-' || is_digit_at(text_, at_)) return take_number();
        for (const std::string_view word : {"true", "false", "null"}) {
            if (text_.substr(at_, word.size()) != word) continue;
            at_ += word.size();
            return;
        }
        fault_ = syntax;
    }

    void take_number() noexcept {
        const std::size_t end = number_end(text_, at_);
        if (end == std::string_view::npos) {
            fault_ = syntax;
            return;
        }
        if (!is_finite_number(text_.substr(at_, end - at_))) fault_ = "a number is too large";
        at_ = end;
    }

    // The next quote, escape or control character of a string.
    std::size_t plain_end(std::size_t at) const noexcept {
        const auto is_plain = [](char c) {
            return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
        };
        while (at < text_.size() && is_plain(text_[at])) ++at;
        return at;
    }

    void take_string() noexcept {
        if (next() != '"') {
            fault_ = syntax;
            return;
        }
        ++at_;
        for (;;) {
            at_ = plain_end(at_);
            if (next() == '"') break;
            if (static_cast<unsigned char>(next()) < 0x20) {  // also at the end of the text
                fault_ = syntax;
            } else {
                std::string_view rest = text_.substr(at_);
                std::uint32_t code = 0;
                if (!take_json_escape(rest, code) || is_surrogate(code)) fault_ = syntax;
                at_ = text_.size() - rest.size();
            }
            if (fault_ != nullptr) return;
        }
        ++at_;
    }

    const std::string_view text_;
    std::size_t at_ = 0;
    std::size_t depth_ = 0;
    bool in_object_[deepest_nesting] = {};
    const char* fault_ = nullptr;
};

inline error bad_json(std::string_view why) {
    return error{errc::bad_answer, 0, cat({"invalid JSON: ", why})};
}

OJS_SHUTDOWN_INLINE result<void> check_json(std::string_view text) {
    json_walk walk(text);
    const char* const fault = walk.fault();
    if (fault == nullptr) return {};
    const std::string_view why = fault;
    return why.back() == ' ' ? bad_json(cat({why, walk.line()})) : bad_json(why);
}

OJS_SHUTDOWN_INLINE bool is_json(std::string_view text) noexcept {
    return json_walk(text).fault() == nullptr;
}

OJS_SHUTDOWN_INLINE bool is_json_object(std::string_view text) noexcept {
    const std::size_t at = skip_json_blanks(text, 0);
    return at < text.size() && text[at] == '{' && is_json(text);
}

// ---- writing ----

OJS_SHUTDOWN_INLINE std::string to_json(const picojson::value& value) {
    try {
        const c_locale_scope plain;
        return repair_utf8(value.serialize());  // only strings can hold bytes that are not ASCII
    } catch (const std::exception&) {
        return "null";
    }
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
