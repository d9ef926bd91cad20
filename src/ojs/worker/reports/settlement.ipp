// settlement: reports to the backend what became of a job. Only the thread whose active_job::take() succeeded does.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../net/json_view.ipp"
#include "../state/worker_context.ipp"

namespace ojs::detail {

inline verdict completed(std::string result_json) {
    verdict out;
    out.ack = true;
    out.result_json = std::move(result_json);
    return out;
}

inline verdict make_fail(job_status status, log_level level, job_error failure, bool requeue = false) {
    verdict out;
    out.failure = std::move(failure);
    out.requeue = requeue;
    out.status = status;
    out.level = level;
    return out;
}

inline verdict failed(job_error failure) {
    const log_level level = failure.retryable ? log_level::warn : log_level::error;  // [LOG 6.1]
    return make_fail(job_status::failed, level, std::move(failure));
}

// For a job that arrived after the fetcher was closed, and never started.
inline verdict unstarted(const worker_context& worker) {
    verdict out = make_fail(job_status::requeued, log_level::info, {"not_started", {}, true, "{}"}, true);
    attempt([&] {
        out.failure = {worker.options.dialect.interrupted_error,
                       "the worker is shutting down; the job was not started", true,
                       "{\"reason\":\"not_started\"}"};
    });
    return out;
}

// Handed back, because another worker may have a handler (in a rollout), or may read what is malformed here. [WIRE 5, 7]
inline verdict unstartable_verdict(const worker_context& worker, const active_job& job) {
    if (!job.job.malformed.empty())
        return make_fail(job_status::requeued, log_level::debug,
                         {"invalid_payload", job.job.malformed, true, "{}"}, true);
    const unknown_type_action action = worker.options.unknown_type;
    job_error failure = {"unsupported",
                         cat({"no handler is registered for job type '", printable(job.job.type), "'"}),
                         action != unknown_type_action::discard, "{}"};
    if (action != unknown_type_action::requeue) return failed(std::move(failure));
    return make_fail(job_status::requeued, log_level::debug, std::move(failure), true);
}

// For a job that the stop interrupts. [GS-005, GS 7.2]
inline verdict interrupted(const worker_context& worker, const active_job& job, cancel_reason reason,
                           std::string_view message) {
    const cause started = worker.stage.own.state().cause;
    const ojs::dialect& dialect = worker.options.dialect;
    const std::chrono::milliseconds grace = worker.options.times.shutdown_grace_period;
    const bool long_running = job.handler && job.handler->options.long_running;
    const std::string& code = long_running ? dialect.long_running_error : dialect.interrupted_error;
    const int signal = started.kind == cause_kind::signal ? started.signal : 0;
    if (message.empty()) message = "the worker is shutting down; the job was interrupted";
    const std::string details =
        cat({"{\"reason\":\"", to_string(reason), "\",\"elapsed_ms\":", milliseconds_since(job.claimed_at),
             ",\"grace_period_ms\":", grace == no_limit ? "null" : std::to_string(grace.count()),
             ",\"signal\":", signal != 0 ? cat({"\"", signal_name(signal), "\""}) : "null", "}"});
    verdict out =
        make_fail(job_status::interrupted, log_level::info, {code, cat({code, ": ", message}), true, details},
                  dialect.requeue_interrupted || reason == cancel_reason::spot_reclaim);
    out.reason = reason;
    out.signal = signal;
    return out;
}

// For a job that exceeded its own timeout: a failure, which uses up an attempt. [WIRE 1]
inline verdict timed_out(const active_job& job, std::string_view message) {
    const long long limit = job.job.timeout.count();
    return failed({"timeout",
                   cat({"the job took longer than its timeout of ", limit, " ms", message.empty() ? "" : ": ",
                        message}),
                   true,
                   cat({"{\"reason\":\"timeout\",\"elapsed_ms\":", milliseconds_since(job.claimed_at),
                        ",\"timeout_ms\":", limit, "}"})});
}

// For a job that its backend has cancelled: it must not be retried.
inline verdict revoked(const active_job& job, std::string_view message) {
    verdict out =
        failed({"cancelled", cat({"the job was cancelled", message.empty() ? "" : ": ", message}), false,
                cat({"{\"reason\":\"revoked\",\"elapsed_ms\":", milliseconds_since(job.claimed_at), "}"})});
    out.level = log_level::info;
    return out;
}

// For a job that returned because it was cancelled.
inline verdict cut_short(const worker_context& worker, const active_job& job, cancel_reason reason,
                         std::string_view message) {
    if (reason == cancel_reason::timeout) return timed_out(job, message);
    if (reason == cancel_reason::revoked && !job.was_claimed_again()) return revoked(job, message);
    return interrupted(worker, job, reason, message);
}

// The protocol requires JSON; anything else is sent as a JSON string.
inline std::string to_result_json(const worker_context& worker, const active_job& job,
                                  const std::string& text) {
    if (text.empty() || check_json(text, false)) return repair_utf8(text);
    worker.log.write(log_level::warn, "the handler's result is not JSON and is sent as a string",
                     {field("job_id", job.job.id), field("job_type", job.job.type)});
    return json_quote(text);
}

// A handler that saw its cancellation and returns nothing is interrupted, not completed.
inline verdict outcome_verdict(const worker_context& worker, const active_job& job, const outcome& returned) {
    const cancel_token token = job.cancel.token();
    const bool saw_cancel = token.seen();
    switch (returned.kind()) {
        case outcome_kind::implicit:
            if (saw_cancel) return cut_short(worker, job, token.reason(), "");
            return completed("");
        case outcome_kind::interrupted:
            return cut_short(worker, job, saw_cancel ? token.reason() : cancel_reason::cancelled,
                             returned.text());
        case outcome_kind::retry: return failed({"handler_error", returned.text(), true, "{}"});
        case outcome_kind::discard: return failed({"handler_error", returned.text(), false, "{}"});
        case outcome_kind::done: break;
    }
    return completed(to_result_json(worker, job, returned.text()));
}

// Throwing is also a way to return on cancellation.
inline verdict exception_verdict(const worker_context& worker, const active_job& job, std::string message) {
    const cancel_token token = job.cancel.token();
    if (token.seen()) return cut_short(worker, job, token.reason(), message);
    return failed({"handler_error", std::move(message), true, "{}"});
}

inline constexpr backoff_range report_backoff = {std::chrono::milliseconds(50),
                                                 std::chrono::milliseconds(20000)};

inline constexpr steady_clock::duration min_try_time = std::chrono::milliseconds(100);

// A try takes at most half of the stop's remaining time: a lost response leaves time for another.
inline time_point try_deadline(const worker_context& worker) {
    const time_point now = steady_clock::now();
    const steady_clock::duration half = (worker.reports.deadline() - now) / 2;
    return now + detail::min<steady_clock::duration>(detail::max(half, min_try_time),
                                                     worker.options.request_timeout);
}

inline constexpr int max_strays = 6;  // responses that may be a proxy's
// Whether to report a job after its lease: the backend knows. [WIRE 7]
inline result<bool> holds_claim(worker_context& worker, const active_job& job, int& strays) {
    worker.beats.request_soon();
    const result<bool> held = query_claim(worker, job, try_deadline(worker));
    if (held) return held;
    const error& failure = held.error();
    const bool not_served =
        (failure.http_status == 404 || failure.http_status == 405) && ++strays >= max_strays;
    return is_inconclusive(failure.code) || not_served ? result<bool>(true) : failure;
}

// Whether to start a job. After its lease its claim must be confirmed: another worker may have it. [WIRE 7]
inline bool may_start(worker_context& worker, active_job& job) {
    while (job.lease_expired(lease_time::now())) {
        const std::uint32_t claim = job.claim_number();
        const result<bool> held = query_claim(worker, job, try_deadline(worker));
        if (!held) worker.beats.await_response(try_deadline(worker));  // it may renew the lease, by name
        if (held ? *held : !job.lease_expired(lease_time::now())) break;
        // A lost one comes back: a FAIL might end the claim of another worker.
        if (job.mark_lost(claim)) return false;
    }
    return true;
}

// No FETCH begins while it lives, and those in flight have ended. A FAIL that has arrived lets this worker claim the job
// again: repeated beside a FETCH, it could end that claim.
class fetch_pause {
  public:
    explicit fetch_pause(worker_context& worker) : worker_(worker) {
        worker_.fetch_pauses.fetch_add(1);
        const time_point until = try_deadline(worker_);
        unique_lock held(worker_.state.guard);
        while (worker_.fetches.load() > 0 && worker_.state.changed.wait_until(held, until)) {
        }
    }
    fetch_pause(const fetch_pause&) = delete;
    fetch_pause& operator=(const fetch_pause&) = delete;
    ~fetch_pause() { worker_.fetch_pauses.fetch_sub(1); }

