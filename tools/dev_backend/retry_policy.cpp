#include "retry_policy.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "refusal.hpp"

namespace dev_backend {
namespace {
// Months and years have no fixed length.
double ms_of_unit(char name, bool is_time) {
    switch (name) {
        case 'W': return is_time ? 0 : 604800e3;
        case 'D': return is_time ? 0 : 86400e3;
        case 'H': return is_time ? 3600e3 : 0;
        case 'M': return is_time ? 60e3 : 0;
        case 'S': return is_time ? 1e3 : 0;
        default: return 0;
    }
}

// ISO 8601: "PT1M30S", "PT0.5S", "P1DT2H".
std::optional<double> iso_duration_ms(const std::string& text) {
    if (text.empty() || text.front() != 'P') return std::nullopt;
    std::optional<double> total;
    bool is_time = false;  // behind the T
    for (std::size_t at = 1; at < text.size();) {
        if (text[at] == 'T' && !is_time) {
            is_time = true;
            ++at;
            continue;
        }
        const std::size_t end = text.find_first_not_of("0123456789.", at);
        const double unit = end == text.npos || end == at ? 0 : ms_of_unit(text[end], is_time);
        if (unit <= 0) return std::nullopt;
        total = total.value_or(0) + std::strtod(text.c_str() + at, nullptr) * unit;
        at = end + 1;
    }
    return total;
}

std::string text_of(json_view value) { return value.string().value_or(""); }
}  // namespace

milliseconds duration_or(json_view given, const char* key, milliseconds fallback, const char* policy) {
    constexpr double longest = 2147483000;  // no sum of such times overflows a clock
    const json_view found = member(given, key);
    if (!found) return fallback;
    const std::optional<double> ms = iso_duration_ms(text_of(found));
    const std::string name = std::string(policy) + "." + key;
    if (!ms) refuse_member(name + " is not an ISO 8601 duration of weeks or less, such as PT1.5S");
    if (*ms < 1) refuse_member(name + " is less than a millisecond");
    return milliseconds(static_cast<std::int64_t>(std::min(*ms, longest)));
}

retry_policy read_retry_policy(json_view given) {
    if (given.type() != json_type::object) refuse_member("retry is not an object");
    retry_policy out;
    if (const json_view found = member(given, "max_attempts")) {
        out.max_attempts = found.integer().value_or(-1);
        if (out.max_attempts < 0) refuse_member("retry.max_attempts is not a whole number of at least 0");
    }
    out.initial = duration_or(given, "initial_interval", out.initial, "retry");
    out.max = duration_or(given, "max_interval", std::max(out.max, out.initial), "retry");
    if (out.max < out.initial) refuse_member("retry.max_interval is less than initial_interval");
    if (const json_view found = member(given, "backoff_coefficient")) {
        out.coefficient = found.number().value_or(0);
        if (!(out.coefficient >= 1)) refuse_member("retry.backoff_coefficient is not a number of at least 1.0");
    }
    if (const json_view found = member(given, "jitter")) {
        if (!found.boolean()) refuse_member("retry.jitter is not true or false");
        out.jitter = *found.boolean();
    }
    if (const json_view found = member(given, "non_retryable_errors")) {
        const auto types = texts_of(found);
        if (!types) refuse_member("retry.non_retryable_errors is not an array of strings");
        out.non_retryable = *types;
    }
    if (const json_view found = member(given, "backoff_strategy")) {
        constexpr std::array<std::string_view, 4> names = {"exponential", "linear", "polynomial", "none"};
        const auto* const kind = std::find(names.begin(), names.end(), text_of(found));
        if (kind == names.end())
            refuse_member("retry.backoff_strategy is none of exponential, linear, polynomial, none");
        out.kind = static_cast<backoff>(kind - names.begin());
    }
    if (const json_view found = member(given, "on_exhaustion")) {
        out.dead_letter = text_of(found) == "dead_letter";
        if (!out.dead_letter && text_of(found) != "discard")
            refuse_member("retry.on_exhaustion is neither discard nor dead_letter");
    }
    return out;
}

milliseconds delay_after(const retry_policy& policy, std::int64_t attempt, double random) {
    const auto retry = static_cast<double>(attempt);
    double factor = 1;
    switch (policy.kind) {
        case backoff::exponential: factor = std::pow(policy.coefficient, retry - 1); break;
        case backoff::linear: factor = retry; break;
        case backoff::polynomial: factor = std::pow(retry, policy.coefficient); break;
        case backoff::none: break;
    }
    if (policy.jitter) factor *= 0.5 + random;
    const auto max = static_cast<double>(policy.max.count());
    return milliseconds(static_cast<std::int64_t>(std::min(static_cast<double>(policy.initial.count()) * factor, max)));
}

bool is_non_retryable(const retry_policy& policy, std::string_view error_type) {
    return std::any_of(policy.non_retryable.begin(), policy.non_retryable.end(), [&](std::string_view entry) {
        if (entry.size() < 3 || entry.substr(entry.size() - 2) != ".*") return entry == error_type;
        const std::string_view prefix = entry.substr(0, entry.size() - 1);  // with its dot
        return error_type.substr(0, prefix.size()) == prefix;
    });
}
}  // namespace dev_backend
