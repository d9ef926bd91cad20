#pragma once

#include <locale.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

#include <exception>

#ifndef PICOJSON_USE_LOCALE
#define PICOJSON_USE_LOCALE 0
#endif
#include <picojson.h>

#include "../base/text.hpp"
#include "json.hpp"

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
    for (++at; at < text.size(); ++at) {
        if (text[at] == '\\') {
            ++at;
        } else if (text[at] == '"') {
            return at + 1;
        }
    }
    return text.size();
}

// One past the value that starts at `at`. `deepest` is told the nesting that was met.
inline std::size_t json_value_end(std::string_view text, std::size_t at,
                                  std::size_t* deepest = nullptr) noexcept {
    std::size_t depth = 0;
    while (at < text.size()) {
        const char c = text[at];
        if (depth == 0 && (c == ',' || c == ']' || c == '}' || is_json_blank(c))) return at;
        if (c == '[' || c == '{') ++depth;
        if (c == ']' || c == '}') --depth;
        if (deepest != nullptr && depth > *deepest) *deepest = depth;
        at = c == '"' ? json_string_end(text, at) : at + 1;
        const bool closed = c == ']' || c == '}' || c == '"';
        if (closed && depth == 0) return at;
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
    value = rest.substr(at, end - at);
    rest.remove_prefix(end);
    return true;
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
        if (!json_key_is(name, key)) append(out, out.size() > 1 ? "," : "", name, ":", source);
    }
    if (!value.empty()) append(out, out.size() > 1 ? "," : "", json_quote(key), ":", value);
    return out + "}";
}

OJS_SHUTDOWN_INLINE bool raw_string(std::string_view source, std::string& out) {
    if (source.size() < 2 || source.front() != '"' || source.back() != '"') return false;
    if (source.find('\\') == std::string_view::npos) {
        out = std::string(source.substr(1, source.size() - 2));
        return true;
    }
    picojson::value unescaped;
    if (!parse_json(source, unescaped) || !unescaped.is<std::string>()) return false;
    out = unescaped.get<std::string>();
    return true;
}

// ---- parsing ----

inline error bad_json(std::string_view why) {
    return error{errc::bad_answer, 0, cat("invalid JSON: ", why)};
}

inline result<void> parse_with_picojson(std::string_view text, picojson::value& out) {
    const c_locale_scope plain;
    // Over a std::string, as in picojson's own functions: another iterator would compile its parser once more.
    const std::string copy(text);
    picojson::input<std::string::const_iterator> in(copy.begin(), copy.end());
    picojson::default_parse_context context(&out, deepest_nesting);
    if (!picojson::_parse(context, in)) return bad_json(cat("syntax error in line ", in.line()));
    in.skip_ws();
    if (in.getc() != -1) return bad_json(cat("something follows the value in line ", in.line()));
    return {};
}

inline bool is_digit_at(std::string_view text, std::size_t at) noexcept {
    return at < text.size() && text[at] >= '0' && text[at] <= '9';
}
inline std::size_t skip_digits(std::string_view text, std::size_t at) noexcept {
    while (is_digit_at(text, at)) ++at;
    return at;
}

// The end of a number that JSON allows, or npos. [RFC 8259 6]
inline std::size_t number_end(std::string_view text, std::size_t at) noexcept {
    if (text[at] == '-') ++at;
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

// picojson also takes 007 and 1. for numbers; other parsers do not. For text that it has taken.
inline bool numbers_are_json(std::string_view text) noexcept {
    for (std::size_t at = 0; at < text.size();) {
        if (text[at] == '"') {
            at = json_string_end(text, at);
        } else if (text[at] == '-' || is_digit_at(text, at)) {
            at = number_end(text, at);
            if (at == std::string_view::npos) return false;
        } else {
            ++at;
        }
    }
    return true;
}

OJS_SHUTDOWN_INLINE result<void> parse_json(std::string_view text, picojson::value& out) {
    out = picojson::value();
    const std::size_t start = skip_json_blanks(text, 0);
    if (start == text.size()) return bad_json("there is nothing");
    // picojson counts arrays but not objects, and recurses for both: nesting is checked before it sees the text.
    std::size_t deepest = 0;
    json_value_end(text, start, &deepest);
    if (deepest > deepest_nesting) return bad_json("nested deeper than 100");
    result<void> parsed;
    try {
        parsed = parse_with_picojson(text, out);
    } catch (const std::exception&) {  // picojson throws on a number that is no finite double
        parsed = bad_json("a number is too large");
    }
    if (parsed && !numbers_are_json(text)) parsed = bad_json("a number that is written wrong");
    if (!parsed) out = picojson::value();
    return parsed;
}

// ---- writing ----

OJS_SHUTDOWN_INLINE std::string to_json(const picojson::value& value) {
    try {
        const c_locale_scope plain;
        const std::string written = value.serialize();
        // Only strings can hold bytes that are not ASCII, so repairing the whole text repairs them.
        std::string out;
        out.reserve(written.size());
        for (std::string_view rest = written; !rest.empty();) append(out, take_utf8(rest));
        return out;
    } catch (const std::exception&) {
        return "null";
    }
}

// ---- members ----

OJS_SHUTDOWN_INLINE const picojson::value* json_member(const picojson::value& object, const char* key) {
    if (!object.is<picojson::object>()) return nullptr;
    const picojson::object& members = object.get<picojson::object>();
    const auto found = members.find(key);
    return found == members.end() ? nullptr : &found->second;
}

OJS_SHUTDOWN_INLINE bool json_string(const picojson::value& object, const char* key, std::string& out) {
    const picojson::value* member = json_member(object, key);
    if (member == nullptr || !member->is<std::string>()) return false;
    out = member->get<std::string>();
    return true;
}

OJS_SHUTDOWN_INLINE bool json_integer(const picojson::value& object, const char* key, std::int64_t min,
                                      std::int64_t max, std::int64_t& out) {
    const picojson::value* member = json_member(object, key);
    if (member == nullptr || !member->is<double>()) return false;
    const double number = member->get<double>();
    const double limit = 9223372036854775808.0;  // 2^63: what does not fit must not be converted
    if (!(number >= -limit && number < limit)) return false;
    const auto whole = static_cast<std::int64_t>(number);
    if (static_cast<double>(whole) < number || static_cast<double>(whole) > number) return false;
    if (whole < min || whole > max) return false;
    out = whole;
    return true;
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
