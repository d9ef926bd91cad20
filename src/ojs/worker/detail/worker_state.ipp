// worker_state: the machine of a worker, as its parts see it: calls to the backend, and what several parts change.
#pragma once

#include "../../stop/detail/machine.ipp"
#include "../worker_options.ipp"
#include "active_job.ipp"
#include "beat_plan.ipp"

namespace ojs::detail {

// Measures how long the backend does not respond. Guarded by the machine's mutex.
class outage_watch {
  public:
    // A request sent at `sent_at` got no response. Not counted if the backend has responded to another one since. True:
    // an outage begins.
    bool note_failure(time_point sent_at) noexcept {
        if (latest_response_ >= sent_at) return false;
        return detail::exchange(began_at_, detail::min(began_at_, sent_at)) == never;
    }
    // Returns, once after an outage, how long it was; else 0.
    steady_clock::duration note_response(time_point now) noexcept {
        latest_response_ = detail::max(latest_response_, now);
        const time_point began_at = detail::exchange(began_at_, never);
        return began_at == never ? steady_clock::duration() : now - began_at;
    }

  private:
    time_point began_at_ = never;  // without an outage
    time_point latest_response_ = time_point::min();
};

// The request failed without a response of the backend; that of a proxy counts as none.
constexpr bool is_unanswered(const error& failure) noexcept {
    return failure.code == errc::unreachable || failure.code == errc::disconnected ||
           failure.code == errc::timed_out || (failure.http_status >= 502 && failure.http_status <= 504);
}
// The response to a claim query settles nothing. [WIRE 7]
constexpr bool is_inconclusive(errc code) noexcept {
    return code == errc::unsupported || code == errc::rejected;
}

inline constexpr milliseconds min_try_time{100};

class worker_state : public held_options<worker_options>, public machine {
  public:
    // ---- calls to the backend ----

    // Makes every call to the transport. None begins once `calls` is closed: nothing follows the last heartbeat, and the
    // transport's owner can wait until no thread is in it.
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
    // For each FETCH, heartbeat, ACK and FAIL: logs the start and the end of an outage.
    template <class T>
    void note_response(const result<T>& response, time_point sent_at) {
        const bool failed = !response && is_unanswered(response.error());
        if (!response && !failed && response.error().http_status == 0) return;  // it may not have been sent
        bool begins = false;
        steady_clock::duration outage{};
        {
            const unique_lock held(guard);
            if (failed) begins = outage_.note_failure(sent_at);
            if (!failed) outage = outage_.note_response(steady_clock::now());
        }
        if (begins)
            log.write(log_level::warn, "backend unreachable",
                      {field("url", backend_url), field("error", response.error().text)});
        if (outage.count() == 0) return;
        log.write(log_level::info, "backend reachable again",
                  {field("outage_ms", std::chrono::duration_cast<milliseconds>(outage).count())});
    }
    bool connected() const noexcept override { return is_connected_; }
    void note_connected() noexcept { is_connected_ = true; }
    // A try takes at most half of the stop's remaining time: a lost response leaves time for another.
    time_point try_deadline() const {
        const unique_lock held(guard);
        const time_point now = steady_clock::now();
        const steady_clock::duration half = (reports_end_ - now) / 2;
        return now + detail::min<steady_clock::duration>(
                         detail::max<steady_clock::duration>(half, min_try_time), options.request_timeout);
    }
    // The calling thread is in a handler, a callback, a hook, an extension or a transport call of this worker.
    bool in_own_call() const noexcept {
        return user_call::is_in(user.callbacks) || user_call::is_in(calls) ||
               user_call::is_in(cancel_callbacks) || user_call::is_in(handler_calls);
    }

    // ---- jobs ----

    bool was_claimed_again(const active_job& job) const noexcept {
        const unique_lock held(guard);
        return job.claims > 0;
    }
    // A stop abandons all jobs at once and then reports them one by one, unless a handler is faster.
    bool is_abandoned(const active_job& job) const noexcept {
        if (is_forked()) return true;
        const unique_lock held(guard);
        return job.is_taken || is_abandoning;
    }
    // ---- heartbeats: with the guard held ----

    void request_beat(time_point when) noexcept {
        if (beats.last_due_at != never || when >= beats.requested_at) return;
        beats.requested_at = when;
        waker.notify();
    }
    // For handlers, which may call it often: limits the rate.
    void request_beat_soon() noexcept {
        request_beat(beats.begun_at + detail::min(beats.interval / 5, max_request_gap));
    }
    // When half of a lease that began at `since` is over.
    void request_renewal(time_point since, milliseconds lease) noexcept {
        if (lease / 2 < beats.interval) request_beat(since + lease / 2);
    }
    bool last_has_begun() const noexcept {
        const unique_lock held(guard);
        return beats.last_has_begun;
    }

    void retry_reports() noexcept override {
        ++report_changes;
        changed.notify_all();
    }
    virtual void on_work_hint() noexcept = 0;  // there may be work: a slot is free, a FETCH may begin
    bool may_come() const noexcept override { return fetches > 0; }
    std::size_t open_fetches() const noexcept override { return fetches; }
    time_point reports_end() const noexcept { return reports_end_; }  // never: no stop
    // Its thread no longer uses the job.
    void leave(active_job& job) noexcept {
        --handlers;
        remove_work(unreturned, job);
        notify_if_stopping();
    }
    // Nothing is reported for the job any more.
    void release(active_job& job) {
        const unique_lock held(guard);
        remove_work(in_flight, job);
        if (job.is_in_handler()) unreturned.push_back(ref<work>(&job));
        notify_if_idle();
        notify_if_stopping();
    }

    ojs::transport* transport;      // set before any thread starts
    transport_ref owned_transport;  // null: the caller's is used
    drain_barrier calls;            // to the transport
    drain_barrier handler_calls;

    // Guarded.
    beat_facts beats;
    bool is_abandoning = false;   // jobs are reported without their handlers
    unsigned report_changes = 0;  // of what a report that waits for its next try depends on
    std::size_t fetches = 0;      // in flight, or with jobs not yet among those in flight
    int fetch_pauses = 0;
    std::size_t handlers = 0;  // threads that have called a handler and not left its job

  protected:
    worker_state(worker_options given, ojs::transport* given_transport, lifecycle* followed)
        : held_options{std::move(given)},
          machine(options, "worker", followed, "job", "job could not be reported before stop_timeout ended"),
          transport(given_transport) {
        beats.interval = options.heartbeat_interval;
        beats.first_gap = first_gap(beats.interval);
    }

  private:
    outage_watch outage_;               // guarded
    atomic<bool> is_connected_{false};  // the backend has responded
};

}  // namespace ojs::detail
