#pragma once

#include "job_context.hpp"

#include "detail/worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

OJS_SHUTDOWN_INLINE error argument_error(std::size_t index, const error& why) {
    return {why.code, 0, cat({"argument ", index, ": ", why.text})};
}

// One argument's source text.
OJS_SHUTDOWN_INLINE result<std::string_view> argument_source(std::string_view args_json, std::size_t index) {
    const json_view found = json_view(args_json).element(index);
    if (!found) return error{errc::invalid_argument, 0, cat({"the job has no argument ", index})};
    const result<void> valid = check_json(found.text());
    return valid ? result<std::string_view>(found.text()) : argument_error(index, valid.error());
}

inline error wrong_type(std::size_t index, std::string_view wanted) {
    return {errc::invalid_argument, 0, cat({"argument ", index, " is not ", wanted})};
}

OJS_SHUTDOWN_INLINE std::string string_or_json(std::string_view json) {
    std::string text;
    return raw_string(json, text) ? text : std::string(json);
}

OJS_SHUTDOWN_INLINE result<std::uint64_t> whole_argument(std::string_view source, std::size_t index,
                                                         whole_range wanted) {
    // From the text, not from a double, which is exact only up to 2^53.
    const bool negative = source.front() == '-';
    const std::uint64_t largest = negative ? 0 - static_cast<std::uint64_t>(wanted.min) : wanted.max;
    std::uint64_t magnitude = 0;
    if (!parse_number(source.substr(negative ? 1 : 0), largest, magnitude)) {
        return wrong_type(
            index, cat({"a whole number of ", wanted.bits, " bits, from ", static_cast<long long>(wanted.min),
                        " to ", static_cast<unsigned long long>(wanted.max)}));
    }
    return negative ? 0 - magnitude : magnitude;
}

OJS_SHUTDOWN_INLINE result<double> real_argument(std::string_view source, std::size_t index, double largest) {
    double number = 0;
    if (!json_number(source, number)) return wrong_type(index, "a number");
    if (number < -largest || number > largest)
        return wrong_type(index, "a number that a float can hold, from -3.4e38 to 3.4e38");
    return number;
}

OJS_SHUTDOWN_INLINE result<bool> bool_argument(std::string_view source, std::size_t index) {
    if (source != "true" && source != "false") return wrong_type(index, "true or false");
    return source == "true";
}

// ---- checkpoints ----

// One thread's turn to save or load; none when the job is being reported.
class checkpoint_turn {
  public:
    explicit checkpoint_turn(active_job& job) : job_(job), ours_(job.begin_turn()) {}
    checkpoint_turn(const checkpoint_turn&) = delete;
    checkpoint_turn& operator=(const checkpoint_turn&) = delete;
    ~checkpoint_turn() {
        if (ours_) job_.end_turn();
    }
    explicit operator bool() const noexcept { return ours_; }

  private:
    active_job& job_;
    const bool ours_;
};

inline result<void> checkpoint_fault(std::string_view state) {
    const result<void> valid = check_json(state);
    if (valid && is_utf8(state)) return {};
    return error{errc::invalid_argument, 0,
                 cat({"the checkpoint is not to be kept: ", valid ? "not UTF-8" : valid.error().text})};
}

// A state as it came from elsewhere: empty if there is none, or none that is JSON.
inline std::string usable_checkpoint(std::string_view state) {
    return state == "null" || !checkpoint_fault(state) ? std::string() : std::string(state);
}

inline time_point checkpoint_deadline(const worker_context& worker) {
    return detail::min(deadline_after(worker.options.request_timeout), worker.reports.deadline());
}

// Success where the transport has no place for checkpoints: this one goes with the FAIL.
inline result<void> send_checkpoint(worker_context& worker, const active_job& job, const std::string& state) {
    const time_point deadline = checkpoint_deadline(worker);
    const result<settled> answer = worker.backend.call([&](ojs::transport& transport) {
        return transport.save_checkpoint({job.job.id, state}, deadline);
    });
    if (!answer) return answer.error().code == errc::unsupported ? result<void>() : answer.error();
    if (*answer == settled::accepted) return {};
    return error{errc::rejected, 0, "the job is no longer this worker's", 409};
}

// Asks the backend, in a turn of ours, unless another thread has.
inline void find_checkpoint(worker_context& worker, active_job& job) {
    const checkpoint_turn turn(job);
    if (!turn || job.word.has(job_word::asked)) return;
    const time_point deadline = checkpoint_deadline(worker);
    const result<std::string> answer = worker.backend.call(
        [&](ojs::transport& transport) { return transport.load_checkpoint(job.job.id, deadline); });
    if (answer || answer.error().code == errc::unsupported) {
        job.note_found(answer ? *answer : "");
        return;
    }
    worker.log.write(
        log_level::warn, "the job's checkpoint could not be asked for; only what came with the job counts",
        {field("job_id", job.job.id), field("job_type", job.job.type), field("error", answer.error().text)});
}

}  // namespace detail

OJS_SHUTDOWN_INLINE std::string job_context::meta(std::string_view key) const {
    return detail::string_or_json(detail::raw_member(job_.job.meta_json, key));
}

OJS_SHUTDOWN_INLINE bool job_context::stop_requested() const noexcept {
    return worker_.stage.past_intake();
}
OJS_SHUTDOWN_INLINE bool job_context::abandoned() const noexcept {
    // Who is told so knows of the cancellation as well.
    return job_.abandoned() && cancel_requested();
}
OJS_SHUTDOWN_INLINE cancel_token job_context::token() const noexcept {
    return job_.cancel.token();
}

OJS_SHUTDOWN_INLINE result<void> job_context::save_checkpoint(std::string_view state_json) {
    const result<void> fault = detail::checkpoint_fault(state_json);
    if (!fault) return fault;
    const detail::checkpoint_turn turn(job_);
    std::string state(state_json);
    if (!turn || !job_.keep_checkpoint(state))
        return error{errc::cancelled, 0, "the job was reported without its handler"};
    return detail::send_checkpoint(worker_, job_, state);
}

OJS_SHUTDOWN_INLINE std::string job_context::checkpoint() const {
    const std::string state = job_.kept_checkpoint();
    if (!state.empty()) return detail::usable_checkpoint(state);
    detail::find_checkpoint(worker_, job_);
    const std::string found = job_.found_checkpoint();
    // In this order: the backend's answer, the claim, the last FAIL.
    const std::string_view claimed =
        detail::raw_member(detail::raw_member(job_.job.envelope_json, "checkpoint"), "state");
    const std::string_view failed = detail::raw_member(job_.job.meta_json, "checkpoint");
    return detail::usable_checkpoint(!found.empty() ? found : !claimed.empty() ? claimed : failed);
}

OJS_SHUTDOWN_INLINE time_point job_context::deadline() const noexcept {
    return worker_.stage.drain_deadline();
}
OJS_SHUTDOWN_INLINE void job_context::heartbeat() const noexcept {
    worker_.beats.request_soon();
}

}  // namespace v0_1_0
}  // namespace ojs
