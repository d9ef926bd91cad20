#pragma once

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif
#include <stdlib.h>

#include <limits>

#include "../base/detail/text.ipp"
#include "json_view.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

OJS_SHUTDOWN_INLINE c_locale_scope::c_locale_scope() noexcept
    : previous_([] {
          static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", static_cast<locale_t>(nullptr));
          return static_cast<void*>(::uselocale(plain));
      }()) {}

OJS_SHUTDOWN_INLINE c_locale_scope::~c_locale_scope() {
    ::uselocale(static_cast<locale_t>(previous_));
}

// Removes the four digits of a \uXXXX.
inline bool take_utf16(std::string_view& text, std::uint32_t& code) noexcept {
    std::uint64_t unit = 0;
    if (text.size() < 4 || !parse_hex(text.substr(0, 4), 0xffff, unit)) return false;
    code = static_cast<std::uint32_t>(unit);
    text.remove_prefix(4);
    return true;
}

// Removes the escape at the front: a character, or half of a surrogate pair. False: it is no JSON escape.
inline bool take_escape_unit(std::string_view& text, std::uint32_t& code) noexcept {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meanings = "\"\\/\b\f\n\r\t";
    const char letter = text.size() > 1 ? text[1] : '\0';
    const std::size_t known = letters.find(letter);
    text.remove_prefix(text.size() > 1 ? 2 : 1);
    if (known != std::string_view::npos) {
        code = static_cast<unsigned char>(meanings[known]);
        return true;
    }
    return letter == 'u' && take_utf16(text, code);
}

// The same for a whole character. False: no JSON escape, or a lone surrogate.
inline bool take_json_escape(std::string_view& text, std::uint32_t& code) noexcept {
    if (!take_escape_unit(text, code)) return false;
    if (code < 0xd800 || code > 0xdfff) return true;
    std::uint32_t second = 0;
    if (code > 0xdbff || text.substr(0, 2) != "\\u") return false;
    text.remove_prefix(2);
    if (!take_utf16(text, second) || second < 0xdc00 || second > 0xdfff) return false;
    code = 0x10000 + ((code - 0xd800) << 10U) + (second - 0xdc00);
    return true;
}

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

// Removes the string at the front and decodes it into `out`, if not null. False: `text` begins with the error.
// `any_value`: lone surrogates are no error.
inline bool take_json_string(std::string_view& text, std::string* out, bool any_value = false) {
    if (text.empty() || text.front() != '"') return false;
    text.remove_prefix(1);
    for (;;) {
        const auto is_plain = [](char c) {
            return c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
        };
        std::size_t plain = 0;
        while (plain < text.size() && is_plain(text[plain])) ++plain;
        if (out != nullptr) append(*out, {text.substr(0, plain)});
        text.remove_prefix(plain);
        if (text.empty() || static_cast<unsigned char>(text.front()) < 0x20) return false;
        if (text.front() == '"') break;
        std::uint32_t code = 0;
        if (!(any_value ? take_escape_unit(text, code) : take_json_escape(text, code))) return false;
        if (out != nullptr) append_code_point(*out, code);
    }
    text.remove_prefix(1);
    return true;
}

OJS_SHUTDOWN_INLINE bool raw_string(std::string_view source, std::string& out) {
    std::string text;
    if (!take_json_string(source, &text) || !source.empty()) return false;
    out = std::move(text);
    return true;
}

inline bool is_digit_at(std::string_view text, std::size_t at) noexcept {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
}
inline std::size_t skip_digits(std::string_view text, std::size_t at) noexcept {
    while (is_digit_at(text, at)) ++at;
    return at;
}

// The end of a JSON number, or npos. [RFC 8259 6]
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
    const bool is_continued =
        at < text.size() && std::string_view("0123456789+-.eE").find(text[at]) != text.npos;
    return is_continued ? std::string_view::npos : at;
}

OJS_SHUTDOWN_INLINE bool is_json_number(std::string_view source) noexcept {
    return number_end(source, 0) == source.size();
}

OJS_SHUTDOWN_INLINE bool json_number(std::string_view source, double& out) {
    if (!is_json_number(source)) return false;
    constexpr double max = std::numeric_limits<double>::max();
    const c_locale_scope plain;
    const double value = ::strtod(std::string(source).c_str(), nullptr);
    if (value > max || value < -max) return false;
    out = value;
    return true;
}

