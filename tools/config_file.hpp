// config_file: the JSON object that a configuration file holds, and what one that is TOML would be as JSON.
#pragma once

#include <picojson.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ojs_shutdown.hpp"

namespace config_file {

inline ojs::error wrong_usage(std::string text) {
    return {ojs::errc::invalid_argument, 0, std::move(text)};
}

inline ojs::result<std::string> read_file(const std::string& path) {
    constexpr std::uintmax_t largest = 1024 * 1024;
    std::error_code failed;
    if (!std::filesystem::is_regular_file(path, failed))
        return wrong_usage("cannot read " + path + ": it is not there, or not a regular file");
    if (std::filesystem::file_size(path, failed) > largest || failed)
        return wrong_usage("cannot read " + path + ": it is larger than 1 MiB");
    std::ifstream file(path, std::ios::binary);
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.is_open() || file.bad()) return wrong_usage("cannot read " + path);
    return text;
}

// ---- TOML ----

inline std::string_view trimmed(std::string_view text) {
    constexpr const char* blanks = " \t\r";
    const std::size_t first = text.find_first_not_of(blanks);
    if (first == std::string_view::npos) return {};
    return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

inline bool is_bare_key(std::string_view word) {
    constexpr const char* letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    return !word.empty() && word.find_first_not_of(letters) == std::string_view::npos;
}

inline bool is_comment_or_empty(std::string_view text) {
    text = trimmed(text);
    return text.empty() || text.front() == '#';
}

// NAME of the line "[NAME]"; empty for any other.
inline std::string_view table_name(std::string_view line) {
    const std::size_t end = line.find(']');
    if (end == std::string_view::npos || line.front() != '[' || !is_comment_or_empty(line.substr(end + 1)))
        return {};
    const std::string_view name = trimmed(line.substr(1, end - 1));
    return is_bare_key(name) ? name : std::string_view();
}

// KEY = VALUE
struct assignment {
    std::string_view key;  // empty: the line is none
    std::string_view value;
};
inline assignment assignment_of(std::string_view line) {
    const std::size_t equals = line.find('=');
    const std::string_view key = trimmed(line.substr(0, equals));
    if (equals == std::string_view::npos || !is_bare_key(key)) return {};
    return {key, trimmed(line.substr(equals + 1))};
}

// False for a value that JSON writes otherwise, but for 'text'.
inline bool read_value(std::string_view text, picojson::value& out) {
    const std::size_t quote = text.substr(0, 1) == "'" ? text.find('\'', 1) : std::string_view::npos;
    if (quote != std::string_view::npos) {
        out = picojson::value(std::string(text.substr(1, quote - 1)));
        return is_comment_or_empty(text.substr(quote + 1));
    }
    const std::string list = "[" + std::string(text);
    const ojs::json_view first = ojs::json_view(list).element(0);
    const auto read = first.as<picojson::value>();
    if (read) out = *read;
    return read && is_comment_or_empty(text.substr(first.text().size()));
}

// What [controller], or what stands outside of any table, says of the keys that are known.
struct toml {
    bool is_toml = false;
    picojson::object read;
    std::string left_out;  // keys that are not known, or have other values than lines of JSON
};
inline toml read_toml(const std::string& text, const std::string& table,
                      const std::vector<std::string>& known) {
    toml out;
    bool is_ours = true;
    std::istringstream lines(text);
    for (std::string each; std::getline(lines, each);) {
        const std::string_view line = trimmed(each);
        if (is_comment_or_empty(line)) continue;
        const auto [key, value] = assignment_of(line);
        const std::string_view name = table_name(line);
        if (!out.is_toml && key.empty() && name.empty()) return {};
        out.is_toml = true;
        if (line.front() == '[') is_ours = name == table;
        if (!is_ours || key.empty()) continue;
        picojson::value as_json;
        if (std::find(known.begin(), known.end(), key) != known.end() && read_value(value, as_json)) {
            out.read[std::string(key)] = as_json;
        } else if (out.left_out.size() < 200) {
            out.left_out += (out.left_out.empty() ? "" : ", ") + std::string(key.substr(0, 60));
        }
    }
    return out;
}

inline std::string describe(const toml& found) {
    constexpr std::size_t longest = 2000;
    const std::string left_out = found.left_out.empty() ? "" : ", without " + found.left_out + ",";
    const std::string json = picojson::value(found.read).serialize();
    return " is TOML; the same keys as JSON" + left_out +
           (json.size() <= longest ? " are: " + json : " are wanted");
}

// ---- JSON ----

// A key that an object has twice, at any depth; empty: none. picojson would keep the last, and say nothing.
inline std::string repeated_key(const ojs::json_view& value) {
    std::set<std::string> seen;
    for (const auto& [key, each] : value) {
        if (key && !seen.insert(*key.string()).second) return *key.string();
        const std::string within = repeated_key(each);
        if (!within.empty()) return within;
    }
    return "";
}

inline ojs::error given_twice(const std::string& path, const std::string& key) {
    return wrong_usage(path + ": " + key.substr(0, 60) + ": is given twice");
}

// {"TABLE": {...}}, as one that has it from TOML may write it, is as good as {...}.
inline ojs::result<picojson::object> without_table(const std::string& path, const std::string& table,
                                                   picojson::object out) {
    const auto found = out.find(table);
    if (found == out.end()) return out;
    if (!found->second.is<picojson::object>())
        return wrong_usage(path + ": " + table + ": must be an object");
    const picojson::object inner = found->second.get<picojson::object>();
    out.erase(found);
    for (const auto& [key, value] : inner) {
        if (!out.emplace(key, value).second) return given_twice(path, key);
    }
    return out;
}

// The members of the file's object, or of the one named `table` in it. `known` are the keys that it may have.
inline ojs::result<picojson::object> read(const std::string& path, const std::string& table,
                                          const std::vector<std::string>& known) {
    const auto text = read_file(path);
    if (!text) return text.error();
    const ojs::result<ojs::json_view> json = ojs::json_view::parse(*text);
    const toml other = json ? toml() : read_toml(*text, table, known);
    if (other.is_toml) return wrong_usage(path + describe(other));
    if (!json) return wrong_usage(path + ": " + json.error().text);
    if (json->type() != ojs::json_type::object) return wrong_usage(path + " is not a JSON object");
    const std::string repeated = repeated_key(*json);
    if (!repeated.empty()) return given_twice(path, repeated);
    return without_table(path, table, *json->as<picojson::object>());
}

}  // namespace config_file
