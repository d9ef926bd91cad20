// heartbeats: from the first to the last request of the worker; what the responses say of its claims.
#pragma once

#include "reports.ipp"

namespace ojs::detail {
class heartbeats : public reports {
  public:
    using reports::reports;

    // Sends the next one when it is due, one at a time. Returns when to call it again.
    // The last one waits for all calls, until last_due_at.
    time_point send_due(time_point now) {
        for (;;) {
            unique_lock held(guard);
            if (beats.last_has_begun) return never;
            const bool is_finishing = beats.last_due_at != never;
            time_point next = beats.requested_at;
            if (!is_finishing) next = min(next, beats.begun_at + (beats.begun == 1 ? first_gap_ : interval_));
            next = beats.is_in_flight ? never : max(next, beats.not_before);
            const bool is_last = now < next && is_finishing && (beats.calls == 0 || now >= beats.last_due_at);
            if (now < next && !is_last) return min(next, beats.last_due_at);
            beats.requested_at = never;
            beats.begun_at = now;
            if (++beats.begun == 1) on_work_hint();  // FETCH may begin [WP 3.1]
            beats.is_in_flight = true;
            ++beats.calls;
            beats.last_has_begun = is_last;
            held.unlock();
            check_signal_handlers();
            threads.post(task_kind::urgent, [this, is_last] { is_last ? send_last() : send_beat(); });
        }
    }
    // Only the last one follows, and ends by `deadline`.
    void begin_parting(time_point deadline) override {
        constexpr milliseconds max_wait{250};  // for calls in flight
        const unique_lock held(guard);
        const time_point now = steady_clock::now();
        beats.last_due_at = min(now + (deadline - now) / 2, now + max_wait);
        deadline_ = deadline;
        changed.notify_all();
    }

  private:
    struct named_job {
        ref<active_job> job;
        std::uint32_t claims = 0;  // when the heartbeat began
        bool is_renewed = false;
    };
    using named_jobs = array<named_job>;

    void send_beat() {
        const time_point begun_at = steady_clock::now();
        const std::string state = current_state();
        named_jobs missing;
        const result<void> sent = send_and_apply(
            state, false, [this, &state] { return !last_beat_has_begun() && state == current_state(); }, missing);
        const bool is_outdated = !sent && sent.error().code == errc::cancelled;
        {
            const unique_lock held(guard);
            // A changed state does not wait for the next interval.
            if (!sent && sent.error().code != errc::rejected &&
                (is_outdated || (state != "running" && state != sent_state_)))
                request_beat_soon(sent.error().retry_after);
            if (!sent && is_bad_token(sent.error())) beats.not_before = begun_at + milliseconds(1000);
            if (sent) beats.answered = beats.begun;
            if (sent) sent_state_ = state;
            end_beat(!missing.empty());
        }
        const bool is_outage = note_response(sent, begun_at);
        if (!sent && !is_outdated)
            log.write(is_outage ? log_level::debug : log_level::warn, "heartbeat failed",
                      {field("error", sent.error().text)});
        if (!missing.empty()) query_claims(missing);
    }
    // With the guard held. A query of claims that follows is still a call.
    void end_beat(bool has_claim_query) noexcept {
        beats.is_in_flight = false;
        beats.calls -= has_claim_query ? 0 : 1;
        changed.notify_all();
        waker.notify();
    }
    // Repeating it is harmless.
    void send_last() {
        constexpr milliseconds pause{50};
        const time_point deadline = min(deadline_, deadline_after(milliseconds(500)));
        named_jobs unused;
        const std::string& state = options.profile.last_state;
        result<void> sent = send_and_apply(state, true, nullptr, unused);
        while (!sent && sent.error().code != errc::rejected && !is_bad_token(sent.error()) &&
               deadline_after(pause) < deadline) {
            pause_for(pause);
            sent = send_and_apply(state, true, nullptr, unused);
        }
        if (!sent) log.write(log_level::warn, "cannot send the last heartbeat", {field("error", sent.error().text)});
        locked([this] { end_beat(false); });
    }

    std::string current_state() const {
        if (phases.may_take()) return "running";
        return phases.has_stop_begun() ? options.profile.drain_state : "quiet";
    }

