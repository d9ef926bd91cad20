// instance_shutdown: the handshake, from the request until a process has drained, or its time is over.
#pragma once

#include "managed_instance.hpp"
#include "message_fields.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// `wanted` where it says something and is not longer than what was granted.
inline std::chrono::milliseconds within(std::chrono::milliseconds wanted,
                                        std::chrono::milliseconds granted) noexcept {
    return wanted.count() > 0 && wanted < granted ? wanted : granted;
}

inline void managed_instance::ask_to_shut_down() {
    const shutdown_timeouts& granted = spec_.options.shutdown;
    lock_guard held(mutex_);
    const shutdown_order order = order_;
    held.unlock();
    const std::chrono::milliseconds max = within(order.max, granted.max_duration);
    std::chrono::milliseconds grace = within(order.grace, granted.grace_period);
    if (max < grace) grace = max;
    request_ = {spec_.id, order.reason, wire_seconds(grace), wire_seconds(max)};
    asked_at_ = steady_clock::now();
    grace_end_ = granted_end_ = deadline_after(grace);
    hard_end_ = deadline_after(max);
    failed_questions_ = 0;
    manner_ = manner::asked;
    change(instance_event::is_asked, log_level::info, "shutdown requested", order.reason);
    if (client_) return send_request();
    end_by_signal(manner::asked_by_signal, hard_end_, "asking with SIGTERM", "it does not take part");
}

inline bool takes_no_part(const error& why, bool ever_answered) noexcept {
    const bool nobody = why.code == errc::unreachable && why.sys_errno != EAGAIN && !ever_answered;
    return nobody || why.code == errc::unsupported || why.code == errc::rejected ||
           why.code == errc::invalid_argument;
}

inline void managed_instance::send_request() {
    const time_point deadline = earlier(deadline_after(longest_question), end_of_patience());
    const result<shutdown_ack> ack = client_->shut_down(request_, deadline);
    if (was_interrupted(ack)) return;
    if (!ack && takes_no_part(ack.error(), answered_)) {
        return end_by_signal(manner::asked_by_signal, hard_end_, "asking with SIGTERM",
                             cat({"it does not take part: ", ack.error().text}));
    }
    if (ack && ack->acknowledged) {
        answered_ = delivered_ = true;
        failed_questions_ = 0;
    } else {
        tell_failure("shutdown not delivered", log_level::warn,
                     ack ? error{errc::rejected, 0, printable(ack->message)} : ack.error());
    }
    next_look_ = deadline_after(spec_.options.shutdown.poll_interval);
}

inline void managed_instance::look_at_status() {
    const time_point deadline = earlier(deadline_after(longest_question), end_of_patience());
    const result<shutdown_status> answer = client_->status(spec_.id, deadline);
    if (was_interrupted(answer)) return;
    if (answer) {
        failed_questions_ = 0;
        heard(*answer);
    } else {  // the pid tells the rest; one that has drained serves no longer
        const errc why = answer.error().code;
        const bool gone = why == errc::unreachable || why == errc::disconnected;
        tell_failure("shutdown status not known", gone ? log_level::info : log_level::warn, answer.error());
    }
    next_look_ = deadline_after(spec_.options.shutdown.poll_interval);
}

inline void managed_instance::tell_grace_is_over() {
    if (past_grace_ || steady_clock::now() < grace_end_) return;
    past_grace_ = true;
    say(log_level::warn, "past its grace period", state(), state(), "");
}

inline bool same_progress(const shutdown_status& one, const shutdown_status& other) {
    return one.state == other.state && one.metrics.in_flight_requests == other.metrics.in_flight_requests &&
           one.metrics.open_connections == other.metrics.open_connections &&
           one.metrics.buffered_bytes == other.metrics.buffered_bytes &&
           one.metrics.blocking_operations == other.metrics.blocking_operations;
}

inline void managed_instance::heard(const shutdown_status& answer) {
    const shutdown_status before = info().shutdown;
    const std::string said = printable(answer.message);
    update([&](process_info& now) {
        now.shutdown = answer;
        now.message = said;
    });
    if (answer.state == shutdown_state::draining || answer.state == shutdown_state::blocked)
        change(instance_event::drains, log_level::info, "process draining", said);
    if (answer.state == shutdown_state::complete && complete_end_ == time_point::max())
        complete_end_ = deadline_after(spec_.options.shutdown.kill_delay);
    std::string blocking;
    for (const std::string& each : answer.metrics.blocking_operations)
        append(blocking, {blocking.empty() ? "" : ", ", printable(each)});
    say(same_progress(before, answer) ? log_level::debug : log_level::info, "shutdown progress", state(),
        state(), said,
        {field("in_flight", answer.metrics.in_flight_requests),
         field("open_connections", answer.metrics.open_connections),
         field("buffered_bytes", static_cast<long long>(answer.metrics.buffered_bytes)),
         field("blocking", printable(blocking))});
    if (answer.need_more_time)
        grant_time(answer, !before.need_more_time || before.additional_seconds != answer.additional_seconds);
}

// Up to the hard deadline, and never past it.
inline void managed_instance::grant_time(const shutdown_status& answer, bool is_new) {
    const time_point wanted = deadline_after(std::chrono::seconds(answer.additional_seconds));
    if (wanted > granted_end_) granted_end_ = earlier(wanted, hard_end_);
    if (!is_new) return;
    say(log_level::warn, "more time asked for", state(), state(), printable(answer.message),
        {field("additional_seconds", answer.additional_seconds)});
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
