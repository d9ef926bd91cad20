#include "retry_policy.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <utility>

#include "json.hpp"
#include "refusal.hpp"

namespace dev_backend {

namespace {

[[noreturn]] void refuse_policy(const std::string& why) {
    throw refusal{422, "invalid_request", "retry." + why, "validation_error"};
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

// `key` as ISO 8601, or `key`_ms as a number of milliseconds: the specification has both.
milliseconds duration_or(const picojson::value& given, const char* key, milliseconds fallback) {
    const std::string key_ms = std::string(key) + "_ms";
    std::optional<double> ms;
    if (const picojson::value* text = member(given, key)) {
        ms = text->is<std::string>() ? iso_duration_ms(text->get<std::string>()) : std::nullopt;
        if (!ms)
            refuse_policy(std::string(key) + " is not an ISO 8601 duration of weeks or less, such as PT1.5S");
    } else if (const picojson::value* number = member(given, key_ms.c_str())) {
        if (!number->is<double>()) refuse_policy(key_ms + " is not a number");
        ms = number->get<double>();
    }
    if (!ms) return fallback;
    if (!(*ms >= 1)) refuse_policy(std::string(key) + " is less than a millisecond");
    return milliseconds(static_cast<std::int64_t>(std::min(*ms, max_ms)));
}

std::int64_t read_max_attempts(const picojson::value& given, std::int64_t fallback) {
    const picojson::value* found = member(given, "max_attempts");
    if (found == nullptr) return fallback;
    const double number = found->is<double>() ? found->get<double>() : -1;
    if (!(number >= 0 && number <= 1e9 && number == std::floor(number))) {
        refuse_policy("max_attempts is not a whole number of at least 0");
    }
    return static_cast<std::int64_t>(number);
}

backoff read_kind(const picojson::value& given) {
    const std::pair<const char*, backoff> names[] = {{"exponential", backoff::exponential},
                                                     {"linear", backoff::linear},
                                                     {"polynomial", backoff::polynomial},
                                                     {"none", backoff::constant},
                                                     {"constant", backoff::constant}};
    const picojson::value* found = member(given, "backoff_strategy");
    if (found == nullptr) return backoff::exponential;
    for (const auto& [name, kind] : names) {
        if (found->is<std::string>() && found->get<std::string>() == name) return kind;
    }
    refuse_policy("backoff_strategy is none of exponential, linear, polynomial, none");
}

bool read_on_exhaustion(const picojson::value& given) {
    const picojson::value* found = member(given, "on_exhaustion");
    if (found == nullptr) return false;
    const std::string action = found->is<std::string>() ? found->get<std::string>() : "";
    if (action != "discard" && action != "dead_letter")
        refuse_policy("on_exhaustion is neither discard nor dead_letter");
    return action == "dead_letter";
}

}  // namespace

retry_policy read_retry_policy(const picojson::value& given) {
    if (!given.is<picojson::object>()) refuse_policy("it is not an object");
    retry_policy out;
    out.max_attempts = read_max_attempts(given, out.max_attempts);
    out.initial = duration_or(given, "initial_interval", out.initial);
    out.longest = duration_or(given, "max_interval", std::max(out.longest, out.initial));
    if (out.longest < out.initial) refuse_policy("max_interval is less than initial_interval");
    if (const picojson::value* found = member(given, "backoff_coefficient")) {
        out.coefficient = found->is<double>() ? found->get<double>() : 0;
        if (!(out.coefficient >= 1)) refuse_policy("backoff_coefficient is not a number of at least 1.0");
    }
    if (const picojson::value* found = member(given, "jitter")) {
        if (!found->is<bool>()) refuse_policy("jitter is not true or false");
        out.jitter = found->get<bool>();
    }
    if (member(given, "non_retryable_errors") != nullptr) {
        const auto types = texts_of(given, "non_retryable_errors");
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
