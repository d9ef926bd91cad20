// Compares two JSON texts, with every digit of their numbers.
#pragma once

#include <algorithm>
#include <map>
#include <ojs_shutdown.hpp>
#include <string>
#include <string_view>

namespace transport_contract {
// 1.50, 15e-1 and 1.5 are the same: 15e-1.
inline std::string canonical_number(std::string_view text) {
    const std::size_t end = std::min(text.find_first_of("eE"), text.size());
    long exponent = end < text.size() ? std::stol(std::string(text.substr(end + 1))) : 0;
    std::string digits(text.substr(0, end));
    const std::size_t point = digits.find('.');
    if (point != digits.npos) {
        exponent -= static_cast<long>(digits.size() - point - 1);
        digits.erase(point, 1);
    }
    digits.erase(0, digits.find_first_not_of("-0"));
    if (digits.empty()) return "0";
    for (; digits.back() == '0'; ++exponent) digits.pop_back();
    return (text.front() == '-' ? "-" : "") + digits + "e" + std::to_string(exponent);
}

// One form of each value: members sorted, no blanks, strings as UTF-8, numbers as digits and exponent.
inline std::string canonical_json(const ojs::json_view& of) {
    if (of.type() == ojs::json_type::number) return canonical_number(of.text());
    if (of.type() == ojs::json_type::string) return '"' + of.string().value_or("") + '"';
    const bool is_object = of.type() == ojs::json_type::object;
    if (!is_object && of.type() != ojs::json_type::array) return std::string(of.text());
    std::string out;
    std::map<std::string, std::string> members;
    for (const auto& [key, value] : of) {
        if (is_object) members[canonical_json(key)] = canonical_json(value);
        if (!is_object) out += canonical_json(value) + ",";
    }
    for (const auto& [key, value] : members) out += key + ":" + value + ",";
    return is_object ? "{" + out + "}" : "[" + out + "]";
}

inline bool same_json(std::string_view one, std::string_view other) {
    const auto first = ojs::json_view::parse(one);
    const auto second = ojs::json_view::parse(other);
    return first && second && canonical_json(*first) == canonical_json(*second);
}
}  // namespace transport_contract