inline bool is_json_blank(char c) noexcept {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// A position in JSON text. take() also skips the blanks that follow; false: another character is next.
class json_walk {
  public:
    explicit json_walk(std::string_view text) noexcept : text_(text) { skip_blanks(); }

    std::string_view rest() const noexcept { return text_.substr(at_); }
    char next() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }
    bool take(char expected) noexcept {
        if (next() != expected) return false;
        ++at_;
        return skip_blanks();
    }
    // Takes a key and its colon; `quoted` is the key's source.
    bool take_key(std::string_view& quoted) {
        const std::size_t begin = at_;
        if (!take_string()) return false;
        quoted = text_.substr(begin, at_ - begin);
        return skip_blanks() && (take(':') || fail());
    }
    // Skips and returns the next value without checking what is in its brackets; empty if there is none.
    std::string_view skip_value() noexcept {
        const std::size_t begin = at_;
        for (std::size_t depth = 0; at_ < text_.size();) {
            const char c = text_[at_];
            const bool closes = c == ']' || c == '}';
            if (depth == 0 && (c == ',' || closes || is_json_blank(c))) break;
            if (c == '"') skip_string();
            if (c != '"') ++at_;
            if (c == '[' || c == '{') ++depth;
            if (closes) --depth;
            if (depth == 0 && (closes || c == '"')) break;
        }
        return text_.substr(begin, at_ - begin);
    }

    // Checks that the text is one value. Null, or the error.
    const char* check(bool any_value) {
        any_value_ = any_value;
        if (at_ == text_.size()) return "there is nothing";
        if (take_value() && at_ < text_.size()) problem_ = "something follows the value in line ";
        return problem_;
    }
    std::size_t line() const noexcept {
        std::size_t out = 1;
        for (const char c : text_.substr(0, at_)) out += c == '\n' ? 1 : 0;
        return out;
    }

  private:
    bool fail(const char* reason = "syntax error in line ") noexcept {
        problem_ = reason;
        return false;
    }
    bool skip_blanks() noexcept {
        while (at_ < text_.size() && is_json_blank(text_[at_])) ++at_;
        return true;
    }
    // Skips to the end of the text if the closing quote is missing.
    void skip_string() noexcept {
        for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) at_ += text_[at_] == '\\' ? 1U : 0U;
        at_ = at_ < text_.size() ? at_ + 1 : text_.size();
    }

    // Iterative, so that nesting cannot overflow the stack.
    bool take_value() {
        std::string open;  // the brackets around this place
        for (;;) {
            bool follows_value = next() != '[' && next() != '{';
            if (follows_value && !(take_scalar() && skip_blanks())) return false;
            if (!follows_value) {
                if (!any_value_ && open.size() == json_view::max_depth) return fail("nested deeper than 100");
                open += next();
                take(next());
            }
            for (;; follows_value = true, open.pop_back()) {
                if (open.empty()) return true;
                if (!take(open.back() == '{' ? '}' : ']')) break;
            }
            if (follows_value && !take(',')) return fail();
            std::string_view key;
            if (open.back() == '{' && !take_key(key)) return false;
        }
    }
    bool take_scalar() {
        if (next() == '"') return take_string();
        if (next() == '-' || is_digit_at(text_, at_)) return take_number();
        for (const std::string_view word : {"true", "false", "null"}) {
            if (text_.substr(at_, word.size()) != word) continue;
            at_ += word.size();
            return true;
        }
        return fail();
    }
    bool take_number() {
        const std::size_t end = number_end(text_, at_);
        if (end == std::string_view::npos) return fail();
        const std::string_view number = text_.substr(at_, end - at_);
        // Only an exponent or 309 digits make it too large.
        const bool is_small = number.size() < 309 && number.find_first_of("eE") == number.npos;
        double value = 0;
        if (!any_value_ && !is_small && !json_number(number, value)) return fail("a number is too large");
        at_ = end;
        return true;
    }
    bool take_string() {
        std::string_view left = rest();
        const bool taken = take_json_string(left, nullptr, any_value_);
        at_ = text_.size() - left.size();
        return taken || fail();
    }

    const std::string_view text_;
    std::size_t at_ = 0;
    const char* problem_ = nullptr;
    bool any_value_ = true;
};

// The next member, or element if `key` is null. Takes `open` first, then commas; false at the closing bracket.
inline bool next_raw_item(std::string_view& rest, char open, std::string_view* key, std::string_view& value) {
    json_walk walk(rest);
    if (!walk.take(open) && !walk.take(',')) return false;
    if (key != nullptr && !walk.take_key(*key)) return false;
    const std::string_view found = walk.skip_value();
    if (found.empty()) return false;
    value = found;
    rest = walk.rest();
    return true;
}

OJS_SHUTDOWN_INLINE bool next_raw_element(std::string_view& rest, std::string_view& element) {
    return next_raw_item(rest, '[', nullptr, element);
}
OJS_SHUTDOWN_INLINE bool next_raw_member(std::string_view& rest, std::string_view& key,
                                         std::string_view& value) {
    return next_raw_item(rest, '{', &key, value);
}