  private:
    worker_context& worker_;
};

inline result<settled> send_report(worker_context& worker, active_job& job, const verdict& report) {
    const time_point sent_at = steady_clock::now();
    const time_point deadline = try_deadline(worker);
    result<settled> response = worker.backend.call([&](ojs::transport& transport) {
        if (report.ack)
            return transport.ack(
                {job.job.id, report.result_json, [&] { return !worker.beats.has_last_begun(); }}, deadline);
        job.flags.add(job_flags::fail_sent);  // first: once it arrives, this worker may get the job again
        return transport.fail({job.job.id, report.failure, report.requeue, report.checkpoint,
                               [&] { return !job.is_superseded() && !worker.beats.has_last_begun(); }},
                              deadline);
    });
    worker.note_response(response, sent_at);
    return response;
}

// `lease_over`: no heartbeat has renewed it since. `sent`: whether the report was, rather than a claim query.
inline result<report_status> report_once(worker_context& worker, active_job& job, verdict& report,
                                         bool lease_over, int& stray_queries, bool& sent) {
    sent = false;
    for (; lease_over; lease_over = job.lease_expired(lease_time::now())) {
        const std::uint32_t claim = job.claim_number();
        const result<bool> held = holds_claim(worker, job, stray_queries);
        if (!held) return held.error();
        if (*held) break;
        if (job.mark_lost(claim)) return report_status::gone;
    }
    if (steady_clock::now() >= worker.reports.deadline())
        return error{errc::timed_out, 0, "the stop is over"};
    sent = true;
    const result<settled> response = send_report(worker, job, report);
    if (!response) return response.error();
    report.response = *response;
    return *response == settled::gone ? report_status::gone : report_status::accepted;
}

// After at most half of the time that a drain or stop has left, or half a second.
inline time_point next_try_at(time_point now, time_point deadline, std::chrono::milliseconds delay) noexcept {
    const time_point earliest = now + detail::min(delay, std::chrono::milliseconds(500));
    return detail::max(earliest, detail::min(now + delay, now + (deadline - now) / 2));
}
inline time_point next_try_at(const worker_context& worker, std::chrono::milliseconds delay) {
    const time_point stop = worker.reports.deadline();
    return next_try_at(steady_clock::now(), stop == never ? worker.stage.drain_deadline() : stop, delay);
}

inline void log_failed_try(const worker_context& worker, const active_job& job, const verdict& report,
                           bool sent, const error& failure, time_point retry_at) {
    std::vector<log_field> fields = {field("job_id", job.job.id), field("error", failure.text)};
    if (retry_at < worker.reports.deadline())
        fields.push_back(field("retry_in_ms", detail::max(-milliseconds_since(retry_at), 0LL)));
    worker.log.write({log_level::warn,
                      !sent        ? "claim query failed"
                      : report.ack ? "ACK failed"
                                   : "FAIL failed",
                      std::move(fields),
                      {}});
}

// Retries until the backend accepts or rejects. ACK and FAIL may be repeated: the second gets 409. [WIRE 2]
inline report_status report_with_retries(worker_context& worker, active_job& job, verdict& report) {
    backoff retry_backoff(report_backoff);
    int stray_queries = 0;
    int stray_responses = 0;
    bool sent = false;
    bool may_have_arrived = false;
    while (steady_clock::now() < worker.reports.deadline()) {
        const std::uint32_t seen = worker.reports.changes();
        if (job.is_superseded() || (job.is_reassigned() && job.end_claim())) return report_status::gone;
        job.flags.remove(job_flags::claimed_again);
        const auto status = unless_out_of_memory([&]() -> result<report_status> {
            const bool lease_over = job.lease_expired(lease_time::now());
            if (report.ack || !(may_have_arrived || lease_over))
                return report_once(worker, job, report, lease_over, stray_queries, sent);
            const fetch_pause paused(worker);
            if (job.is_superseded()) return report_status::gone;
            return report_once(worker, job, report, job.lease_expired(lease_time::now()), stray_queries,
                               sent);
        });
        if (status && *status == report_status::gone) {
            if (report.ack) const fetch_pause paused(worker);  // a FETCH may have the next claim already
            if (!job.end_claim()) continue;
        }
        if (status) return *status;
        const error& failure = status.error();
        may_have_arrived = may_have_arrived || (sent && failure.code != errc::unreachable);
        // A 400 without an API error may be a proxy's: it is final when repeated.
        const bool stray = sent && failure.code == errc::bad_response && failure.http_status / 100 == 4;
        const bool rejected = failure.code == errc::rejected || (stray && ++stray_responses >= max_strays);
        std::string& payload = report.ack ? report.result_json : report.checkpoint;
        const time_point retry_at = !rejected ? next_try_at(worker, retry_backoff.next(failure.retry_after))
                                    : payload.empty() ? never
                                                      : steady_clock::now();
        attempt([&] { log_failed_try(worker, job, report, sent, failure, retry_at); });
        if (retry_at == never) return report_status::unreported;
        if (rejected) payload.clear();  // perhaps it was too large: report without it
        worker.reports.pause(retry_at, seen);
    }
    return report_status::unreported;
}

// Never the arguments.
inline std::vector<log_field> job_fields(const active_job& job) {
    return {field("job_id", job.job.id), field("job_type", job.job.type), field("queue", job.job.queue),
            field("attempt", job.job.attempt), field("elapsed_ms", milliseconds_since(job.claimed_at))};
}

// A handler's message may be long, and quote anything. Masked first: half a token could not be.
inline std::string error_message(const worker_context& worker, const job_error& failure) {
    constexpr std::size_t max_length = 1024;
    if (!worker.options.log.error_messages) return {};
    std::string text = failure.message;
    worker.log.mask_secrets(text);
    return printable(text, max_length);
}

// Whether a failed job runs again: as the backend says, else by its attempts. Empty: unknown, or not reported.
inline const char* will_retry(const active_job& job, const verdict& report) noexcept {
    if (report.response == settled::gone) return "";
    if (report.response == settled::will_retry) return "yes";
    if (report.response == settled::discarded || !report.failure.retryable) return "no";
    if (job.job.max_attempts == 0) return "";
    return job.job.attempt < job.job.max_attempts ? "yes" : "no";
}

inline void add_failure(const worker_context& worker, const active_job& job, const verdict& report,
                        std::vector<log_field>& fields) {
    fields.push_back(field("error_type", report.failure.code));
    if (report.status != job_status::failed) return;
    fields.push_back(field("error", error_message(worker, report.failure)));
    fields.push_back(field("will_retry", will_retry(job, report)));
    if (job.job.max_attempts > 0) fields.push_back(field("max_attempts", job.job.max_attempts));
}

// Nothing is logged without memory.
inline void log_job(const worker_context& worker, const active_job& job, log_level level,
                    std::string_view message, const verdict& report = {}) {
    if (!worker.log.enabled(level)) return;
    attempt([&] {
        std::vector<log_field> fields = job_fields(job);
        if (!report.failure.code.empty()) add_failure(worker, job, report, fields);
        if (report.reason != cancel_reason::none) fields.push_back(field("reason", to_string(report.reason)));
        if (report.signal != 0) fields.push_back(field("signal", signal_name(report.signal)));
        worker.log.write({level, std::string(message), std::move(fields), {}});
    });
}

// A job without a run has no duration.
inline void notify_settled(worker_context& worker, const active_job& job, const verdict& report) {
    if (report.status == job_status::requeued) return;
    const settled_state state = report.ack                 ? settled_state::completed
                                : report.requeue           ? settled_state::available
                                : report.failure.retryable ? settled_state::retryable
                                                           : settled_state::discarded;
    const job_settlement settled{job.job.queue, job.handler ? job.handler->type : std::string_view(), state,
                                 steady_clock::now() - job.claimed_at};
    worker.user.notify_parts([&](worker_part& part) { part.on_job_settled(settled); });
}

// For a job that the caller has taken: reports it until its deadline, then returns its ticket. Only failed tries are
// logged.
inline void report_and_release(worker_context& worker, active_job& job, verdict& report) {
    job.await_checkpoint_unlock(detail::min(try_deadline(worker), worker.reports.checkpoint_deadline()));
    if (!report.ack) retry_allocation([&] { report.checkpoint = job.saved_checkpoint(); });
    if (report.status == job_status::interrupted) worker.tally.count_interrupted();
    report.sent = report_with_retries(worker, job, report);
    worker.tally.end_claim(job, report.sent == report_status::unreported ? job_status::unreported
                                : report.sent == report_status::gone     ? job_status::gone
                                                                         : report.accepted_as());
    if (report.sent == report_status::accepted) notify_settled(worker, job, report);
    worker.jobs.end_report(job);
    worker.leave(job.ticket);
}

inline void log_report_status(const worker_context& worker, const active_job& job, const verdict& report) {
    if (report.sent == report_status::accepted)
        return log_job(worker, job, report.level, status_messages[static_cast<std::size_t>(report.status)],
                       report);
    if (report.sent == report_status::unreported)
        return log_job(worker, job, log_level::error, "job could not be reported");
    if (job.is_reassigned())
        return log_job(worker, job, log_level::info, "job no longer this worker's; not reported");
    log_job(worker, job, log_level::warn, "claim gone; the job was settled before, or reassigned");
}

// Reports and logs a job that the caller has taken.
inline void settle(worker_context& worker, active_job& job, verdict report) {
    report_and_release(worker, job, report);
    log_report_status(worker, job, report);
}

}  // namespace ojs::detail
