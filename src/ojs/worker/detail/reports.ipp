// reports: sends the ACK or FAIL of a job until the backend accepts it or the stop is over.
#pragma once

#include "job_report.ipp"

namespace ojs::detail {
// After at most half of the time that a drain or stop has left, or half a second.
inline time_point next_try_at(time_point now, time_point deadline, milliseconds delay) noexcept {
    const time_point earliest = now + min(delay, milliseconds(500));
    return max(earliest, min(now + delay, now + (deadline - now) / 2));
}

struct report_tries {
    backoff delays{milliseconds(50), milliseconds(20000)};
    int refusals = 0;
    unsigned seen_changes = 0;
    std::uint32_t seen_claims = 0;
};

// Each function is called by the one thread that has taken the job.
class reports : public worker_state {
  public:
    using worker_state::worker_state;

    void settle(active_job& job, job_report report) {
        unique_lock held(guard);
        if (!report.ack) report.checkpoint = job.saved;
        if (report.status == job_status::interrupted) ++counts.interrupted;
        held.unlock();
        const result<settle_result> response = send(job, report);
        if (response)
            report.ended = *response == settle_result::gone           ? job_status::gone
                           : report.status != job_status::interrupted ? report.status
                           : report.requeue                           ? job_status::requeued
                                                                      : job_status::failed;
        end_account(job, report.ended);
        // A job without a run has no duration.
        if (report.accepted() && report.status != job_status::requeued)
            notify_settled(job, job.handler ? job.handler->type : std::string_view(), requested_state(report));
        release(job);
        log_status(job, report, response.error().text);
    }
    // In a task; then a slot may be free.
    void settle_in_task(active_job& job, job_report report) {
        settle(job, std::move(report));
        locked([this] { on_work_hint(); });
    }
    void post(const ref<active_job>& job, job_report report) {
        threads.post(task_kind::report,
                     [this, job, report = std::move(report)]() mutable { settle_in_task(*job, std::move(report)); });
    }
    // Never the arguments.
    void log_job(const active_job& job, log_level level, std::string_view message, const job_report& report = {}) {
        if (!log.enabled(level)) return;
        constexpr std::size_t max_error = 1024;  // a handler's message may be long, and quote anything
        const bool has_text = report.status == job_status::failed && options.log.error_messages;
        std::vector<log_field> fields = job_fields(job);
        fields.push_back(field("error_type", report.failure.code));
        fields.push_back(field("error", has_text ? printable(report.failure.message, max_error) : ""));
        fields.push_back(field("reason", report.reason == cancel_reason::none ? "" : to_string(report.reason)));
        fields.push_back(field("signal", report.signal == 0 ? "" : signal_name(report.signal)));
        log.write({level, std::string(message), std::move(fields), {}});
    }

  private:
    // An error: the job is unreported. ACK and FAIL may be repeated: the second gets 409. [WIRE 2]
    result<settle_result> send(active_job& job, job_report& report) {
        for (report_tries so_far;;) {
            {
                const unique_lock held(guard);
                if (steady_clock::now() >= reports_end()) return error{errc::timed_out, 0, "stop_timeout is over"};
                so_far.seen_changes = report_changes;
                so_far.seen_claims = job.claims;
            }
            result<settle_result> response = try_once(job, report);
            if (response && *response == settle_result::gone) {
                const unique_lock held(guard);
                if (job.claims != so_far.seen_claims) continue;  // so the report is still due
                job.is_superseded = true;                        // what comes from now on is another job
            }
            if (response || !await_next_try(job, report, response.error(), so_far)) return response;
        }
    }
    result<settle_result> try_once(active_job& job, const job_report& report) {
        unique_lock held(guard);
        if (job.is_lost || job.is_superseded) return settle_result::gone;
        const bool is_over = job.lease_expired();
        held.unlock();
        if (is_over && !report.ack) return settle_result::gone;
        const result<bool> renewed = is_over ? await_renewal(job) : result<bool>(true);
        if (!renewed) return renewed.error();
        return *renewed ? send_request(job, report) : result<settle_result>(settle_result::gone);
    }
    result<settle_result> send_request(active_job& job, const job_report& report) {
        const time_point sent_at = steady_clock::now();
        const time_point deadline = try_deadline();
        function<bool()> should_send = [this, &job] {
            return locked([&] { return !job.is_superseded && !beats.last_has_begun; });
        };
        unique_lock held(guard);
        if (sent_at >= reports_end()) return error{errc::timed_out, 0, "stop_timeout is over"};
        if (!report.ack) job.fail_sent = true;  // once it arrives, this worker may get the job again
        job_request about = request_about(job, std::move(should_send));
        held.unlock();
        result<settle_result> response = call([&](ojs::transport& backend) {
            if (report.ack) return backend.ack({std::move(about), report.result_json}, deadline);
            return backend.fail({std::move(about), report.failure, report.requeue, report.checkpoint}, deadline);
        });
        if (!response || *response != settle_result::gone) note_response(response, sent_at);  // `gone` needs no request
        return response;
    }
    // False: no try follows. Six refusals are final, but for a try without the payload, which may be too large.
    bool await_next_try(const active_job& job, job_report& report, const error& failure, report_tries& so_far) {
        const bool is_refused = failure.code == errc::rejected;
        std::string& payload = report.ack ? report.result_json : report.checkpoint;
        unique_lock held(guard);
        const time_point end = reports_end();
        const time_point now = steady_clock::now();
        time_point retry_at =
            next_try_at(now, end == never ? phases.drain_deadline() : end, so_far.delays.next(failure.retry_after));
        const bool has_last = is_refused && !payload.empty();  // a try without it, which must fit
        if (retry_at >= (has_last ? now + (end - now) / 2 : end) || (is_refused && ++so_far.refusals >= 6)) {
            if (!has_last) return false;
            payload.clear();
            retry_at = now;
        }
        held.unlock();
        if (!is_bad_token(failure))
            log.write(log_level::warn, report.ack ? "cannot report a completed job" : "cannot report a failed job",
                      {field("job_id", job.job.id), field("error", failure.text),
                       field("retry_in_ms", max(-milliseconds_since(retry_at), 0LL))});
        held.lock();
        while (report_changes == so_far.seen_changes && changed.wait_until(held, min(retry_at, reports_end())))
            continue;
        return true;
    }
    // Unless a stop has given it up first.
    void end_account(active_job& job, job_status ended) {
        const unique_lock held(guard);
        if (exchange(job.is_over, true)) return;
        if (ended == job_status::unreported) return count_unreported(job.job.id);
        constexpr std::uint64_t worker_report::*by_status[] = {&worker_report::completed, &worker_report::failed,
                                                               &worker_report::interrupted, &worker_report::requeued,
                                                               &worker_report::gone};
        ++(counts.*by_status[static_cast<std::size_t>(ended)]);
    }
    static settled_state requested_state(const job_report& report) noexcept {
        if (report.ack || report.requeue) return report.ack ? settled_state::completed : settled_state::available;
        return report.failure.retryable ? settled_state::retryable : settled_state::discarded;
    }
    void log_status(const active_job& job, const job_report& report, const std::string& error) {
        if (report.accepted())
            return log_job(job, report.level, status_messages[static_cast<std::size_t>(report.status)], report);
        std::vector<log_field> fields = in_flight_fields(job);
        fields.push_back(field("error", error));
        const bool is_gone = report.ended == job_status::gone;
        const char* const text = is_gone ? "claim lost: another worker may have this job; its report is dropped"
                                         : "job could not be reported";
        log.write({is_gone ? log_level::warn : log_level::error, text, std::move(fields), {}});
    }
};
}  // namespace ojs::detail
