// json_view: a read-only view of JSON text, without copies.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../base/detail/text.hpp"
#include "../base/error.hpp"

namespace picojson {
class value;
}

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
class json_iterator;
}

/// `text` as a JSON string, in quotes. Bytes that are not UTF-8 become U+FFFD.
using detail::json_quote;

/// The type of a value; `none`: there is no value.
enum class json_type { none, null, boolean, number, string, array, object };

/// One JSON value in a text that must outlive the view. Each lookup scans the text and builds nothing. Thread-safe.
class json_view {
  public:
    json_view() = default;  ///< no value
    /// For text known to be JSON. On other text the members return something or nothing, safely.
    explicit json_view(std::string_view json) noexcept : text_(detail::trim_blanks(json, " \t\n\r")) {}

    /// Checks untrusted text. errc::bad_response, which names the line and never quotes the text, unless all of it is one
    /// JSON value [RFC 8259] in UTF-8 of at most `max_bytes`, nested at most 100 deep, whose numbers fit a double.
    [[nodiscard]] static result<json_view> parse(std::string_view text, std::size_t max_bytes = 16 * 1024 * 1024);

    json_type type() const noexcept;                                    ///< none: there is no value
    explicit operator bool() const noexcept { return !text_.empty(); }  ///< false: there is no value
    std::string_view text() const noexcept { return text_; }            ///< its source

    /// errc::invalid_argument: another type. An integer has 64 bits, neither fraction nor exponent.
    result<std::string> string() const;
    result<double> number() const;         ///< nearest double
    result<std::int64_t> integer() const;  ///< an exact one
    result<bool> boolean() const;          ///< true or false
    /// T is picojson::value, array or object, for files that include `<picojson.h>`. Errors: as of parse();
    /// errc::invalid_argument: another type. Numbers become doubles.
    template <class T>
    result<T> as() const;

    /// json_type::none if there is none. Of several members of one name, the last counts.
    json_view member(std::string_view name) const;
    json_view element(std::size_t index) const;  ///< one of an array; from 0
    /// `for (const auto& [key, value] : view)`: the members of an object, or the elements of an array (without keys).
    detail::json_iterator begin() const;
    detail::json_iterator end() const noexcept;  ///< ends begin()'s range

  private:
    std::string_view text_;
};

namespace detail {
struct json_item {
    json_view key;
    json_view value;
};

// Walks over members or elements of checked JSON. On other text the result is arbitrary but safe.
class json_iterator {
  public:
    json_iterator() = default;
    json_iterator(std::string_view text, char open);  // '{' or '[': text that begins otherwise has no items
    const json_item& operator*() const noexcept { return item_; }
    const json_item* operator->() const noexcept { return &item_; }
    json_iterator& operator++();
    explicit operator bool() const noexcept { return static_cast<bool>(item_.value); }  // false: at the end
    bool operator!=(const json_iterator& other) const noexcept { return bool(*this) != bool(other); }
    // At the end: whether that is the closing bracket at the end of the text.
    bool is_complete() const noexcept;

  private:
    std::string_view rest_;
    char open_ = '\0';
    json_item item_;
};

// Whether all of `text` is one JSON value; if it `is_limited`, one that json_view::parse() takes. UTF-8 is not checked.
result<void> check_json(std::string_view text, bool is_limited = false);
inline bool is_json(std::string_view text) { return check_json(text).has_value(); }
inline bool is_json_object(std::string_view raw) { return json_view(raw).type() == json_type::object && is_json(raw); }

inline bool json_key_is(json_view key, std::string_view name) {
    const std::string_view quoted = key.text();
    const bool may_be_escaped = quoted.size() > name.size() + 2;
    if (may_be_escaped && has_part(quoted, "\\")) return key.string().value_or("") == name;
    return quoted.substr(1, quoted.size() - 2) == name;
}
inline std::string_view raw_member(std::string_view object, std::string_view key) {
    return json_view(object).member(key).text();
}

// These read all of `source`, or return false. A whole number is in two's complement.
bool read_json_string(std::string_view source, std::string& out);
bool json_integer(std::string_view source, std::int64_t min, std::uint64_t max, std::uint64_t& out) noexcept;
bool is_json_number(std::string_view source) noexcept;

// ---- picojson, where a file includes <picojson.h>, before or after ----

template <class V>
using if_picojson = std::enable_if_t<std::is_same_v<V, picojson::value>, int>;

// picojson throws on numbers, and overflows its stack by nesting, that parse() rejects. It may be incomplete here.
template <class T, class Value = picojson::value>
result<T> read_picojson(std::string_view json) {
    if (const result<json_view> checked = json_view::parse(json); !checked) return checked.error();
    Value out;
    std::string fault;
    parse(out, json.begin(), json.end(), &fault);
    if (!fault.empty()) return error{errc::bad_response, 0, "picojson cannot read the JSON: " + fault};
    if constexpr (std::is_same_v<T, Value>) {
        return result<T>(std::move(out));
    } else {
        constexpr bool is_array = std::is_same_v<T, typename Value::array>;
        if (!out.template is<T>()) return invalid(is_array ? "not an array" : "not an object");
        return result<T>(std::move(out.template get<T>()));
    }
}
}  // namespace detail

template <class T>
result<T> json_view::as() const {
    return detail::read_picojson<T>(text_);
}
}  // namespace v0_1_0
}  // namespace ojs
