#pragma once

#include "job.hpp"

#include "worker_context.ipp"

namespace ojs {
inline namespace v1 {
namespace detail {

// One argument's source text and parsed value.
inline result<std::string> parse_argument(const std::string& args_json, std::size_t index,
                                          picojson::value& out) {
    std::string_view rest = args_json;
    std::string_view element;
    std::size_t at = 0;
    while (next_raw_element(rest, element)) {
        if (at++ != index) continue;
        const result<void> parsed = parse_json(element, out);
        if (!parsed) return parsed.error();
        return std::string(element);
    }
    return error{errc::invalid_argument, 0, cat("the job has no argument ", index)};
}

inline error wrong_type(std::size_t index, const char* wanted) {
    return {errc::invalid_argument, 0, cat("argument ", index, " is not ", wanted)};
}

OJS_SHUTDOWN_INLINE result<std::string> string_argument(const std::string& args_json, std::size_t index) {
    picojson::value value;
    result<std::string> source = parse_argument(args_json, index, value);
    if (source && value.is<std::string>()) return value.get<std::string>();
    return source;
}

OJS_SHUTDOWN_INLINE result<std::int64_t> integer_argument(const std::string& args_json, std::size_t index) {
    picojson::value value;
    const result<std::string> source = parse_argument(args_json, index, value);
    if (!source) return source.error();
    // From the text, not from the double, which is exact only up to 2^53.
    const bool negative = !source->empty() && source->front() == '-';
    const std::uint64_t largest = std::uint64_t{0x7fffffffffffffff} + (negative ? 1 : 0);
    std::uint64_t magnitude = 0;
    if (!value.is<double>() || !parse_number(source->substr(negative ? 1 : 0), largest, magnitude)) {
        return wrong_type(index, "a whole number of 64 bits");
    }
    return static_cast<std::int64_t>(negative ? 0 - magnitude : magnitude);
}

OJS_SHUTDOWN_INLINE result<double> number_argument(const std::string& args_json, std::size_t index) {
    picojson::value value;
    const result<std::string> source = parse_argument(args_json, index, value);
    if (!source) return source.error();
    if (!value.is<double>()) return wrong_type(index, "a number");
    return value.get<double>();
}

OJS_SHUTDOWN_INLINE result<bool> bool_argument(const std::string& args_json, std::size_t index) {
    picojson::value value;
    const result<std::string> source = parse_argument(args_json, index, value);
    if (!source) return source.error();
    if (!value.is<bool>()) return wrong_type(index, "true or false");
    return value.get<bool>();
}

}  // namespace detail

OJS_SHUTDOWN_INLINE outcome::outcome(const picojson::value& result) : outcome(detail::to_json(result)) {}

OJS_SHUTDOWN_INLINE const std::string& job_context::id() const noexcept {
    return job_.job.id;
}
OJS_SHUTDOWN_INLINE const std::string& job_context::type() const noexcept {
    return job_.job.type;
}
OJS_SHUTDOWN_INLINE const std::string& job_context::queue() const noexcept {
    return job_.job.queue;
}
OJS_SHUTDOWN_INLINE std::int64_t job_context::attempt() const noexcept {
    return job_.job.attempt;
}
OJS_SHUTDOWN_INLINE const ojs::job& job_context::job() const noexcept {
    return job_.job;
}
OJS_SHUTDOWN_INLINE const std::string& job_context::args_json() const noexcept {
    return job_.job.args_json;
}

OJS_SHUTDOWN_INLINE std::string job_context::meta(std::string_view key) const {
    const std::string_view source = detail::raw_member(job_.job.meta_json, key);
    picojson::value value;
    if (!source.empty() && detail::parse_json(source, value) && value.is<std::string>()) {
        return value.get<std::string>();
    }
    return std::string(source);
}

OJS_SHUTDOWN_INLINE bool job_context::stop_requested() const noexcept {
    return worker_.past_intake();
}
OJS_SHUTDOWN_INLINE bool job_context::cancel_requested() const noexcept {
    return token().cancelled();
}
OJS_SHUTDOWN_INLINE cancel_token job_context::token() const noexcept {
    return job_.cancel.token();
}
OJS_SHUTDOWN_INLINE cancel_registration job_context::on_cancel(function<void()> callback) const {
    return token().on_cancel(std::move(callback));
}
OJS_SHUTDOWN_INLINE bool job_context::sleep_for(std::chrono::nanoseconds duration) const {
    return token().sleep_for(duration);
}
OJS_SHUTDOWN_INLINE time_point job_context::deadline() const noexcept {
    return time_point(steady_clock::duration(worker_.drain_deadline.load(std::memory_order_relaxed)));
}
OJS_SHUTDOWN_INLINE void job_context::heartbeat() const noexcept {
    worker_.beat_now();
}

}  // namespace v1
}  // namespace ojs
