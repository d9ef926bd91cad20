// json: builds JSON text, and reads the members of a request with picojson.
#pragma once
#include <picojson.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "library.hpp"

namespace dev_backend {

using std::chrono::milliseconds;

std::string quote(std::string_view text);

// Builds the text of one JSON object.
class json_object {
  public:
    json_object& raw(std::string_view key, std::string_view json) {
        text_.append(text_.size() > 1 ? "," : "").append(quote(key)).append(":").append(json);
        return *this;
    }
    json_object& text(std::string_view key, std::string_view value) { return raw(key, quote(value)); }
    json_object& number(std::string_view key, std::int64_t value) { return raw(key, std::to_string(value)); }
    json_object& flag(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
    json_object& texts(std::string_view key, const std::vector<std::string>& values) {
        std::string list = "[";
        for (const std::string& value : values) list.append(list.size() > 1 ? "," : "").append(quote(value));
        return raw(key, list + "]");
    }
    json_object& raws(std::string_view key, const std::vector<std::string>& jsons) {
        std::string list = "[";
        for (const std::string& json : jsons) list.append(list.size() > 1 ? "," : "").append(json);
        return raw(key, list + "]");
    }
    // The text without its closing brace, and the way to continue it.
    const std::string& open_text() const { return text_; }
    static json_object continued(std::string open_text) {
        json_object out;
        out.text_ = std::move(open_text);
        return out;
    }
    std::string str() const { return text_ + "}"; }

  private:
    std::string text_ = "{";
};

// ---- reading: each refuses other types ----

picojson::value parse_object(const std::string& body);
const picojson::value* member(const picojson::value& object, const char* key);  // null: absent
std::string text_or(const picojson::value& object, const char* key, const std::string& fallback);
std::string required_text(const picojson::value& object, const char* key);
std::int64_t integer_or(const picojson::value& object, const char* key, std::int64_t least,
                        std::int64_t fallback);
bool flag_or(const picojson::value& object, const char* key, bool fallback);
// A time in units of `unit`, limited to `least` and max_time.
milliseconds time_or(const picojson::value& object, const char* key, milliseconds unit, milliseconds least,
                     milliseconds fallback);
// The source text of a member, digit for digit, because picojson stores numbers as doubles. Empty: absent.
std::string_view source_of(std::string_view object, std::string_view key);
// Sets a member; an empty `value` removes it.
std::string with_member(std::string_view object, std::string_view key, std::string_view value);
// The strings of an array; nullopt: absent, or no array of strings.
std::optional<std::vector<std::string>> texts_of(const picojson::value& object, const char* key);

}  // namespace dev_backend
