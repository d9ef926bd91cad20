// send_report: reports to the backend what became of a job. Only the thread whose active_job::take() succeeded does.
#pragma once

#include "job_report.ipp"

namespace ojs::detail {

inline constexpr backoff_range report_backoff = {std::chrono::milliseconds(50),
                                                 std::chrono::milliseconds(20000)};

inline constexpr steady_clock::duration min_try_time = std::chrono::milliseconds(100);

// A try takes at most half of the stop's remaining time: a lost response leaves time for another.
inline time_point try_deadline(const worker_context& worker, time_point now = steady_clock::now()) {
    const steady_clock::duration half = (worker.reports.deadline() - now) / 2;
    return now + detail::min<steady_clock::duration>(detail::max(half, min_try_time),
                                                     worker.options.request_timeout);
}

// Whether to start a job. After its lease its claim must be confirmed: another worker may have it. [WIRE 7]
inline bool confirm_before_start(worker_context& worker, active_job& job) {
    while (job.lease_expired(lease_time::now())) {
        const std::uint32_t claim = job.claim_number();
        const result<bool> held = query_claim(worker, job, try_deadline(worker));
        if (!held) worker.beats.request_and_await(try_deadline(worker));  // it may renew the lease, by name
        if (held ? *held : !job.lease_expired(lease_time::now())) break;
        // A lost one comes back: a FAIL might end the claim of another worker.
        if (job.mark_lost(claim)) return false;
    }
    return true;
}

// No FETCH begins while it lives. The constructor waits for those in flight, until try_deadline() at most. A FAIL that
// has arrived lets this worker claim the job again: repeated beside a FETCH, it could end that claim.
class fetch_pause {
  public:
    explicit fetch_pause(worker_context& worker) : worker_(worker) {
        worker_.fetch_pauses.fetch_add(1);
        time_point until = try_deadline(worker_);
        unique_lock held(worker_.state.guard);
        // A stop that begins meanwhile leaves less time.
        while (worker_.fetches.load() > 0 && worker_.state.changed.wait_until(held, until))
            until = detail::min(until, try_deadline(worker_));
    }
    fetch_pause(const fetch_pause&) = delete;
    fetch_pause& operator=(const fetch_pause&) = delete;
    ~fetch_pause() { worker_.fetch_pauses.fetch_sub(1); }

  private:
    worker_context& worker_;
};

// After at most half of the time that a drain or stop has left, or half a second.
inline time_point next_try_at(time_point now, time_point deadline, std::chrono::milliseconds delay) noexcept {
    const time_point earliest = now + detail::min(delay, std::chrono::milliseconds(500));
    return detail::max(earliest, detail::min(now + delay, now + (deadline - now) / 2));
}

// Sends one report, until the backend accepts or rejects it or the stop is over.
class report_sender {
  public:
    report_sender(worker_context& worker, active_job& job, job_report& report)
        : worker_(worker), job_(job), report_(report) {}

    // ACK and FAIL may be repeated: the second gets 409. An error: the job is unreported. [WIRE 2]
    result<settle_result> send() {
        while (!worker_.reports.are_over()) {
            const std::uint32_t seen = worker_.reports.changes();
            if (job_.is_superseded() || (job_.is_reassigned() && job_.end_claim()))
                return settle_result::gone;
            job_.flags.remove(job_flags::claimed_again);
            result<settle_result> response = unless_out_of_memory([this] { return try_once(); });
            if (response && *response == settle_result::gone) {
                if (report_.ack)
                    const fetch_pause paused(worker_);  // a FETCH may have the next claim already
                if (!job_.end_claim()) continue;
            }
            if (response) return response;
            const time_point retry_at = plan_retry(response.error());
            if (retry_at == never) return response;
            worker_.reports.wait_for_retry(retry_at, seen);
        }
        return stop_is_over();
    }

  private:
    static error stop_is_over() { return {errc::timed_out, 0, "the stop is over"}; }

    result<settle_result> try_once() {
        const bool lease_over = job_.lease_expired(lease_time::now());
        if (report_.ack || !(may_have_arrived_ || lease_over)) return query_and_report(lease_over);
        const fetch_pause paused(worker_);
        if (job_.is_superseded()) return settle_result::gone;
        return query_and_report(job_.lease_expired(lease_time::now()));
    }
    // `lease_over`: no heartbeat has renewed it since.
    result<settle_result> query_and_report(bool lease_over) {
        sent_ = false;
        for (; lease_over; lease_over = job_.lease_expired(lease_time::now())) {
            const std::uint32_t claim = job_.claim_number();
            const result<bool> held = confirm_claim();
            if (!held) return held.error();
            if (*held) break;
            if (job_.mark_lost(claim)) return settle_result::gone;
        }
        if (worker_.reports.are_over()) return stop_is_over();
        sent_ = true;
        return report();
    }
    // Whether to report a job after its lease: as the backend says; yes if it cannot say. [WIRE 7]
    result<bool> confirm_claim() {
        worker_.beats.request_soon();
        result<bool> held = query_claim(worker_, job_, try_deadline(worker_));
        if (held) return held;
        const error& failure = held.error();
        const bool not_served =
            (failure.http_status == 404 || failure.http_status == 405) && ++stray_queries_ >= max_strays;
        return is_inconclusive(failure.code) || not_served ? result<bool>(true) : failure;
    }
    result<settle_result> report() {
        const time_point sent_at = steady_clock::now();
        const time_point deadline = try_deadline(worker_, sent_at);
        const auto should_send = [this] { return !job_.is_superseded() && !worker_.beats.has_last_begun(); };
        result<settle_result> response = worker_.backend.call([&](ojs::transport& transport) {
            const std::string claim = job_.latest_claim();
            if (report_.ack)
                return transport.ack({job_.job.id, report_.result_json, should_send, claim, &job_.job},
                                     deadline);
            job_.flags.add(
                job_flags::fail_sent);  // first: once it arrives, this worker may get the job again
            return transport.fail({job_.job.id, report_.failure, report_.requeue, report_.checkpoint,
                                   should_send, claim, &job_.job},
                                  deadline);
        });
        worker_.note_response(response, sent_at);
        return response;
    }

