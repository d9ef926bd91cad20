// json: builds JSON text, and reads the members of a request, both without a tree.
#pragma once
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ojs_server.hpp"

namespace dev_backend {
using ojs::json_type;
using ojs::json_view;
using ojs::detail::raw_member;
using std::chrono::milliseconds;

// Builds the text of one JSON object. A key is written as it is, between quotes.
class json_object {
  public:
    json_object() : text_("{") { text_.reserve(256); }
    // `begin` is text that ends within an object, behind a member.
    explicit json_object(std::string begin) : text_(std::move(begin)) {}

    json_object& raw(std::string_view key, std::string_view json) {
        ojs::detail::append(text_, {text_.size() > 1 ? ",\"" : "\"", key, "\":", json});
        return *this;
    }
    json_object& text(std::string_view key, std::string_view value) {
        raw(key, {});
        text_ += ojs::detail::json_quote(value);
        return *this;
    }
    json_object& number(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
    json_object& flag(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
    template <class Texts = std::initializer_list<std::string_view>>
    json_object& texts(std::string_view key, const Texts& values) {
        return list(key, values,
                    [](std::string& out, std::string_view value) { out += ojs::detail::json_quote(value); });
    }
    json_object& raws(std::string_view key, const std::vector<std::string>& jsons) {
        return list(key, jsons, [](std::string& out, std::string_view json) { out.append(json); });
    }
    const std::string& open_text() const { return text_; }  // without its closing brace
    std::string str() {                                     // the last call
        text_ += '}';
        return std::move(text_);
    }

  private:
    template <class Values, class Append>
    json_object& list(std::string_view key, const Values& values, Append append) {
        raw(key, "[");
        bool is_first = true;
        for (const std::string_view value : values) {
            if (!std::exchange(is_first, false)) text_ += ',';
            append(text_, value);
        }
        text_ += ']';
        return *this;
    }

    std::string text_;
};

// ---- reading: each refuses other types ----

json_view parse_object(std::string_view body);
std::string text_or(json_view from, const char* key, const std::string& fallback);
std::string required_text(json_view from, const char* key);
std::int64_t integer_or(json_view from, const char* key, std::int64_t min, std::int64_t fallback);
bool flag_or(json_view from, const char* key, bool fallback);
// A time in units of `unit`, limited to 0 and the library's longest.
milliseconds time_or(json_view from, const char* key, milliseconds unit, milliseconds fallback);
json_view object_or_none(json_view from, const char* key);
// `object` with this member replaced or added; an empty `value` removes it.
std::string with_raw_member(std::string_view object, std::string_view key, std::string_view value);
json_view member(json_view from, std::string_view key);  // no value: absent or null

// The strings of an array; nullopt: absent, or no array of strings.
std::optional<std::vector<std::string>> texts_of(json_view value);
}  // namespace dev_backend
