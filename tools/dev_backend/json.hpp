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

#include "library.hpp"

namespace dev_backend {

using ojs::json_type;
using ojs::json_view;
using ojs::detail::raw_member;
using ojs::detail::with_raw_member;
using std::chrono::milliseconds;

void append_quoted(std::string& out, std::string_view text);

// Builds the text of one JSON object. A key is written as it is, between quotes.
class json_object {
  public:
    // `begin` is text that ends within an object, behind a member.
    static json_object continued(std::string begin) { return json_object(std::move(begin)); }
    // Ignores what is added.
    static json_object none() { return json_object(std::string()); }
    json_object() : text_("{") { text_.reserve(256); }

    json_object& raw(std::string_view key, std::string_view json) {
        if (begin_member(key)) text_.append(json);
        return *this;
    }
    json_object& text(std::string_view key, std::string_view value) {
        if (begin_member(key)) append_quoted(text_, value);
        return *this;
    }
    json_object& number(std::string_view key, std::int64_t value) {
        if (begin_member(key)) text_.append(std::to_string(value));
        return *this;
    }
    json_object& flag(std::string_view key, bool value) { return raw(key, value ? "true" : "false"); }
    template <class Texts = std::initializer_list<std::string_view>>
    json_object& texts(std::string_view key, const Texts& values) {
        return list(key, values, append_quoted);
    }
    json_object& raws(std::string_view key, const std::vector<std::string>& jsons) {
        return list(key, jsons, [](std::string& out, std::string_view json) { out.append(json); });
    }
    bool is_none() const { return text_.empty(); }
    const std::string& open_text() const { return text_; }  // without its closing brace
    std::string str() {                                     // the last call
        text_ += '}';
        return std::move(text_);
    }

  private:
    explicit json_object(std::string begin) : text_(std::move(begin)) {}
    bool begin_member(std::string_view key) {
        if (text_.empty()) return false;
        text_.append(text_.size() > 1 ? ",\"" : "\"").append(key).append("\":");
        return true;
    }
    template <class Values, class Append>
    json_object& list(std::string_view key, const Values& values, Append append) {
        if (!begin_member(key)) return *this;
        char separator = '[';
        for (const std::string_view value : values) {
            text_ += std::exchange(separator, ',');
            append(text_, value);
        }
        text_ += separator == '[' ? "[]" : "]";
        return *this;
    }

    std::string text_;
};

// The members of one object, whose text must outlive this. Of several members of one name, the last counts.
class json_members {
  public:
    json_members() = default;
    explicit json_members(json_view object);  // no members: it is none
    // No value: absent or null.
    json_view operator[](std::string_view key) const;
    const std::vector<std::pair<json_view, json_view>>& all() const { return all_; }

  private:
    std::vector<std::pair<json_view, json_view>> all_;
};

// ---- reading: each refuses other types ----

json_members parse_object(std::string_view body);
std::string text_or(const json_members& from, const char* key, const std::string& fallback);
std::string required_text(const json_members& from, const char* key);
std::int64_t integer_or(const json_members& from, const char* key, std::int64_t least, std::int64_t fallback);
bool flag_or(const json_members& from, const char* key, bool fallback);
// A time in units of `unit`, limited to `least` and max_time.
milliseconds time_or(const json_members& from, const char* key, milliseconds unit, milliseconds least,
                     milliseconds fallback);

std::optional<double> number_of(json_view value);  // nullopt: no number
// The strings of an array; nullopt: absent, or no array of strings.
std::optional<std::vector<std::string>> texts_of(json_view value);

}  // namespace dev_backend
