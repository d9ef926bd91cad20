// heartbeats: from the first to the last request of the worker; what the responses say of its claims.
#pragma once

#include "beat_plan.ipp"
#include "claims.ipp"

namespace ojs::detail {

inline constexpr milliseconds last_beat_timeout{500};
inline constexpr backoff_range last_beat_backoff = {milliseconds(20), milliseconds(200)};

class heartbeats {
  public:
    heartbeats(worker_state& worker, const claims& of) : worker_(worker), claims_(of) {}

    // Has the next one sent when it is due; returns when to call it again. For the turning thread.
    time_point send_due(time_point now) {
        for (;;) {
            beat_plan next{beat_action::wait};
            {
                const unique_lock held(worker_.guard);
                next = plan_beat(worker_.beats, now);
                if (next.action == beat_action::wait) return next.until;
                begin(next.action, now);
            }
            const bool is_last = next.action == beat_action::send_last;
            worker_.threads.post(task_kind::urgent, [this, is_last] { is_last ? send_last() : send(); });
        }
    }
    // Only the last one follows, and ends by `deadline`.
    void finish(time_point deadline) {
        constexpr milliseconds max_wait{250};  // for calls in flight
        const unique_lock held(worker_.guard);
        const time_point now = steady_clock::now();
        worker_.beats.last_due_at = detail::min(now + (deadline - now) / 2, now + max_wait);
        deadline_ = deadline;
        worker_.changed.notify_all();
    }

  private:
    // A job that a heartbeat names, with the number of its claim then.
    struct named_job {
        ref<active_job> job;
        std::uint32_t claims = 0;
    };
    using named_jobs = array<named_job>;

    // ---- with the guard held ----

    void begin(beat_action action, time_point now) noexcept {
        beat_facts& beats = worker_.beats;
        beats.requested_at = never;
        beats.begun_at = now;
        if (++beats.begun == 1) worker_.on_work_hint();  // FETCH may begin [WP 3.1]
        beats.is_unanswered = true;
        ++beats.calls;
        beats.last_has_begun = action == beat_action::send_last;
    }
    void end_call() noexcept {
        --worker_.beats.calls;
        worker_.changed.notify_all();
        worker_.waker.notify();
    }
    time_point call_deadline() const {
        const milliseconds longest = detail::max(worker_.beats.interval, milliseconds(1000));
        return detail::min(deadline_after(detail::min(worker_.options.request_timeout, longest)), deadline_);
    }

    // ---- in tasks ----

    void send() {
        const time_point begun_at = steady_clock::now();
        const std::string state = current_state();
        const bool must_arrive = state != "running" && state != sent_state_;
        named_jobs missing;
        const result<void> sent = send_and_apply(
            state, false, [this, &state] { return !worker_.last_has_begun() && state == current_state(); },
            missing);
        if (sent) sent_state_ = state;
        {
            const unique_lock held(worker_.guard);
            worker_.beats.is_unanswered = false;
            if (!sent) plan_retry(sent.error(), must_arrive);
            end_call();
        }
        if (!sent && sent.error().code != errc::cancelled) log_failure("heartbeat failed", sent.error());
        worker_.note_response(sent, begun_at);
        if (!missing.empty() && begin_queries())
            worker_.threads.post(task_kind::report, [this, missing] { query_claims(missing); });
    }
    // The last request of all. Repeating it is harmless.
    void send_last() {
        const time_point latest = deadline_after(last_beat_timeout);
        const time_point deadline = detail::min(deadline_, latest);
        backoff delays(last_beat_backoff);
        named_jobs unused;
        for (bool goes_on = true; goes_on;) {
            const result<void> sent =
                send_and_apply(worker_.options.dialect.last_state, true, nullptr, unused);
            const milliseconds pause = delays.next();
            goes_on = !sent && is_worth_a_retry(sent.error().code) && deadline_after(pause) < deadline;
            if (goes_on) pause_for(pause);
            if (!sent && !goes_on) log_failure("cannot send the last heartbeat", sent.error());
        }
        const unique_lock held(worker_.guard);
        worker_.beats.is_unanswered = false;
        end_call();
    }
    static bool is_worth_a_retry(errc code) noexcept {
        return code == errc::unavailable || code == errc::unreachable || code == errc::disconnected;
    }

    std::string current_state() const {
        if (worker_.phases.may_take()) return "running";
        const ojs::dialect& dialect = worker_.options.dialect;
        return worker_.phases.has_stop_begun() ? dialect.drain_state : dialect.quiet_state;
    }
    // One that must arrive does not wait for the next interval. With the guard held.
    void plan_retry(const error& failure, bool must_arrive) noexcept {
        const bool outdated = failure.code == errc::cancelled;  // send the current state instead
        if (!outdated && (!must_arrive || failure.code == errc::rejected)) return;
        if (failure.retry_after.count() > 0) return worker_.request_beat(deadline_after(failure.retry_after));
        worker_.request_beat_soon();
    }
    void log_failure(const char* message, const error& failure) const {
        worker_.log.write(log_level::warn, message, {field("error", failure.text)});
    }

