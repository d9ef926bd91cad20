// environment: reads options from the environment, and checks their bounds.
#pragma once

#include "../../base/detail/signal_names.ipp"
#include "../../base/detail/text.hpp"
#include "../loop_options.hpp"

namespace ojs::detail {

// A value for an error text, without passwords.
inline std::string redacted(std::string_view value) {
    return value.find('@') == std::string_view::npos ? printable(value, 100)
                                                     : "(redacted: may contain credentials)";
}

// A backend's URL for the log: without user, password and query.
inline std::string public_url(std::string_view url) {
    url = url.substr(0, url.find('?'));
    const std::size_t at = url.rfind('@');
    const std::size_t begin = url.find("://");
    if (url.find("password") != url.npos || (at != url.npos && begin > at)) return redacted("@");
    return printable(at == url.npos ? std::string(url) : cat({url.substr(0, begin + 3), url.substr(at + 1)}),
                     200);
}

inline error invalid(std::string text) {
    return {errc::invalid_argument, 0, std::move(text)};
}

inline bool is_visible_ascii(std::string_view text) noexcept {
    return all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

// A name in a variable is read without the white space around it, which is of the file that set it. A word of a list
// has none within, either: a comma was meant. A secret is taken as it is, or refused.
enum class text_kind { name, word, secret };

inline constexpr const char* white_space = " \t\n\v\f\r";

// Why a text is not of the kind; null: it is.
inline const char* text_fault(std::string_view text, text_kind kind) noexcept {
    if (kind == text_kind::word && text.find_first_of(white_space) != text.npos)
        return "contains white space; names are separated by commas";
    if (kind == text_kind::secret && trim_blanks(text, white_space) != text)
        return "begins or ends in white space (made by echo?)";
    return all_of(text, [](char c) { return !is_ascii_control(c); }) ? nullptr
                                                                     : "contains a control character";
}

template <class Value>
struct choice {
    const char* name;
    Value value;
};
inline constexpr choice<dialect (*)()> presets[] = {{"graceful_shutdown", dialect::graceful_shutdown},
                                                    {"website", dialect::website},
                                                    {"worker_protocol", dialect::worker_protocol},
                                                    {"spot_controller", dialect::spot_controller}};
inline constexpr choice<log_level> log_levels[] = {{"debug", log_level::debug},
                                                   {"info", log_level::info},
                                                   {"warn", log_level::warn},
                                                   {"error", log_level::error},
                                                   {"off", log_level::off}};
inline constexpr choice<log_format> log_formats[] = {
    {"text", log_format::text}, {"logfmt", log_format::logfmt}, {"json", log_format::json}};
inline constexpr choice<bool> zero_one[] = {{"0", false}, {"1", true}};

inline std::vector<std::string> split_list(std::string_view text) {
    std::vector<std::string> out;
    const std::string all = cat({text, ","});
    for (std::string_view rest = all; !rest.empty();)
        out.push_back(std::string(trim_blanks(next_part(rest, ","), white_space)));
    return out;
}

class environment_reader {
  public:
    explicit environment_reader(const environment_lookup& source) : lookup(source) {}

    template <class Value, class... Constraints>
    void operator()(const char*, const char* variables, Value& out, const Constraints&... constraints) {
        if (select_first_set(variables)) note(parse(out, constraints...));
    }
    bool select_first_set(std::string_view variables) {
        is_secret_ = false;
        for (value_ = nullptr; value_ == nullptr && !variables.empty();) {
            name_ = std::string(next_part(variables, " "));
            value_ = find_variable(lookup, name_.c_str());
        }
        return value_ != nullptr;
    }

    const environment_lookup& lookup;
    result<void> status;  // the first error

  private:
    using milliseconds = std::chrono::milliseconds;

    void note(const std::string& fault) {
        if (!status || fault.empty()) return;
        const std::string value = is_secret_ ? "" : cat({"='", redacted(value_), "'"});
        const bool blank = trim_blanks(value_, white_space).empty();
        status = error{errc::invalid_argument, 0,
                       cat({name_, value, ": ", blank ? "is empty; unset it, or give it a value" : fault})};
    }
    // Return what is wrong with the value; empty: nothing.
    std::string parse(std::string& out) {
        out = value_;
        return out.empty() ? "must not be empty" : "";
    }
    std::string parse(std::string& out, text_kind kind) {
        is_secret_ = kind == text_kind::secret && *value_ != '\0';
        out = is_secret_ ? value_ : std::string(trim_blanks(value_, white_space));
        const char* const fault = out.empty() ? "must not be empty" : text_fault(out, kind);
        return fault != nullptr ? fault : "";
    }
    std::string parse(std::vector<std::string>& out, text_kind kind) {
        out = split_list(trim_blanks(value_, white_space));
        for (const std::string& name : out) {
            if (const char* const fault = text_fault(name, kind)) return cat({"a name ", fault});
        }
        return contains(out, "") ? "a name is missing" : "";
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
    std::string parse(milliseconds& out, milliseconds min, milliseconds /*max*/ = {}) {
        const result<milliseconds> parsed = parse_duration(value_);
        out = parsed.value_or(out);
        if (!parsed) return parsed.error().text;
        return out < min ? cat({"must be at least ", format_duration(min)}) : "";
    }
    std::string parse(std::int64_t& out, int min, int max) {
        std::uint64_t parsed = 0;
        const bool fits = parse_number(value_, static_cast<std::uint64_t>(max), parsed);
        out = static_cast<std::int64_t>(parsed);
        return fits && out >= min ? "" : cat({"not an integer from ", min, " to ", max});
    }
    template <class Option, class Value, std::size_t count>
    std::string parse(Option& out, const choice<Value> (&choices)[count]) {
        std::string names;
        for (const choice<Value>& each : choices) {
            if (value_ == std::string_view(each.name)) return set(out, each.value), "";
            append(names, {" ", each.name});
        }
        return cat({"not one of:", names});
    }
    static void set(loop_options& out, ojs::dialect (*preset)()) { out.use(preset()); }
    template <class Value>
    static void set(Value& out, Value value) {
        out = value;
    }

    std::string name_;  // of the last variable
    const char* value_ = nullptr;
    bool is_secret_ = false;  // the value must not be shown
};

struct bounds_check {
    result<void> status;

    void operator()(const char* name, const char* variables, const std::int64_t& value, int min, int max) {
        check(name, variables, value, min, max, "");
    }
    void operator()(const char* name, const char* variables, const std::chrono::milliseconds& value,
                    std::chrono::milliseconds min, std::chrono::milliseconds max = {}) {
        if (value != no_limit || max != no_limit)
            check(name, variables, value.count(), min.count(), max_duration_ms, " ms");
    }
    void operator()(const char* name, const char* variables, const std::string& value, text_kind kind) {
        const char* const fault = text_fault(value, kind);
        if (status && fault != nullptr)
            status = invalid(cat({"options.", name, " (", variables, ") ", fault}));
    }
    void operator()(const char* name, const char* variables, const std::vector<std::string>& values,
                    text_kind /*kind*/) {
        for (const std::string& value : values) (*this)(name, variables, value, text_kind::name);
    }
    template <class... Other>
    void operator()(Other&&...) noexcept {}

  private:
    void check(const char* name, const char* variables, std::int64_t value, std::int64_t min,
               std::int64_t max, const char* unit) {
        if (!status || (value >= min && value <= max)) return;
        status =
            invalid(cat({name, " (", variables, ") is ", value, "; it must be ", min, " to ", max, unit}));
    }
};

}  // namespace ojs::detail
