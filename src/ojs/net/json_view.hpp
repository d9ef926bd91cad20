// json_view: a read-only view of JSON text, which it walks and never copies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../base/error.hpp"

namespace picojson {
class value;
}

namespace ojs {
inline namespace v0_1_0 {

namespace detail {
class json_iterator;
}

enum class json_type { none, null, boolean, number, string, array, object };

// One JSON value in a text that outlives the view. Members and elements are found by walking the text, in time
// proportional to its length: nothing is built, so that numbers keep every digit and memory does not grow with the
// text. Thread-safe.
class json_view {
  public:
    static constexpr std::size_t max_depth = 100;              // arrays and objects within each other
    static constexpr std::size_t max_size = 16 * 1024 * 1024;  // bytes that parse() takes by default

    json_view() = default;  // no value
    // A text that is JSON already, such as job_context::args_json(). In other text the functions below find something
    // or nothing, safely.
    explicit json_view(std::string_view json) noexcept;

    // A text that may be anything. errc::bad_response unless all of it is one JSON value [RFC 8259] in UTF-8 of at most
    // `max_bytes`, nested at most max_depth deep, whose numbers a double can hold. The error's text says why and in
    // which line, and never quotes the text.
    [[nodiscard]] static result<json_view> parse(std::string_view text, std::size_t max_bytes = max_size);

    json_type type() const noexcept;
    explicit operator bool() const noexcept { return !text_.empty(); }  // false: json_type::none
    std::string_view text() const noexcept { return text_; }            // as it is written

    // errc::invalid_argument: not of that type. An integer has 64 bits, neither fraction nor exponent, and is read to
    // the last digit.
    result<std::string> string() const;
    result<double> number() const;
    result<std::int64_t> integer() const;
    result<bool> boolean() const;
    // T is picojson::value, array or object: for files that include <picojson.h>. Checks what parse() does before, with
    // its errors; errc::invalid_argument: the value is of another type. Numbers become doubles.
    template <class T>
    result<T> as() const;

    // json_type::none where there is none. Of several members of one name the last counts.
    json_view member(std::string_view name) const;
    json_view element(std::size_t index) const;
    // for (const auto& [key, value] : view): the members of an object, or the elements of an array, whose keys are
    // none.
    detail::json_iterator begin() const;
    detail::json_iterator end() const noexcept;

  private:
    std::string_view text_;
};

namespace detail {

struct json_item {
    json_view key;
    json_view value;
};

class json_iterator {
  public:
    json_iterator() = default;
    explicit json_iterator(const json_view& view)
        : rest_(view.text()), is_object_(view.type() == json_type::object) {
        ++*this;
    }
    const json_item& operator*() const noexcept { return item_; }
    const json_item* operator->() const noexcept { return &item_; }
    json_iterator& operator++();
    bool operator!=(const json_iterator& other) const noexcept {
        return item_.value.text().data() != other.item_.value.text().data();
    }

  private:
    std::string_view rest_;
    bool is_object_ = false;
    json_item item_;
};

// Whether the whole of `text` is one JSON value [RFC 8259], found by a walk that builds nothing. errc::bad_response with
// a short text (never an echo of the input) for anything else, and for a surrogate that stands alone, numbers that do
// not fit a double, and nesting deeper than json_view::max_depth. Whether strings are UTF-8 is another question:
// is_utf8().
result<void> check_json(std::string_view text);
bool is_json(std::string_view text);
bool is_json_object(std::string_view text);

// The source text of a member of an object, or of the next element of an array: what a number was written as is
// kept, where a double would lose digits. Empty or false when there is none. Iterative, so no nesting overflows the
// stack. Made for JSON that was checked; of anything else they find something or nothing, safely. The next_ forms get
// the whole text first and move `rest` on; `key` comes with its quotes. When they find nothing more, raw_walk_ended()
// tells whether that is so because of the closing bracket at the end of the text, the brackets within matching.
std::string_view raw_member(std::string_view object, std::string_view key);
bool next_raw_member(std::string_view& rest, std::string_view& key, std::string_view& value);
bool next_raw_element(std::string_view& rest, std::string_view& element);
bool raw_walk_ended(std::string_view rest, char open, char close) noexcept;
// `object` with that member in place of any it has of that name; an empty `value` only takes those away.
std::string with_raw_member(std::string_view object, std::string_view key, std::string_view value);

// The string that `source` writes; false if it is none.
bool raw_string(std::string_view source, std::string& out);
// The number that `source` writes; false if it is none, or does not fit a double.
bool json_number(std::string_view source, double& out);
bool is_json_number(std::string_view source) noexcept;

// ---- picojson, where a file includes <picojson.h>, before or after ----

// Numbers are read and written with a point, whatever locale the program has set. Only this thread is affected.
class c_locale_scope {
  public:
    c_locale_scope() noexcept;
    c_locale_scope(const c_locale_scope&) = delete;
    c_locale_scope& operator=(const c_locale_scope&) = delete;
    ~c_locale_scope();

  private:
    void* const previous_;  // a locale_t
};

// Whether T is picojson::value, array or object.
template <class T, class Value, class = void>
inline constexpr bool is_picojson = std::is_same_v<T, Value>;
template <class T, class Value>
inline constexpr bool is_picojson<T, Value, decltype(static_cast<void>(typename Value::object()))> =
    std::is_same_v<T, Value> || std::is_same_v<T, typename Value::array> ||
    std::is_same_v<T, typename Value::object>;

template <class V>
using if_picojson = std::enable_if_t<std::is_same_v<V, picojson::value>, int>;

// picojson would throw on numbers that no double can hold and overflow the stack on deep nesting: json_view refuses
// both before. The type's name is a parameter, for it need not be complete here.
template <class T, class Value = picojson::value>
result<T> read_picojson(std::string_view json) {
    const result<json_view> checked = json_view::parse(json);
    if (!checked) return checked.error();
    Value out;
    std::string fault;
    const c_locale_scope plain;
    parse(out, json.begin(), json.end(), &fault);
    if (!fault.empty()) return error{errc::bad_response, 0, "picojson cannot read the JSON"};
    if constexpr (std::is_same_v<T, Value>) {
        return result<T>(std::move(out));
    } else {
        if (!out.template is<T>()) return error{errc::invalid_argument, 0, "not a JSON value of that type"};
        return result<T>(std::move(out.template get<T>()));
    }
}

template <class Value>
std::string write_picojson(const Value& value) {
    const c_locale_scope plain;
    return value.serialize();
}

}  // namespace detail

template <class T>
result<T> json_view::as() const {
    return detail::read_picojson<T>(text_);
}

}  // namespace v0_1_0
}  // namespace ojs
