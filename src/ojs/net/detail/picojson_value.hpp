// picojson_value: values of picojson from and to JSON text, where a file includes <picojson.h>, before or after.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "../../base/function.hpp"
#include "../json_view.hpp"

namespace picojson {
class value;
}

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

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

// picojson would throw on numbers that no double can hold and overflow the stack on deep nesting: json_view refuses both
// before. The type's name is a parameter, for it need not be complete here.
template <class T, class Value = picojson::value>
result<T> read_picojson(std::string_view json) {
    const result<json_view> checked = json_view::parse(json);
    if (!checked) return checked.error();
    Value out;
    std::string fault;
    const c_locale_scope plain;
    parse(out, json.begin(), json.end(), &fault);
    if (!fault.empty()) return error{errc::bad_answer, 0, "picojson cannot read the JSON"};
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