    // Returns when to try again; `never`: the backend has rejected it.
    time_point plan_retry(const error& failure) {
        may_have_arrived_ = may_have_arrived_ || (sent_ && failure.code != errc::unreachable);
        // A 400 without an API error may be a proxy's: it is final when repeated.
        const bool stray = sent_ && failure.code == errc::bad_response && failure.http_status / 100 == 4;
        const bool rejected = failure.code == errc::rejected || (stray && ++stray_responses_ >= max_strays);
        std::string& payload = report_.ack ? report_.result_json : report_.checkpoint;
        const time_point retry_at = !rejected         ? next_try(retry_backoff_.next(failure.retry_after))
                                    : payload.empty() ? never
                                                      : steady_clock::now();
        attempt([&] { log_failed_try(failure, retry_at); });
        if (rejected) payload.clear();  // perhaps it was too large: report without it
        return retry_at;
    }
    time_point next_try(std::chrono::milliseconds delay) const {
        const time_point stop = worker_.reports.deadline();
        return next_try_at(steady_clock::now(), stop == never ? worker_.stage.drain_deadline() : stop, delay);
    }
    void log_failed_try(const error& failure, time_point retry_at) const {
        std::vector<log_field> fields = {field("job_id", job_.job.id), field("error", failure.text)};
        if (retry_at < worker_.reports.deadline())
            fields.push_back(field("retry_in_ms", detail::max(-milliseconds_since(retry_at), 0LL)));
        worker_.log.write({log_level::warn,
                           !sent_        ? "claim query failed"
                           : report_.ack ? "ACK failed"
                                         : "FAIL failed",
                           std::move(fields),
                           {}});
    }

    static constexpr int max_strays = 6;  // responses that may be a proxy's

    worker_context& worker_;
    active_job& job_;
    job_report& report_;
    backoff retry_backoff_{report_backoff};
    int stray_queries_ = 0;
    int stray_responses_ = 0;
    bool sent_ = false;  // the latest try, rather than a claim query before it
    bool may_have_arrived_ = false;
};

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
inline const char* will_retry(const active_job& job, const job_report& report) noexcept {
    if (report.response == settle_result::gone) return "";
    if (report.response == settle_result::will_retry) return "yes";
    if (report.response == settle_result::discarded || !report.failure.retryable) return "no";
    if (job.job.max_attempts == 0) return "";
    return job.job.attempt < job.job.max_attempts ? "yes" : "no";
}

inline void add_failure(const worker_context& worker, const active_job& job, const job_report& report,
                        std::vector<log_field>& fields) {
    fields.push_back(field("error_type", report.failure.code));
    if (report.status != job_status::failed) return;
    fields.push_back(field("error", error_message(worker, report.failure)));
    fields.push_back(field("will_retry", will_retry(job, report)));
    if (job.job.max_attempts > 0) fields.push_back(field("max_attempts", job.job.max_attempts));
}

// Nothing is logged without memory.
inline void log_job(const worker_context& worker, const active_job& job, log_level level,
                    std::string_view message, const job_report& report = {}) {
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
inline void notify_settled(worker_context& worker, const active_job& job, const job_report& report) {
    if (report.status == job_status::requeued || worker.user.extensions.empty()) return;
    const settled_state state = report.ack                 ? settled_state::completed
                                : report.requeue           ? settled_state::available
                                : report.failure.retryable ? settled_state::retryable
                                                           : settled_state::discarded;
    const job_settlement settled{job.job.queue, job.handler ? job.handler->type : std::string_view(), state,
                                 steady_clock::now() - job.claimed_at};
    worker.user.notify_extensions([&](worker_extension& extension) { extension.on_job_settled(settled); });
}

// For a job that the caller has taken: reports it until its deadline, then returns its ticket. Only failed tries are
// logged.
inline void report_and_release(worker_context& worker, active_job& job, job_report& report) {
    if (job.flags.has(job_flags::checkpoint_locked))
        job.await_checkpoint_unlock(detail::min(try_deadline(worker), worker.reports.checkpoint_deadline()));
    if (!report.ack) retry_allocation([&] { report.checkpoint = job.saved_checkpoint(); });
    if (report.status == job_status::interrupted) worker.tally.count_interrupted();
    report.note_response(report_sender(worker, job, report).send());
    worker.tally.end_claim(job, report.ended);
    if (report.accepted()) notify_settled(worker, job, report);
    worker.jobs.end_report(job);
    worker.leave(job.ticket);
}

inline void log_report_status(const worker_context& worker, const active_job& job, const job_report& report) {
    if (report.accepted())
        return log_job(worker, job, report.level, status_messages[static_cast<std::size_t>(report.status)],
                       report);
    if (report.ended == job_status::unreported)
        return log_job(worker, job, log_level::error, "job could not be reported");
    if (job.is_reassigned())
        return log_job(worker, job, log_level::info,
                       "claim lost: another worker may have this job; not reported");
    log_job(worker, job, log_level::warn,
            "claim lost: the backend no longer assigns this job to this worker; report ignored");
}

// Reports and logs a job that the caller has taken.
inline void settle(worker_context& worker, active_job& job, job_report report) {
    report_and_release(worker, job, report);
    log_report_status(worker, job, report);
}

}  // namespace ojs::detail
