#include "json_slicer.hpp"

#include <algorithm>

namespace dev_backend {

json_slicer::members json_slicer::object_members(std::string_view object) {
    json_slicer at(object);
    members out;
    at.take('{');
    while (!at.take('}')) {
        std::string_view key = at.value();
        key = key.substr(1, key.size() - 2);
        at.take(':');
        out.emplace_back(key, at.value());
        at.take(',');
    }
    return out;
}

std::vector<std::string_view> json_slicer::array_elements(std::string_view array) {
    json_slicer at(array);
    std::vector<std::string_view> out;
    at.take('[');
    while (!at.take(']')) {
        out.push_back(at.value());
        at.take(',');
    }
    return out;
}

std::string json_slicer::with(std::string_view object, std::string_view key, std::string_view value) {
    members all = object_members(object);
    const auto of_that_name = [&](const members::value_type& each) { return each.first == key; };
    all.erase(std::remove_if(all.begin(), all.end(), of_that_name), all.end());
    if (!value.empty()) all.emplace_back(key, value);
    std::string out = "{";
    for (const auto& [name, source] : all) {
        out.append(out.size() > 1 ? ",\"" : "\"").append(name).append("\":").append(source);
    }
    return out + "}";
}

std::string_view json_slicer::find(const members& all, std::string_view key) {
    std::string_view out;
    for (const auto& [name, value] : all) {
        if (name == key) out = value;
    }
    return out;
}

std::string json_slicer::source(std::string_view object, const char* key, const picojson::value& parsed) {
    const std::string_view found = find(object_members(object), key);
    return found.empty() ? parsed.serialize() : std::string(found);
}

void json_slicer::skip_blanks() {
    while (!rest_.empty() && rest_.front() <= ' ' && rest_.front() >= 0) rest_.remove_prefix(1);
}

bool json_slicer::take(char wanted) {
    skip_blanks();
    if (rest_.empty()) return true;  // ends every loop above
    if (rest_.front() != wanted) return false;
    rest_.remove_prefix(1);
    return true;
}

std::string_view json_slicer::value() {
    skip_blanks();
    const std::size_t length = rest_.empty() ? 0 : value_length();
    const std::string_view out = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return out;
}

std::size_t json_slicer::value_length() const {
    std::size_t depth = 0;
    std::size_t at = 0;
    do {
        const char c = rest_[at];
        if (c == '"') {
            at += string_length(at);
        } else if (c == '{' || c == '[') {
            ++depth;
            ++at;
        } else if (c == '}' || c == ']') {
            --depth;
            ++at;
        } else {
            at = std::min(rest_.find_first_of(depth == 0 ? " \t\r\n,]}" : "\"{}[]", at + 1), rest_.size());
        }
    } while (depth > 0 && at < rest_.size());
    return at;
}

std::size_t json_slicer::string_length(std::size_t start) const {
    std::size_t at = start + 1;
    while (at < rest_.size() && rest_[at] != '"') at += rest_[at] == '\\' ? 2U : 1U;
    return at + 1 - start;
}

}  // namespace dev_backend
