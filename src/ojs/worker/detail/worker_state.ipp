// worker_state: the machine of a worker, as its parts see it.
#pragma once

#include "../../stop/detail/machine.ipp"
#include "../worker_options.ipp"
#include "active_job.ipp"

namespace ojs::detail {
constexpr bool is_bad_token(const error& failure) noexcept { return failure.http_status == 401; }

// What is logged once while requests fail like this one; empty: nothing. A proxy's response is none of the backend.
constexpr std::string_view outage_of(const error& failure) noexcept {
    if (is_bad_token(failure)) return "backend refuses the token";
    const bool is_unanswered = failure.code == errc::unreachable || failure.code == errc::disconnected ||
                               failure.code == errc::timed_out ||
                               (failure.http_status >= 502 && failure.http_status <= 504);
    return is_unanswered ? "backend unreachable" : "";
}

struct beat_facts {
    time_point requested_at = time_point::min();  // the first at once
    time_point begun_at = time_point::min();      // the latest
    time_point not_before = time_point::min();    // the next, unless it is the last
    std::uint64_t begun = 0;                      // so many
    std::uint64_t answered = 0;                   // the latest with a response
    bool is_in_flight = false;
    std::size_t calls = 0;           // that one, and queries about jobs after it
    time_point last_due_at = never;  // set: only the last one follows those requested before
    bool last_has_begun = false;
};

class worker_state : public held_options<worker_options>, public machine {
  public:
    worker_state(worker_options given, ojs::transport* given_transport, lifecycle* followed)
        : held_options{std::move(given)},
          machine(options, "worker", followed, "job", "job could not be reported before stop_timeout ended"),
          transport(given_transport) {
        is_connected = false;
    }

    // Makes every call to the transport. None begins after the last heartbeat, when `calls` is closed.
    template <class Call>
    auto call(Call request) -> decltype(request(std::declval<ojs::transport&>())) {
        const user_call entered(calls);
        if (!entered) return error{errc::cancelled, 0, "the worker has stopped"};
        if (is_forked()) return error{errc::cancelled, 0, "the job is the parent process's"};
        try {
            return request(*transport);
        } catch (...) {
            return error{errc::disconnected, 0, cat({"the transport threw: ", thrown_text()})};
        }
    }
    // After each request: logs the start and the end of an outage. True: the request is part of one.
    template <class T>
    bool note_response(const result<T>& response, time_point sent_at) {
        const std::string_view outage = response ? "" : outage_of(response.error());
        if (!response && outage.empty() && response.error().http_status == 0)
            return false;  // it may not have been sent
        const time_point now = steady_clock::now();
        unique_lock held(guard);
        if (!outage.empty() && (outage == outage_ || latest_response_ >= sent_at)) return outage == outage_;
        const std::string_view before = exchange(outage_, outage);
        const time_point began_at = exchange(outage_began_at_, sent_at);
        if (outage.empty()) latest_response_ = now;
        held.unlock();
        if (!outage.empty())
            log.write(log_level::warn, outage, {field("url", backend_url), field("error", response.error().text)});
        else if (!before.empty())
            log.write(log_level::info, "backend reachable again",
                      {field("outage_ms", std::chrono::duration_cast<milliseconds>(now - began_at).count())});
        return !outage.empty();
    }
    // A try takes at most half of the stop's remaining time: a lost response leaves time for another.
    time_point try_deadline() const {
        constexpr milliseconds min_try_time{100};
        const unique_lock held(guard);
        const time_point now = steady_clock::now();
        const steady_clock::duration half = (reports_end_ - now) / 2;
        return now +
               min<steady_clock::duration>(max<steady_clock::duration>(half, min_try_time), options.request_timeout);
    }
    bool in_own_call() const noexcept {
        return user_call::is_in(callbacks) || user_call::is_in(calls) || user_call::is_in(cancel_callbacks) ||
               user_call::is_in(handler_calls);
    }

    registered_handler* find_handler(const std::string& type) noexcept {
        for (registered_handler& each : registered) {
            if (each.type == type) return &each;
        }
        return nullptr;
    }

