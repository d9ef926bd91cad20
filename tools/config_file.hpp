// config_file: the members of the object that a configuration file holds, as JSON or, in a file named *.toml, as TOML.
#pragma once

#include <picojson.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include "ojs_shutdown.hpp"

namespace config_file {
inline ojs::error wrong_usage(std::string text) { return {ojs::errc::invalid_argument, 0, std::move(text)}; }

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

// ---- TOML, as far as the spot guide's file needs it ----
//
// [TABLE], and KEY = VALUE on one line: a string, a number, true, false, or an array of these, as JSON writes them.

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
    if (end == std::string_view::npos || !is_comment_or_empty(line.substr(end + 1))) return {};
    const std::string_view name = trimmed(line.substr(1, end - 1));
    return is_bare_key(name) ? name : std::string_view();
}

// TOML has no null, and its inline tables are not JSON's objects.
inline bool is_in_both(const picojson::value& value) {
    if (!value.is<picojson::array>()) return !value.is<picojson::null>() && !value.is<picojson::object>();
    const picojson::array& all = value.get<picojson::array>();
    return std::all_of(all.begin(), all.end(), is_in_both);
}

inline bool read_toml_value(std::string_view text, picojson::value& out) {
    const std::string list = "[" + std::string(text);  // so that a comment may follow the value
    const std::string first(ojs::json_view(list).element(0).text());
    const ojs::result<ojs::json_view> json = ojs::json_view::parse(first);
    if (!json || !is_comment_or_empty(text.substr(first.size()))) return false;
    out = *json->as<picojson::value>();
    return is_in_both(out);
}

inline std::string shortened(std::string_view text) { return std::string(text.substr(0, 60)); }

// Puts what the line says into `out`. Returns what is wrong with it; empty: nothing.
inline std::string read_toml_line(std::string_view line, std::string& table, picojson::object& out) {
    if (is_comment_or_empty(line)) return "";
    if (line.front() == '[') {
        table = table_name(line);
        if (table.empty()) return "'" + shortened(line) + "': must be [NAME]";
        const bool is_new = out.emplace(table, picojson::value(picojson::object())).second;
        return is_new ? "" : shortened(table) + ": is given twice";
    }
    const std::size_t equals = line.find('=');
    const std::string key(trimmed(line.substr(0, equals)));
    if (equals == std::string_view::npos || !is_bare_key(key)) return "'" + shortened(line) + "': must be KEY = VALUE";
    picojson::value value;
    if (!read_toml_value(trimmed(line.substr(equals + 1)), value))
        return shortened(key) + ": must be a \"string\", number, boolean or array, on one line";
    picojson::object& members = table.empty() ? out : out[table].get<picojson::object>();
    return members.emplace(key, value).second ? "" : shortened(key) + ": is given twice";
}

inline ojs::result<picojson::object> read_toml(const std::string& text) {
    picojson::object out;
    std::string table;
    std::istringstream lines(text);
    std::string line;
    for (int number = 1; std::getline(lines, line); ++number) {
        const std::string fault = read_toml_line(trimmed(line), table, out);
        if (!fault.empty()) return wrong_usage("line " + std::to_string(number) + ": " + fault);
    }
    return out;
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

inline ojs::result<picojson::object> read_json(const std::string& text) {
    const ojs::result<ojs::json_view> json = ojs::json_view::parse(text);
    if (!json) return json.error();
    if (json->type() != ojs::json_type::object) return wrong_usage("this is not a JSON object");
    const std::string repeated = repeated_key(*json);
    if (!repeated.empty()) return wrong_usage(shortened(repeated) + ": is given twice");
    return *json->as<picojson::object>();
}

// ---- both ----

// The members of `table` stand beside the others: {"TABLE": {...}} is as good as {...}.
inline ojs::result<picojson::object> without_table(const std::string& table, picojson::object out) {
    const auto found = out.find(table);
    if (found == out.end()) return out;
    if (!found->second.is<picojson::object>()) return wrong_usage(table + ": must be an object");
    const picojson::object inner = found->second.get<picojson::object>();
    out.erase(found);
    for (const auto& [key, value] : inner) {
        if (!out.emplace(key, value).second) return wrong_usage(shortened(key) + ": is given twice");
    }
    return out;
}

// The members of the file's object, and of the one named `table` in it.
inline ojs::result<picojson::object> read(const std::string& path, const std::string& table) {
    const auto text = read_file(path);
    if (!text) return text.error();
    const bool is_toml = std::filesystem::path(path).extension() == ".toml";
    const ojs::result<picojson::object> whole = is_toml ? read_toml(*text) : read_json(*text);
    const ojs::result<picojson::object> out = whole ? without_table(table, *whole) : whole;
    if (!out) return wrong_usage(path + ": " + out.error().text);
    return out;
}
}  // namespace config_file
