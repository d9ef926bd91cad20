// environment: options from the environment, and their bounds.
#pragma once

#include "../../base/detail/files.ipp"
#include "../../base/detail/signal_names.ipp"
#include "../../base/detail/text.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {
// For an error text, without passwords.
inline std::string redacted(std::string_view value) {
    if (!has_part(value, "@")) return printable(value, 100);
    const std::size_t end = value.find("://");
    const bool has_scheme = all_of(value.substr(0, end), is_alphanumeric);
    return cat({has_scheme ? value.substr(0, end + 3) : "", "(redacted: may contain credentials)"});
}

// A URL without user, password and query.
inline std::string public_url(std::string_view url) {
    url = url.substr(0, url.find('?'));
    const std::size_t at = url.rfind('@');
    const std::size_t begin = url.find("://");
    if (url.find("password") != url.npos || (at != url.npos && begin > at)) return redacted("@");
    return printable(at == url.npos ? std::string(url) : cat({url.substr(0, begin + 3), url.substr(at + 1)}), 200);
}

// Without white space around it, unless it is a secret. A path is made absolute. A word has none within.
enum class text_kind { name, path, word, secret };

inline constexpr const char* white_space = " \t\n\v\f\r";

inline std::vector<std::string> split_list(std::string_view text) {
    std::vector<std::string> out;
    const std::string all = cat({text, ","});
    for (std::string_view rest = all; !rest.empty();)
        out.push_back(std::string(trim_blanks(next_part(rest, ","), white_space)));
    return out;
}

// Visits options: reads the first variable that is set, unless the value is const, and checks the value.
class option_visitor {
  public:
    explicit option_visitor(environment_lookup source = nullptr) : lookup(std::move(source)) {}

    template <class Value, class... Constraints>
    void operator()(const char* name, const char* variables, Value& value, const Constraints&... constraints) {
        if (!status) return;
        std::string fault;
        value_ = nullptr;
        is_secret_ = false;
        if constexpr (!std::is_const_v<Value>) {
            if (select_first_set(variables))
                fault = trim_blanks(value_, white_space).empty() ? "is empty; unset it, or give it a value"
                                                                 : parse(value, constraints...);
        }
        if (fault.empty()) fault = check(value, constraints...);
        if (fault.empty()) return;
        status = invalid(value_ == nullptr ? cat({name, " (", variables, ") ", fault})
                         : is_secret_      ? cat({name_, ": ", fault})
                                           : cat({name_, "='", redacted(value_), "': ", fault}));
    }
    bool select_first_set(std::string_view variables) {
        for (value_ = nullptr; value_ == nullptr && !variables.empty();) {
            name_ = std::string(next_part(variables, " "));
            value_ = find_variable(lookup, name_.c_str());
        }
        return value_ != nullptr;
    }

    const environment_lookup lookup;
    result<void> status;  // the first error

  private:
    // These return what is wrong; empty: nothing.
    std::string parse(std::string& out, text_kind kind) {
        is_secret_ = kind == text_kind::secret;
        out = is_secret_ ? value_ : std::string(trim_blanks(value_, white_space));
        if (kind == text_kind::path) out = absolute_path(out);
        return "";
    }
    std::string parse(std::vector<std::string>& out, text_kind kind) {
        out = split_list(trim_blanks(value_, white_space));
        for (const std::string& name : out) {
            if (name.empty()) return "a name is missing";
            if (kind == text_kind::word && name.find_first_of(white_space) != name.npos)
                return "a name contains white space; names are separated by commas";
        }
        return "";
    }
    std::string parse(std::vector<int>& out) {
        out.clear();
        for (const std::string& name : split_list(value_)) {
            out.push_back(signal_number(name));
            if (out.back() == 0)
                return cat({"'", printable(name, 40),
                            "' is not a signal (write TERM, INT, HUP, QUIT, USR2, RTMIN+3 or a number)"});
        }
        return "";
    }
    std::string parse(milliseconds& out, milliseconds /*min*/, milliseconds /*max*/ = {}) {
        const result<milliseconds> parsed = parse_duration(value_);
        out = parsed.value_or(out);
        return parsed ? "" : parsed.error().text;
    }
    std::string parse(std::int64_t& out, int /*min*/, int max) {
        std::uint64_t parsed = 0;
        const bool fits = parse_number(value_, static_cast<std::uint64_t>(max), parsed);
        out = static_cast<std::int64_t>(parsed);
        return fits ? "" : cat({"is not an integer up to ", max});
    }
    // `names` in the order of the enumerators, or of the profiles.
    template <class Option>
    std::string parse(Option& out, const char* names) {
        const int place = place_in(value_, names);
        if (place < 0) return cat({"is not one of: ", names});
        if constexpr (std::is_class_v<Option>)
            out.apply_profile(profile_at(place));
        else
            out = static_cast<Option>(place);
        return "";
    }
    static profile profile_at(int place) {
        constexpr profile (*presets[])() = {profile::graceful_shutdown, profile::website, profile::worker_protocol,
                                            profile::spot_controller};
        return presets[place]();
    }

    static std::string check(const milliseconds& value, milliseconds min, milliseconds max = {}) {
        if (value == no_limit && max == no_limit) return "";
        return check(value.count(), static_cast<int>(min.count()), static_cast<int>(max_duration_ms), " ms");
    }
    static std::string check(const std::int64_t& value, int min, int max, const char* unit = "") {
        return value >= min && value <= max ? "" : cat({"is ", value, "; it must be ", min, " to ", max, unit});
    }
    static std::string check(const std::string& value, text_kind kind) {
        if (kind == text_kind::secret && trim_blanks(value, white_space) != value)
            return "begins or ends in white space (made by echo?)";
        return all_of(value, [](char c) { return !is_ascii_control(c); }) ? "" : "contains a control character";
    }
    static std::string check(const std::vector<std::string>& values, text_kind kind) {
        std::string all;
        for (const std::string& value : values) all += value;
        return check(all, kind);
    }
    template <class... Other>
    static std::string check(const Other&... /*unbounded*/) {
        return "";
    }

    std::string name_;             // of the last variable
    const char* value_ = nullptr;  // its text; null: it is not set
    bool is_secret_ = false;       // which must not be shown
};
}  // namespace ojs::detail