    // `missing`: jobs that the response omits, of which the backend may have cancelled some.
    result<void> send_and_apply(const std::string& state, bool is_last, function<bool()> should_send,
                                named_jobs& missing) {
        heartbeat_request request{{&identity, std::move(should_send)}, state, {}, {}, is_last};
        const time_point sent_at = steady_clock::now();
        const milliseconds leased_at = lease_clock();
        named_jobs jobs = name_jobs(request, sent_at);
        const result<heartbeat_response> response = call([&](ojs::transport& backend) -> result<heartbeat_response> {
            if (request.should_send && !request.should_send())  // not every transport does
                return error{errc::cancelled, 0, "cancelled: a newer state must be sent"};
            const time_point usual = deadline_after(min(options.request_timeout, max(interval_, milliseconds(1000))));
            return backend.heartbeat(request, min(usual, locked([this] { return deadline_; })));
        });
        if (!response && response.error().code == errc::cancelled) return response.error();
        call_extensions([&](worker_extension& extension) { extension.on_heartbeat(response.has_value()); });
        if (!response) return response.error();
        is_connected = true;
        bool has_lost = false;
        for (named_job& each : jobs) {
            each.is_renewed = contains(response->jobs_extended, each.job->job.id);
            if (each.is_renewed || !response->claims_lost) continue;
            lose(*each.job, each.claims);
            has_lost = true;
        }
        renew_leases(jobs, leased_at, sent_at, missing);
        // "running" resumes nothing: backends send it with every response. [WIRE]
        if (response->directive == directive::quiet) phases.apply(event::quiet_request, cause_kind::directive);
        if (response->directive == directive::terminate) phases.apply(event::stop_request, cause_kind::directive);
        if (has_lost && !is_last) return error{errc::cancelled, 0, "claims_lost needs no request"};
        return {};
    }
    named_jobs name_jobs(heartbeat_request& request, time_point sent_at) {
        named_jobs out;
        const unique_lock held(guard);
        for (const ref<work>& each : in_flight) {
            active_job& job = as_job(each);
            if (job.is_lost) continue;
            out.push_back({ref<active_job>(&job), job.claims});
            request.active_jobs.push_back(job.job.id);
            request.claims.push_back(job.claim);
            request_renewal(sent_at, job.lease);
        }
        return out;
    }
    // A lease that is over is renewed only if the response names its job. Each missing job is queried once; the next
    // heartbeat takes those beyond the limit.
    void renew_leases(const named_jobs& jobs, milliseconds leased_at, time_point sent_at, named_jobs& missing) {
        constexpr std::size_t max_queries = 8;
        const unique_lock held(guard);
        for (const named_job& each : jobs) lists_jobs_ = lists_jobs_ || each.is_renewed;
        for (const named_job& each : jobs) {
            active_job& job = *each.job;
            if (each.is_renewed || !job.lease_expired()) job.extend_lease(leased_at);
            if (each.is_renewed) job.listed_at = sent_at;
            const bool is_queried = job.is_taken || job.is_lost || job.queried_at > job.listed_at;
            if (!lists_jobs_ || each.is_renewed || is_queried || missing.size() >= max_queries) continue;
            job.queried_at = steady_clock::now();
            missing.push_back(each);
        }
    }
    void query_claims(const named_jobs& jobs) {
        const time_point deadline = deadline_after(min(options.request_timeout, milliseconds(2000)));
        for (const named_job& each : jobs) {
            const active_job& job = *each.job;
            unique_lock held(guard);
            const job_request asked = request_about(job, [this] { return !last_beat_has_begun(); });
            held.unlock();
            const result<bool> ours =
                call([&](ojs::transport& backend) { return backend.confirm_claim(asked, deadline); });
            if (ours && !*ours) lose(*each.job, each.claims);
        }
        const unique_lock held(guard);
        --beats.calls;
        waker.notify();
    }

    const milliseconds interval_ = options.heartbeat_interval;
    // Random: spreads the second heartbeats of workers that start together.
    const milliseconds first_gap_ = interval_ - random_half(interval_);
    std::string sent_state_;  // of the latest with a response; of the task that sends
    // Guarded.
    bool lists_jobs_ = false;      // jobs_extended has named one
    time_point deadline_ = never;  // of the last one
};
}  // namespace ojs::detail
