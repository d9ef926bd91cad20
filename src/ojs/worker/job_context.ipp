#pragma once

#include "job_context.hpp"

#include "detail/worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

OJS_SHUTDOWN_INLINE error argument_error(std::size_t index, const error& failure) {
    return {failure.code, 0, cat({"argument ", index, ": ", failure.text})};
}

OJS_SHUTDOWN_INLINE result<std::string_view> argument_source(std::string_view args_json, std::size_t index) {
    const json_view found = json_view(args_json).element(index);
    if (!found) return error{errc::invalid_argument, 0, cat({"the job has no argument ", index})};
    const result<void> valid = check_json(found.text(), false);
    return valid ? result<std::string_view>(found.text()) : argument_error(index, valid.error());
}

inline error wrong_type(std::size_t index, std::string_view expected) {
    return {errc::invalid_argument, 0, cat({"argument ", index, " is not ", expected})};
}

OJS_SHUTDOWN_INLINE std::string string_or_json(std::string_view json) {
    std::string text;
    return raw_string(json, text) ? text : std::string(json);
}

OJS_SHUTDOWN_INLINE result<std::uint64_t> integer_argument(std::string_view source, std::size_t index,
                                                           integer_range range) {
    // From the text, not from a double, which is exact only up to 2^53.
    const bool negative = source.front() == '-';
    const std::uint64_t max_magnitude = negative ? 0 - static_cast<std::uint64_t>(range.min) : range.max;
    std::uint64_t magnitude = 0;
    if (!parse_number(source.substr(negative ? 1 : 0), max_magnitude, magnitude)) {
        return wrong_type(
            index, cat({"a whole number of ", range.bits, " bits, from ", static_cast<long long>(range.min),
                        " to ", static_cast<unsigned long long>(range.max)}));
    }
    return negative ? 0 - magnitude : magnitude;
}

OJS_SHUTDOWN_INLINE result<double> floating_argument(std::string_view source, std::size_t index, double max) {
    double number = 0;
    if (!json_number(source, number)) return wrong_type(index, "a number");
    if (number < -max || number > max)
        return wrong_type(index, "a number that a float can hold, from -3.4e38 to 3.4e38");
    return number;
}

OJS_SHUTDOWN_INLINE result<bool> bool_argument(std::string_view source, std::size_t index) {
    if (source != "true" && source != "false") return wrong_type(index, "true or false");
    return source == "true";
}

// Held while a thread saves or loads a checkpoint. False: the job is being reported.
class checkpoint_lock {
  public:
    explicit checkpoint_lock(active_job& job) : job_(job), locked_(job.lock_checkpoint()) {}
    checkpoint_lock(const checkpoint_lock&) = delete;
    checkpoint_lock& operator=(const checkpoint_lock&) = delete;
    ~checkpoint_lock() {
        if (locked_) job_.unlock_checkpoint();
    }
    explicit operator bool() const noexcept { return locked_; }

  private:
    active_job& job_;
    const bool locked_;
};

inline result<void> check_checkpoint(std::string_view state) {
    const result<void> valid = check_json(state, false);
    if (valid && is_utf8(state)) return {};
    return error{errc::invalid_argument, 0,
                 cat({"invalid checkpoint: ", valid ? "not UTF-8" : valid.error().text})};
}

// Returns the state, or an empty one if it is null or invalid.
inline std::string valid_checkpoint(std::string_view state) {
    return state == "null" || !is_json(state) || !is_utf8(state) ? std::string() : std::string(state);
}

inline time_point checkpoint_deadline(const worker_context& worker) {
    return detail::min(deadline_after(worker.options.request_timeout), worker.reports.deadline());
}

// Succeeds if the transport stores no checkpoints, because the FAIL carries them.
inline result<void> send_checkpoint(worker_context& worker, const active_job& job, const std::string& state) {
    const time_point deadline = checkpoint_deadline(worker);
    const result<settled> response = worker.backend.call([&](ojs::transport& transport) {
        return transport.save_checkpoint({job.job.id, state}, deadline);
    });
    if (!response) return response.error().code == errc::unsupported ? result<void>() : response.error();
    if (*response == settled::accepted) return {};
    return error{errc::rejected, 0, "the job is no longer this worker's", 409};
}

// Does nothing if it was loaded before.
inline void load_backend_checkpoint(worker_context& worker, active_job& job) {
    const checkpoint_lock lock(job);
    if (!lock || job.flags.has(job_flags::checkpoint_loaded)) return;
    const time_point deadline = checkpoint_deadline(worker);
    const result<std::string> response = worker.backend.call(
        [&](ojs::transport& transport) { return transport.load_checkpoint(job.job.id, deadline); });
    if (response || response.error().code == errc::unsupported) {
        job.set_loaded_checkpoint(response ? *response : "");
        return;
    }
    worker.log.write(log_level::warn,
                     "could not load the checkpoint from the backend; using the one that came with the job",
                     {field("job_id", job.job.id), field("job_type", job.job.type),
                      field("error", response.error().text)});
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::string job_context::meta(std::string_view key) const {
    return detail::string_or_json(detail::raw_member(job_.job.meta_json, key));
}

OJS_SHUTDOWN_INLINE bool job_context::stop_requested() const noexcept {
    return worker_.stage.has_stop_begun();
}
OJS_SHUTDOWN_INLINE bool job_context::abandoned() const noexcept {
    // A handler that sees this has also seen its cancellation.
    return job_.abandoned() && cancel_requested();
}
OJS_SHUTDOWN_INLINE cancel_token job_context::token() const noexcept {
    return job_.cancel.token();
}

OJS_SHUTDOWN_INLINE result<void> job_context::save_checkpoint(std::string_view state_json) {
    const result<void> valid = detail::check_checkpoint(state_json);
    if (!valid) return valid;
    const detail::checkpoint_lock lock(job_);
    std::string state(state_json);
    if (!lock || !job_.set_checkpoint(state))
        return error{errc::cancelled, 0, "the job was reported without its handler"};
    return detail::send_checkpoint(worker_, job_, state);
}

OJS_SHUTDOWN_INLINE std::string job_context::checkpoint() const {
    const std::string state = job_.saved_checkpoint();
    if (!state.empty()) return detail::valid_checkpoint(state);
    detail::load_backend_checkpoint(worker_, job_);
    const std::string loaded = job_.loaded_checkpoint();
    // In this order: the backend's response, the claim, the last FAIL.
    const std::string_view claimed =
        detail::raw_member(detail::raw_member(job_.job.envelope_json, "checkpoint"), "state");
    const std::string_view failed = detail::raw_member(job_.job.meta_json, "checkpoint");
    return detail::valid_checkpoint(!loaded.empty() ? loaded : !claimed.empty() ? claimed : failed);
}

OJS_SHUTDOWN_INLINE time_point job_context::deadline() const noexcept {
    return worker_.stage.drain_deadline();
}
OJS_SHUTDOWN_INLINE void job_context::heartbeat() const noexcept {
    worker_.beats.request_soon();
}

}  // namespace v0_1_0
}  // namespace ojs
