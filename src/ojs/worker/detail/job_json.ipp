// job_json: reads jobs and their errors from JSON, for all transports that store JSON.
#pragma once

#include "../../base/detail/text.hpp"
#include "../../base/duration.hpp"
#include "../../net/json_view.ipp"
#include "../transport.hpp"

namespace ojs::detail {
inline constexpr std::int64_t max_exact_integer = 9007199254740992;  // 2^53: beyond it a double is not exact

inline void read_if_integer(std::string_view source, std::int64_t& out) {
    std::uint64_t number = 0;
    if (parse_number(source, max_exact_integer, number)) out = static_cast<std::int64_t>(number);
}

// A count of `unit` milliseconds; limited to 24 days, which every deadline can hold.
inline void read_if_duration(std::string_view source, std::uint64_t unit, milliseconds& out) {
    std::uint64_t count = 0;
    if (parse_number(source, max_exact_integer, count))
        out = milliseconds(min<std::uint64_t>(count, max_duration_ms / unit) * unit);
}

// Why the job cannot run; empty: it can.
inline std::string job_fault(const job& read, std::string_view args, std::string_view source) {
    if (read.type.empty()) return "type must be a string that is not empty";
    if (args.empty()) return "args is missing";
    const result<void> valid = check_json(source);
    if (!valid) return valid.error().text;
    return json_view(args).type() == json_type::array ? "" : "args is not an array";
}

// Reads as much as it can: a claimed job with an id can at least be FAILed.
inline job read_job(std::string_view source) {
    job out;
    std::string_view args;
    std::string key;
    for (json_iterator at(source, '{'); at; ++at) {
        if (!read_json_string(at->key.text(), key)) continue;
        const std::string_view value = at->value.text();
        if (key == "id") read_json_string(value, out.id);
        if (key == "type") read_json_string(value, out.type);
        if (key == "queue") read_json_string(value, out.queue);
        if (key == "args") args = value;
        if (key == "meta" && value.front() == '{') out.meta_json = std::string(value);
        if (key == "attempt") read_if_integer(value, out.attempt);
        if (key == "max_attempts") read_if_integer(value, out.max_attempts);
        if (key == "timeout_ms") read_if_duration(value, 1, out.timeout);
        if (key == "timeout" && out.timeout.count() == 0) read_if_duration(value, 1000, out.timeout);
        if (key == "visibility_timeout_ms") read_if_duration(value, 1, out.visibility_timeout);
        if (key == "visibility_timeout" && out.visibility_timeout.count() == 0)
            read_if_duration(value, 1000, out.visibility_timeout);
    }
    out.malformed = job_fault(out, args, source);
    if (out.malformed.empty()) out.args_json = std::string(args);
    out.envelope_json = std::string(source);
    return out;
}

inline std::string details_of(const job_error& failure) {
    return is_json_object(failure.details_json) ? failure.details_json : "{}";
}
}  // namespace ojs::detail
