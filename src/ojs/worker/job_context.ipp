#pragma once

#include "detail/worker_state.ipp"
#include "job_context.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
OJS_SHUTDOWN_INLINE error argument_error(argument_place place, const error& failure) {
    const bool has_member = place.member.data() != nullptr;
    return {failure.code, 0,
            cat({"argument ", place.index, has_member ? ", member \"" : "", place.member, has_member ? "\": " : ": ",
                 failure.text})};
}
OJS_SHUTDOWN_INLINE result<json_view> find_argument(std::string_view args_json, argument_place place) {
    const json_view found = json_view(args_json).element(place.index);
    if (place.member.data() == nullptr || !found || found.type() == json_type::null) return found;
    if (found.type() == json_type::object) return found.member(place.member);
    return argument_error({place.index, {}}, invalid("not an object"));
}
OJS_SHUTDOWN_INLINE result<std::uint64_t> integer_argument(json_view source, std::int64_t min, std::uint64_t max) {
    std::uint64_t out = 0;
    if (json_integer(source.text(), min, max, out)) return out;
    return invalid(cat({"not an integer from ", min, " to ", max}));
}
OJS_SHUTDOWN_INLINE result<double> floating_argument(json_view source, bool is_float) {
    result<double> number = source.number();
    constexpr double max = std::numeric_limits<float>::max();
    if (!number || !is_float || (*number >= -max && *number <= max)) return number;
    return invalid("not a number that a float can hold, from -3.4e38 to 3.4e38");
}
}  // namespace detail

OJS_SHUTDOWN_INLINE std::string job_context::meta(std::string_view key) const {
    const std::string_view json = detail::raw_member(job_.job.meta_json, key);
    std::string text;
    return detail::read_json_string(json, text) ? text : std::string(json);
}
OJS_SHUTDOWN_INLINE bool job_context::stop_requested() const noexcept { return worker_.phases.has_stop_begun(); }
OJS_SHUTDOWN_INLINE bool job_context::abandoned() const noexcept {
    // A handler that sees this has also seen its cancellation.
    return worker_.is_abandoned(job_) && cancel_requested();
}
OJS_SHUTDOWN_INLINE cancel_token job_context::token() const noexcept { return job_.cancel.token(); }
OJS_SHUTDOWN_INLINE result<void> job_context::save_checkpoint(std::string_view state_json) {
    const result<json_view> valid = json_view::parse(state_json, state_json.size());
    if (!valid) return detail::invalid(detail::cat({"invalid checkpoint: ", valid.error().text}));
    if (worker_.is_forked()) return error{errc::cancelled, 0, "the job is the parent process's"};
    const detail::unique_lock held(worker_.guard);
    if (job_.is_taken) return error{errc::cancelled, 0, "the job was reported without its handler"};
    job_.saved = state_json;
    return {};
}
OJS_SHUTDOWN_INLINE std::string job_context::checkpoint() const {
    std::string state = worker_.is_forked() ? "" : worker_.locked([this] { return job_.saved; });
    if (state.empty()) state = detail::raw_member(job_.job.meta_json, "checkpoint");
    const bool is_valid = state != "null" && detail::is_json(state) && detail::is_utf8(state);
    return is_valid ? state : std::string();
}
OJS_SHUTDOWN_INLINE time_point job_context::deadline() const noexcept { return worker_.phases.drain_deadline(); }
OJS_SHUTDOWN_INLINE void job_context::extend_lease() const noexcept {
    if (!worker_.is_forked()) worker_.locked([this] { worker_.request_beat_soon(); });
}
}  // namespace v0_1_0
}  // namespace ojs
