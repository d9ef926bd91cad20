#include "json.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "refusal.hpp"

namespace dev_backend {

std::string quote(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            std::array<char, 8> escaped{};
            std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(c));
            out += escaped.data();
        } else {
            out += c;
        }
    }
    return out + "\"";
}

namespace {

// The library's limit of durations: no sum of them overflows a clock.
constexpr milliseconds max_time{2147483000};

}  // namespace

picojson::value parse_object(const std::string& body) {
    const ojs::result<ojs::json_view> read = ojs::json_view::parse(body);
    if (!read) refuse_shape("the body is " + read.error().text);
    if (read->type() != ojs::json_type::object) refuse_shape("the body is not a JSON object");
    return *read->as<picojson::value>();
}

std::string_view source_of(std::string_view object, std::string_view key) {
    return ojs::json_view(object).member(key).text();
}

std::string with_member(std::string_view object, std::string_view key, std::string_view value) {
    json_object out;
    for (const auto& [name, source] : ojs::json_view(object)) {
        if (*name.string() != key) out.raw(*name.string(), source.text());
    }
    if (!value.empty()) out.raw(key, value);
    return out.str();
}

const picojson::value* member(const picojson::value& object, const char* key) {
    if (!object.is<picojson::object>()) return nullptr;
    const picojson::value& found = object.get(key);
    return found.is<picojson::null>() ? nullptr : &found;
}

std::string text_or(const picojson::value& object, const char* key, const std::string& fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    if (!found->is<std::string>()) refuse_shape(std::string(key) + " is not a string");
    return found->get<std::string>();
}

std::string required_text(const picojson::value& object, const char* key) {
    std::string out = text_or(object, key, "");
    if (out.empty()) refuse_shape(std::string(key) + " is missing or empty");
    return out;
}

std::int64_t integer_or(const picojson::value& object, const char* key, std::int64_t least,
                        std::int64_t fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    const double number = found->is<double>() ? found->get<double>() : 0.5;
    const bool whole =
        number >= -1e15 && number <= 1e15 && number == static_cast<double>(static_cast<std::int64_t>(number));
    if (!whole || number < static_cast<double>(least)) {
        refuse_shape(std::string(key) + " is not a whole number of at least " + std::to_string(least));
    }
    return static_cast<std::int64_t>(number);
}

milliseconds time_or(const picojson::value& object, const char* key, milliseconds unit, milliseconds least,
                     milliseconds fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    if (!found->is<double>()) refuse_shape(std::string(key) + " is not a number");
    const auto scale = static_cast<double>(unit.count());
    const double min_ms = static_cast<double>(least.count());
    const double max_ms = static_cast<double>(max_time.count());
    const double ms = std::min(std::max(found->get<double>() * scale, min_ms), max_ms);
    return milliseconds(static_cast<std::int64_t>(ms));
}

bool flag_or(const picojson::value& object, const char* key, bool fallback) {
    const picojson::value* found = member(object, key);
    if (found == nullptr) return fallback;
    if (!found->is<bool>()) refuse_shape(std::string(key) + " is not true or false");
    return found->get<bool>();
}

std::optional<std::vector<std::string>> texts_of(const picojson::value& object, const char* key) {
    const picojson::value* found = member(object, key);
    if (found == nullptr || !found->is<picojson::array>()) return std::nullopt;
    std::vector<std::string> out;
    for (const picojson::value& each : found->get<picojson::array>()) {
        if (!each.is<std::string>()) return std::nullopt;
        out.push_back(each.get<std::string>());
    }
    return out;
}

}  // namespace dev_backend
