#include "json.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>

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

// picojson counts the arrays that it is in, but not the objects, and would go on until the stack ends.
bool is_too_deep(const std::string& text) {
    constexpr int deepest = 100;
    int depth = 0;
    bool is_quoted = false;
    for (std::size_t i = 0; i < text.size() && depth <= deepest; ++i) {
        if (text[i] == '"') is_quoted = !is_quoted;
        if (is_quoted && text[i] == '\\') ++i;
        if (is_quoted) continue;
        if (text[i] == '[' || text[i] == '{') ++depth;
        if (text[i] == ']' || text[i] == '}') --depth;
    }
    return depth > deepest;
}

// How long the character is that begins `text`; 0: it is none. [RFC 3629]
std::size_t character_length(std::string_view text) {
    const auto byte = [&](std::size_t at) -> unsigned {
        return at < text.size() ? static_cast<unsigned char>(text[at]) : 0;
    };
    const unsigned first = byte(0);
    const unsigned second = byte(1);
    const std::size_t length = first < 0x80                    ? 1
                               : first >= 0xc2 && first < 0xe0 ? 2
                               : first >= 0xe0 && first < 0xf0 ? 3
                               : first >= 0xf0 && first < 0xf5 ? 4
                                                               : 0;
    for (std::size_t at = 1; at < length; ++at) {
        if ((byte(at) & 0xc0) != 0x80) return 0;
    }
    const bool too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
    const bool beyond = (first == 0xed && second >= 0xa0) || (first == 0xf4 && second >= 0x90);
    return too_long || beyond ? 0 : length;
}

bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

// Whether a member's name has an escape for what needs none: "\u0069d" is "id" for picojson, and another name for what
// cuts members out of the text.
bool disguises_a_name(const std::string& text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '"') continue;
        bool is_disguised = false;
        for (++i; i < text.size() && text[i] != '"'; ++i) {
            if (text[i] != '\\') continue;
            is_disguised |= text.compare(i, 4, "\\u00") == 0 && i + 4 < text.size() && text[i + 4] >= '2' &&
                            text[i + 4] <= '7';
            ++i;
        }
        std::size_t next = std::min(i + 1, text.size());
        while (next < text.size() && is_blank(text[next])) ++next;
        if (is_disguised && next < text.size() && text[next] == ':') return true;
    }
    return false;
}

// [RFC 8259 6]
bool is_number(std::string_view text) {
    const auto skip = [&text](std::string_view any) {
        if (text.empty() || any.find(text.front()) == any.npos) return false;
        text.remove_prefix(1);
        return true;
    };
    const auto skip_digits = [&] {
        const std::size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
        text.remove_prefix(count);
        return count > 0;
    };
    skip("-");
    if (!skip("0") && !skip_digits()) return false;
    if (skip(".") && !skip_digits()) return false;
    if (!skip("eE")) return text.empty();
    skip("-+");
    return skip_digits() && text.empty();
}

// picojson takes 007 and 1. for numbers. What it takes is passed on as it was written, to who may not.
bool has_bad_number(const std::string& text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '"') {
            for (++i; i < text.size() && text[i] != '"'; ++i) i += text[i] == '\\' ? 1U : 0U;
        } else if (text[i] == '-' || (text[i] >= '0' && text[i] <= '9')) {
            const std::size_t end = std::min(text.find_first_not_of("+-.0123456789eE", i), text.size());
            if (!is_number(std::string_view(text).substr(i, end - i))) return true;
            i = end - 1;
        }
    }
    return false;
}

// Whether the whole of `text` is one JSON value that picojson can hold.
bool parse_whole(const std::string& text, picojson::value& out) {
    if (has_bad_number(text)) return false;
    std::string why;
    try {
        const auto end = picojson::parse(out, text.begin(), text.end(), &why);
        return why.empty() && std::all_of(end, text.end(), is_blank);
    } catch (const std::exception&) {  // a number that no double holds
        return false;
    }
}

// As long as the library's own durations may be: no sum of these leaves what a clock can hold.
constexpr milliseconds longest_time{2147483000};

}  // namespace

bool is_utf8(std::string_view text) {
    while (!text.empty()) {
        const std::size_t length = character_length(text);
        if (length == 0) return false;
        text.remove_prefix(length);
    }
    return true;
}

bool is_json(const std::string& text, picojson::value& out) {
    return !is_too_deep(text) && !disguises_a_name(text) && is_utf8(text) && parse_whole(text, out);
}

picojson::value parse_object(const std::string& body) {
    picojson::value out;
    if (is_too_deep(body)) refuse_shape("the body is nested deeper than 100");
    if (disguises_a_name(body)) refuse_shape("a member's name has an escape for a character that needs none");
    if (!is_utf8(body)) refuse_shape("the body is not UTF-8");
    if (!parse_whole(body, out)) refuse_shape("the body is not JSON, or has a number that no double holds");
    if (!out.is<picojson::object>()) refuse_shape("the body is not a JSON object");
    return out;
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
    const double least_ms = static_cast<double>(least.count());
    const double longest_ms = static_cast<double>(longest_time.count());
    const double ms = std::min(std::max(found->get<double>() * scale, least_ms), longest_ms);
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