    // A stop abandons all jobs at once and then reports them one by one, unless a handler is faster.
    bool is_abandoned(const active_job& job) const noexcept {
        return is_forked() || locked([&] { return job.is_taken || is_abandoning; });
    }
    // False: another thread reports it. No other will from now on.
    bool take(active_job& job) noexcept {
        return locked([&] { return !exchange(job.is_taken, true); });
    }
    // The backend has cancelled it, or given it to another worker.
    void revoke(active_job& job) {
        unique_lock held(guard);
        if (job.is_taken || !job.cancel_alone(cancel_reason::revoked)) return;
        check_soon(job.cancelled_at + options.stuck_after);
        held.unlock();
        deliver_cancellation(job);
        log.write({log_level::info, "job cancelled by its backend", job_fields(job), {}});
    }
    // Another worker may have it, so nothing is reported; unless it was claimed again since then.
    void lose(active_job& job, std::uint32_t number) {
        unique_lock held(guard);
        if (job.claims != number) return;
        job.is_lost = true;
        retry_reports();
        held.unlock();
        revoke(job);
    }
    void release(active_job& job) {
        const unique_lock held(guard);
        remove_work(in_flight, job);
        if (job.is_in_handler()) unreturned.push_back(ref<work>(&job));
        notify_if_idle();
        notify_if_stopping();
    }
    // Waits for a heartbeat that renews the job's lease. False: it did not. An error: none came.
    result<bool> await_renewal(const active_job& job) {
        const time_point deadline = try_deadline();
        unique_lock held(guard);
        const std::uint64_t seen = beats.begun;
        if (job.lease_expired()) request_beat(time_point::min());
        const auto has_beaten = [&] { return beats.begun > seen && !beats.is_in_flight; };
        while (job.lease_expired() && !job.is_lost && !has_beaten() && beats.last_due_at == never &&
               changed.wait_until(held, deadline))
            continue;
        if (!job.lease_expired()) return true;
        if (beats.answered > seen) return false;
        return error{errc::unreachable, 0, "no heartbeat has renewed the job's lease"};
    }

    // ---- with the guard held ----

    void request_beat(time_point when) noexcept {
        if (beats.last_due_at != never || when >= beats.requested_at) return;
        beats.requested_at = when;
        waker.notify();
    }
    // For handlers, which may call it often: limits the rate.
    void request_beat_soon(milliseconds retry_after = {}) noexcept {
        const time_point soon = beats.begun_at + min(options.heartbeat_interval / 5, milliseconds(1000));
        request_beat(retry_after.count() > 0 ? deadline_after(retry_after) : soon);
    }
    // When half of a lease that began at `since` is over.
    void request_renewal(time_point since, milliseconds lease) noexcept {
        if (lease / 2 < options.heartbeat_interval) request_beat(since + lease / 2);
    }
    bool last_beat_has_begun() const noexcept {
        return locked([this] { return beats.last_has_begun; });
    }
    job_request request_about(const active_job& job, function<bool()> should_send) const {
        return {{&identity, std::move(should_send)}, job.job.id, job.claim, job.attempt, &job.job};
    }
    void retry_reports() noexcept override {
        ++report_changes;
        changed.notify_all();
    }
    virtual void on_work_hint() noexcept = 0;  // there may be work: a slot is free, a FETCH may begin
    bool may_come() const noexcept override { return fetches > 0; }
    time_point reports_end() const noexcept { return reports_end_; }  // never: no stop
    void leave(active_job& job) noexcept {
        --handlers;
        remove_work(unreturned, job);
        notify_if_stopping();
    }

    ojs::transport* transport;      // set before any thread starts
    transport_ref owned_transport;  // null: the caller's is used
    drain_barrier calls;            // to the transport
    drain_barrier handler_calls;
    array<registered_handler> registered;  // before any thread starts, as the next
    array<handler_wrapper> wrappers;

    // Guarded.
    beat_facts beats;
    std::size_t held_jobs = 0;    // without a handler, or more than may run, for a while
    bool is_abandoning = false;   // jobs are reported without their handlers
    unsigned report_changes = 0;  // of what a report that waits for its next try depends on
    std::size_t handlers = 0;     // threads that have called a handler and not left its job

  private:
    // Guarded.
    std::string_view outage_;  // as outage_of() says
    time_point outage_began_at_;
    time_point latest_response_ = time_point::min();
};
}  // namespace ojs::detail
