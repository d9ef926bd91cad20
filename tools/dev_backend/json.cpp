#include "json.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "refusal.hpp"

namespace dev_backend {

void append_quoted(std::string& out, std::string_view text) {
    const auto is_special = [](char c) {
        return static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\';
    };
    out += '"';
    for (;;) {
        const auto* const special = std::find_if(text.begin(), text.end(), is_special);
        out.append(text.begin(), special);
        if (special == text.end()) break;
        std::array<char, 8> escaped{'\\', *special};
        if (static_cast<unsigned char>(*special) < 0x20)
            std::snprintf(escaped.data(), escaped.size(), "\\u%04x", static_cast<unsigned>(*special));
        out += escaped.data();
        text.remove_prefix(static_cast<std::size_t>(special - text.begin()) + 1);
    }
    out += '"';
}

namespace {

// The library's limit of durations: no sum of them overflows a clock.
constexpr milliseconds max_time{2147483000};

}  // namespace

json_members::json_members(json_view object) {
    if (object.type() != json_type::object) return;
    all_.reserve(8);
    for (const auto& [key, value] : object) all_.emplace_back(key, value);
}

json_view json_members::operator[](std::string_view key) const {
    const auto is_wanted = [&](const auto& each) { return ojs::detail::json_key_is(each.first, key); };
    const auto found = std::find_if(all_.rbegin(), all_.rend(), is_wanted);
    return found == all_.rend() || found->second.type() == json_type::null ? json_view() : found->second;
}

json_members parse_object(std::string_view body) {
    const ojs::result<json_view> read = json_view::parse(body);
    if (!read) refuse_shape("the body is " + read.error().text);
    if (read->type() != json_type::object) refuse_shape("the body is not a JSON object");
    return json_members(*read);
}

std::string text_or(const json_members& from, const char* key, const std::string& fallback) {
    const json_view found = from[key];
    if (!found) return fallback;
    ojs::result<std::string> out = found.string();
    if (!out) refuse_shape(std::string(key) + " is not a string");
    return std::move(*out);
}

std::string required_text(const json_members& from, const char* key) {
    std::string out = text_or(from, key, "");
    if (out.empty()) refuse_shape(std::string(key) + " is missing or empty");
    return out;
}

std::optional<double> number_of(json_view value) {
    if (const auto whole = value.integer()) return static_cast<double>(*whole);
    if (const auto number = value.number()) return *number;
    return std::nullopt;
}

std::int64_t integer_or(const json_members& from, const char* key, std::int64_t least,
                        std::int64_t fallback) {
    const json_view found = from[key];
    if (!found) return fallback;
    const double number = number_of(found).value_or(0.5);
    const bool whole =
        number >= -1e15 && number <= 1e15 && number == static_cast<double>(static_cast<std::int64_t>(number));
    if (!whole || number < static_cast<double>(least)) {
        refuse_shape(std::string(key) + " is not a whole number of at least " + std::to_string(least));
    }
    return static_cast<std::int64_t>(number);
}

milliseconds time_or(const json_members& from, const char* key, milliseconds unit, milliseconds least,
                     milliseconds fallback) {
    const json_view found = from[key];
    if (!found) return fallback;
    const std::optional<double> number = number_of(found);
    if (!number) refuse_shape(std::string(key) + " is not a number");
    const auto scale = static_cast<double>(unit.count());
    const double min_ms = static_cast<double>(least.count());
    const double max_ms = static_cast<double>(max_time.count());
    return milliseconds(static_cast<std::int64_t>(std::min(std::max(*number * scale, min_ms), max_ms)));
}

bool flag_or(const json_members& from, const char* key, bool fallback) {
    const json_view found = from[key];
    if (!found) return fallback;
    const auto out = found.boolean();
    if (!out) refuse_shape(std::string(key) + " is not true or false");
    return *out;
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
