#include "json.hpp"

#include <algorithm>

#include "refusal.hpp"

namespace dev_backend {
std::string with_raw_member(std::string_view object, std::string_view key, std::string_view value) {
    json_object out;
    for (ojs::detail::json_iterator at(object, '{'); at; ++at) {
        const std::string name = at->key.string().value_or("");
        if (name != key) out.raw(std::string(at->key.text().substr(1, at->key.text().size() - 2)), at->value.text());
    }
    if (!value.empty()) out.raw(key, value);
    return out.str();
}

json_view member(json_view from, std::string_view key) {
    const json_view found = from.member(key);
    return found.type() == json_type::null ? json_view() : found;
}

json_view parse_object(std::string_view body) {
    const ojs::result<json_view> read = json_view::parse(body);
    if (!read) refuse_shape("the body is " + read.error().text);
    if (read->type() != json_type::object) refuse_shape("the body is not a JSON object");
    return *read;
}

std::string text_or(json_view from, const char* key, const std::string& fallback) {
    const json_view found = member(from, key);
    if (!found) return fallback;
    ojs::result<std::string> out = found.string();
    if (!out) refuse_shape(std::string(key) + " is not a string");
    return std::move(*out);
}

std::string required_text(json_view from, const char* key) {
    std::string out = text_or(from, key, "");
    if (out.empty()) refuse_shape(std::string(key) + " is missing or empty");
    return out;
}

std::int64_t integer_or(json_view from, const char* key, std::int64_t min, std::int64_t fallback) {
    const json_view found = member(from, key);
    if (!found) return fallback;
    const auto number = found.integer();
    if (!number || *number < min)
        refuse_shape(std::string(key) + " is not a whole number of at least " + std::to_string(min));
    return *number;
}

milliseconds time_or(json_view from, const char* key, milliseconds unit, milliseconds fallback) {
    constexpr double longest = 2147483000;  // no sum of such times overflows a clock
    const json_view found = member(from, key);
    if (!found) return fallback;
    const auto number = found.number();
    if (!number) refuse_shape(std::string(key) + " is not a number");
    const double ms = *number * static_cast<double>(unit.count());
    return milliseconds(static_cast<std::int64_t>(std::clamp(ms, 0.0, longest)));
}

bool flag_or(json_view from, const char* key, bool fallback) {
    const json_view found = member(from, key);
    if (!found) return fallback;
    const auto out = found.boolean();
    if (!out) refuse_shape(std::string(key) + " is not true or false");
    return *out;
}

json_view object_or_none(json_view from, const char* key) {
    const json_view out = member(from, key);
    if (out && out.type() != json_type::object) refuse_shape(std::string(key) + " is not an object");
    return out;
}

std::optional<std::vector<std::string>> texts_of(json_view value) {
    if (value.type() != json_type::array) return std::nullopt;
    std::vector<std::string> out;
    for (const auto& [key, each] : value) {
        auto text = each.string();
        if (!text) return std::nullopt;
        out.push_back(std::move(*text));
    }
    return out;
}
}  // namespace dev_backend
