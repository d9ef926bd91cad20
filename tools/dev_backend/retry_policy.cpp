#include "retry_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "refusal.hpp"

namespace dev_backend {

namespace {

[[noreturn]] void refuse_policy(const std::string& why) {
    refuse_member("retry." + why);
}

// "PT1M30S", "PT0.5S", "P1DT2H": weeks, days, hours, minutes and seconds of ISO 8601, the smallest with a fraction. Months
// and years have no fixed length.
std::optional<double> iso_duration_ms(std::string_view text) {
    struct unit {
        char name;
        bool of_time;  // behind the T
        double ms;
    };
    constexpr unit units[] = {{'W', false, 604800e3},
                              {'D', false, 86400e3},
                              {'H', true, 3600e3},
                              {'M', true, 60e3},
                              {'S', true, 1e3}};
    if (text.empty() || text.front() != 'P') return std::nullopt;
    text.remove_prefix(1);
    const unit* next = std::begin(units);
    bool in_time = false;
    bool complete = false;  // an amount was read, since the T if there is one
    double total = 0;
    while (!text.empty()) {
        if (text.front() == 'T' && !in_time) {
            in_time = true;
            complete = false;
            text.remove_prefix(1);
            continue;
        }
        const std::size_t length = std::min(text.find_first_not_of("0123456789."), text.size());
        const std::string digits(text.substr(0, length));
        const bool has_fraction = digits.find('.') != digits.npos;
        if (length == 0 || length == text.size() || digits.front() == '.' || digits.back() == '.')
            return std::nullopt;
        if (std::count(digits.begin(), digits.end(), '.') > 1) return std::nullopt;
        next = std::find_if(next, std::end(units), [&](const unit& each) {
            return each.name == text[length] && each.of_time == in_time;
        });
        if (next == std::end(units) || (has_fraction && length + 1 != text.size())) return std::nullopt;
        total += std::strtod(digits.c_str(), nullptr) * next++->ms;
        complete = true;
        text.remove_prefix(length + 1);
    }
    if (!complete) return std::nullopt;
    return total;
}

constexpr double max_ms = 2147483000;  // no sum of these overflows a clock

std::int64_t read_max_attempts(const json_members& given, std::int64_t fallback) {
    const json_view found = given["max_attempts"];
    if (!found) return fallback;
    const double number = number_of(found).value_or(-1);
    if (!(number >= 0 && number <= 1e9 && number == std::floor(number))) {
        refuse_policy("max_attempts is not a whole number of at least 0");
    }
    return static_cast<std::int64_t>(number);
}

backoff read_kind(const json_members& given) {
    const std::pair<const char*, backoff> names[] = {{"exponential", backoff::exponential},
                                                     {"linear", backoff::linear},
                                                     {"polynomial", backoff::polynomial},
                                                     {"none", backoff::constant},
                                                     {"constant", backoff::constant}};
    const json_view found = given["backoff_strategy"];
    if (!found) return backoff::exponential;
    for (const auto& [name, kind] : names) {
        if (found.string().value_or("") == name) return kind;
    }
    refuse_policy("backoff_strategy is none of exponential, linear, polynomial, none");
}

bool read_on_exhaustion(const json_members& given) {
    const json_view found = given["on_exhaustion"];
    if (!found) return false;
    const std::string action = found.string().value_or("");
    if (action != "discard" && action != "dead_letter")
        refuse_policy("on_exhaustion is neither discard nor dead_letter");
    return action == "dead_letter";
}

}  // namespace

milliseconds duration_or(const json_members& given, const char* key, milliseconds fallback,
                         const char* policy) {
    const std::string key_ms = std::string(key) + "_ms";
    const std::string name = std::string(policy) + "." + key;
    std::optional<double> ms;
    if (const json_view text = given[key]) {
        ms = iso_duration_ms(text.string().value_or(""));
        if (!ms) refuse_member(name + " is not an ISO 8601 duration of weeks or less, such as PT1.5S");
    } else if (const json_view number = given[key_ms]) {
        ms = number_of(number);
        if (!ms) refuse_member(name + "_ms is not a number");
    }
    if (!ms) return fallback;
    if (!(*ms >= 1)) refuse_member(name + " is less than a millisecond");
    return milliseconds(static_cast<std::int64_t>(std::min(*ms, max_ms)));
}

retry_policy read_retry_policy(json_view source) {
    if (source.type() != json_type::object) refuse_policy("it is not an object");
    const json_members given(source);
    retry_policy out;
    out.max_attempts = read_max_attempts(given, out.max_attempts);
    out.initial = duration_or(given, "initial_interval", out.initial, "retry");
    out.longest = duration_or(given, "max_interval", std::max(out.longest, out.initial), "retry");
    if (out.longest < out.initial) refuse_policy("max_interval is less than initial_interval");
    if (const json_view found = given["backoff_coefficient"]) {
        out.coefficient = number_of(found).value_or(0);
        if (!(out.coefficient >= 1)) refuse_policy("backoff_coefficient is not a number of at least 1.0");
    }
    if (const json_view found = given["jitter"]) {
        if (found.type() != json_type::boolean) refuse_policy("jitter is not true or false");
        out.jitter = *found.boolean();
    }
    if (const json_view found = given["non_retryable_errors"]) {
        const auto types = texts_of(found);
        if (!types) refuse_policy("non_retryable_errors is not an array of strings");
        out.non_retryable = *types;
    }
    out.kind = read_kind(given);
    out.dead_letter = read_on_exhaustion(given);
    return out;
}

milliseconds delay_after(const retry_policy& policy, std::int64_t attempt, double random) {
    const auto retry = static_cast<double>(std::max<std::int64_t>(attempt, 1));
    double factor = 1;
    switch (policy.kind) {
        case backoff::exponential: factor = std::pow(policy.coefficient, retry - 1); break;
        case backoff::linear: factor = retry; break;
        case backoff::polynomial: factor = std::pow(retry, policy.coefficient); break;
        case backoff::constant: break;
    }
    const auto longest = static_cast<double>(policy.longest.count());
    double ms = std::min(static_cast<double>(policy.initial.count()) * factor, longest);
    if (policy.jitter) ms = std::min(ms * (0.5 + random), longest);  // jitter must not exceed the maximum
    return milliseconds(static_cast<std::int64_t>(ms));
}

bool is_non_retryable(const retry_policy& policy, std::string_view error_type) {
    return std::any_of(policy.non_retryable.begin(), policy.non_retryable.end(), [&](std::string_view entry) {
        constexpr std::string_view any = ".*";
        const bool is_prefix = entry.size() > any.size() && entry.substr(entry.size() - any.size()) == any;
        if (!is_prefix) return entry == error_type;
        const std::string_view prefix = entry.substr(0, entry.size() - 1);  // with its dot
        return error_type.substr(0, prefix.size()) == prefix;
    });
}

}  // namespace dev_backend