    // `missing`: jobs that the response omits, of which the backend may have cancelled some.
    result<void> send_and_apply(const std::string& state, bool is_last, function<bool()> should_send,
                                named_jobs& missing) {
        heartbeat_request request{&worker_.identity, state, {}, is_last, std::move(should_send), {}};
        const time_point sent_at = steady_clock::now();
        const lease_time leased_at = lease_time::now();
        const named_jobs jobs = name_jobs(request, sent_at);
        const result<heartbeat_response> response =
            worker_.call([&](ojs::transport& transport) -> result<heartbeat_response> {
                if (request.should_send && !request.should_send())  // not every transport does
                    return error{errc::cancelled, 0, "cancelled: a newer state must be sent"};
                unique_lock held(worker_.guard);
                const time_point deadline = call_deadline();
                held.unlock();
                return transport.heartbeat(request, deadline);
            });
        if (!response && response.error().code == errc::cancelled) return response.error();
        worker_.user.call_extensions(
            [&](worker_extension& extension) { extension.on_heartbeat(response.has_value()); });
        if (!response) return response.error();
        worker_.note_connected();
        named_jobs lost;
        {
            const unique_lock held(worker_.guard);
            renew_leases(jobs, *response, sent_at, leased_at);
            if (response->claims_lost) lost = unlisted(jobs, sent_at);
            fills_jobs_extended_ = fills_jobs_extended_ || !response->jobs_extended.empty();
            if (fills_jobs_extended_ && !response->claims_lost) missing = find_missing(jobs, sent_at);
        }
        for (const named_job& each : lost) claims_.lose(each.job, each.claims);
        apply_directive(*response);
        return {};
    }
    named_jobs name_jobs(heartbeat_request& request, time_point sent_at) const {
        named_jobs out;
        bool has_claims = false;
        const unique_lock held(worker_.guard);
        for (const ref<work>& each : worker_.in_flight) {
            active_job& job = as_job(each);
            if (job.is_lost) continue;
            out.push_back({ref<active_job>(&job), job.claims});
            request.active_jobs.push_back(job.job.id);
            request.claims.push_back(job.claim);
            has_claims = has_claims || !job.claim.empty();
            worker_.request_renewal(sent_at, job.lease);
        }
        if (!has_claims) request.claims.clear();
        return out;
    }

    // ---- with the guard held ----

    // A lease that expired before the response is renewed only if `jobs_extended` names its job.
    void renew_leases(const named_jobs& jobs, const heartbeat_response& response, time_point sent_at,
                      const lease_time& leased_at) noexcept {
        const lease_time received_at = lease_time::now();
        for (const named_job& each : jobs) {
            if (!each.job->lease_expired(received_at)) each.job->extend_lease(leased_at);
        }
        std::size_t next = 0;  // a response has the order of its request
        for (const std::string& id : response.jobs_extended) {
            std::size_t left = jobs.size();
            while (left > 0 && jobs[next % jobs.size()].job->job.id != id) ++next, --left;
            if (left == 0) continue;
            active_job& job = *jobs[next++ % jobs.size()].job;
            job.extend_lease(leased_at);
            job.listed_at = sent_at;
        }
    }
    static named_jobs unlisted(const named_jobs& jobs, time_point sent_at) {
        named_jobs out;
        for (const named_job& each : jobs) {
            if (each.job->listed_at < sent_at) out.push_back(each);
        }
        return out;
    }
    // Each is queried once; the next heartbeat takes the rest.
    static named_jobs find_missing(const named_jobs& jobs, time_point sent_at) {
        constexpr std::size_t max_queries = 8;
        named_jobs out;
        for (const named_job& each : jobs) {
            if (out.size() < max_queries && each.job->is_missing(sent_at)) out.push_back(each);
        }
        return out;
    }

    // ---- queries: one task at a time ----

    bool begin_queries() noexcept {
        const unique_lock held(worker_.guard);
        if (worker_.beats.last_due_at != never || detail::exchange(is_querying_, true)) return false;
        ++worker_.beats.calls;
        return true;
    }
    void query_claims(const named_jobs& jobs) {
        for (const named_job& each : jobs) {
            std::uint32_t number = 0;
            if (!begin_query(*each.job, number)) continue;
            const time_point deadline =
                deadline_after(detail::min(worker_.options.request_timeout, milliseconds(2000)));
            const result<bool> ours = claims_.query(*each.job, deadline);
            if (ours && !*ours) claims_.lose(each.job, number);
        }
        const unique_lock held(worker_.guard);
        is_querying_ = false;
        end_call();
    }
    bool begin_query(active_job& job, std::uint32_t& number) noexcept {
        const unique_lock held(worker_.guard);
        if (worker_.beats.last_due_at != never || job.queried_at > job.listed_at) return false;
        job.queried_at = steady_clock::now();
        number = job.claims;
        return true;
    }

    // ---- directives ----

    // "running" resumes nothing: backends send it with every response. [WIRE]
    void apply_directive(const heartbeat_response& response) {
        const cause why{cause_kind::directive, 0};
        if (response.directive == directive::quiet) worker_.phases.own.apply(event::quiet_request, why);
        if (response.directive == directive::terminate) worker_.phases.own.apply(event::stop_request, why);
    }
    worker_state& worker_;
    const claims& claims_;
    // Of the task that sends; there is one at a time but for the last one.
    std::string sent_state_;  // of the latest that succeeded
    // Guarded.
    bool fills_jobs_extended_ = false;
    bool is_querying_ = false;
    time_point deadline_ = never;  // of the last one
};

}  // namespace ojs::detail