OJS_SHUTDOWN_INLINE bool is_raw_walk_complete(std::string_view rest, char open, char close) noexcept {
    json_walk walk(rest);
    walk.take(open);  // it is empty
    return walk.take(close) && walk.rest().empty();
}

inline bool json_key_is(std::string_view quoted, std::string_view key) {
    std::string unescaped;
    if (quoted.find('\\') == std::string_view::npos) return quoted.substr(1, quoted.size() - 2) == key;
    return raw_string(quoted, unescaped) && unescaped == key;
}

OJS_SHUTDOWN_INLINE std::string_view raw_member(std::string_view object, std::string_view key) {
    std::string_view found;
    std::string_view name;
    std::string_view value;
    while (next_raw_member(object, name, value)) {
        if (json_key_is(name, key)) found = value;  // of several, the last counts
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

inline error bad_json(std::string_view reason) {
    return error{errc::bad_response, 0, cat({"invalid JSON: ", reason})};
}

OJS_SHUTDOWN_INLINE result<void> check_json(std::string_view text, bool any_value) {
    json_walk walk(text);
    const char* const problem = walk.check(any_value);
    if (problem == nullptr) return {};
    const std::string_view reason = problem;
    return reason.back() == ' ' ? bad_json(cat({reason, walk.line()})) : bad_json(reason);
}

OJS_SHUTDOWN_INLINE bool is_json(std::string_view text) {
    return json_walk(text).check(true) == nullptr;
}

OJS_SHUTDOWN_INLINE bool is_json_object(std::string_view text) {
    return json_walk(text).next() == '{' && is_json(text);
}

}  // namespace detail

OJS_SHUTDOWN_INLINE json_view::json_view(std::string_view json) noexcept
    : text_(detail::trim_blanks(json, " \t\n\r")) {}

OJS_SHUTDOWN_INLINE result<json_view> json_view::parse(std::string_view text, std::size_t max_bytes) {
    if (text.size() > max_bytes) return detail::bad_json(detail::cat({"larger than ", max_bytes, " bytes"}));
    const result<void> checked = detail::check_json(text, false);
    if (!checked) return checked.error();
    if (!detail::is_utf8(text)) return detail::bad_json("not UTF-8");
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
    if (!detail::raw_string(text_, out)) return error{errc::invalid_argument, 0, "not a string"};
    return out;
}

OJS_SHUTDOWN_INLINE result<double> json_view::number() const {
    double out = 0;
    if (!detail::json_number(text_, out)) return error{errc::invalid_argument, 0, "not a number"};
    return out;
}

OJS_SHUTDOWN_INLINE result<std::int64_t> json_view::integer() const {
    const bool negative = !text_.empty() && text_.front() == '-';
    const std::uint64_t max = (std::uint64_t{1} << 63U) - (negative ? 0 : 1);
    std::uint64_t magnitude = 0;
    if (!detail::is_json_number(text_) ||
        !detail::parse_number(text_.substr(negative ? 1 : 0), max, magnitude))
        return error{errc::invalid_argument, 0, "not a whole number of 64 bits"};
    return static_cast<std::int64_t>(negative ? 0 - magnitude : magnitude);
}

OJS_SHUTDOWN_INLINE result<bool> json_view::boolean() const {
    if (text_ != "true" && text_ != "false") return error{errc::invalid_argument, 0, "not true or false"};
    return text_ == "true";
}

OJS_SHUTDOWN_INLINE json_view json_view::member(std::string_view name) const {
    return json_view(detail::raw_member(text_, name));
}

OJS_SHUTDOWN_INLINE json_view json_view::element(std::size_t index) const {
    std::string_view rest = text_;
    json_view out;
    for (std::size_t left = index + 1; left > 0; --left) {
        if (!detail::next_raw_element(rest, out.text_)) return {};
    }
    return out;
}

OJS_SHUTDOWN_INLINE detail::json_iterator json_view::begin() const {
    return detail::json_iterator(*this);
}
OJS_SHUTDOWN_INLINE detail::json_iterator json_view::end() const noexcept {
    return {};
}

OJS_SHUTDOWN_INLINE detail::json_iterator& detail::json_iterator::operator++() {
    std::string_view key;
    std::string_view value;
    const bool found =
        is_object_ ? detail::next_raw_member(rest_, key, value) : detail::next_raw_element(rest_, value);
    item_ = found ? json_item{json_view(key), json_view(value)} : json_item();
    return *this;
}

}  // namespace v0_1_0
}  // namespace ojs
