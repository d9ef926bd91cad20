// heartbeat: the threads that send heartbeats, from the registration to the last request of the worker.
#pragma once

#include "call_threads.ipp"

namespace ojs::detail {

inline constexpr std::chrono::milliseconds last_beat_timeout{500};
inline constexpr backoff_range last_beat_backoff = {std::chrono::milliseconds(20),
                                                    std::chrono::milliseconds(200)};

// Sends heartbeats on threads of its own, so that no slow FETCH, report, query or callback of a job delays one.
class heartbeat {
  public:
    heartbeat(worker_context& worker, pool_threads& threads, call_threads& calls)
        : worker_(worker), threads_(threads), calls_(calls) {}

    // The helper is optional.
    result<void> start() {
        result<void> sender = threads_.start(worker_.service_thread("ojs-heartbeat"), [this] { run(false); });
        if (sender)
            static_cast<void>(
                threads_.start(worker_.service_thread("ojs-beat-helper"), [this] { run(true); }));
        return sender;
    }

  private:
    void run(bool is_helper) {
        std::uint64_t number = 0;
        for (;;) {
            const beat_action action = worker_.beats.await_next(is_helper, number);
            if (action == beat_action::end) return;
            action == beat_action::send ? send(number) : send_last(number);
            worker_.beats.end_call();
            if (worker_.beats.is_finishing()) worker_.supervisor.notify();
        }
    }

    void send(std::uint64_t number) {
        if (!registered_.exchange(true)) registered_ = register_worker();
        if (number == 1) {
            worker_.beats.note_registration_tried();
            worker_.supervisor.notify();
        }
        array<ref<active_job>> missing = send_beat(number);
        if (missing.empty() || !worker_.beats.begin_queries()) return;
        // Moved: there may be no memory for a copy.
        const auto query = [this, jobs = std::move(missing)] { query_claims(jobs); };
        if (!calls_.run(query)) worker_.beats.end_queries();
    }
    // The last request of all.
    void send_last(std::uint64_t number) {
        attempt([this] { deregister_worker(); });
        send_last_beat();
        worker_.beats.end_beat(number, nullptr, {});
    }

    std::string current_state() const {
        if (worker_.stage.may_fetch()) return "running";
        const ojs::dialect& dialect = worker_.options.dialect;
        return worker_.stage.has_stop_begun() ? dialect.drain_state : dialect.quiet_state;
    }

    // Returns jobs that the response omits: the backend may have cancelled them.
    array<ref<active_job>> send_beat(std::uint64_t number) {
        std::string state;
        bool must_arrive = false;
        const time_point begun_at = steady_clock::now();
        const auto is_current = [&] { return !worker_.beats.has_last_begun() && state == current_state(); };
        result<array<ref<active_job>>> sent = unless_out_of_memory([&] {
            state = current_state();
            must_arrive = !worker_.stage.may_fetch() && worker_.beats.is_new_state(state);
            return send_and_apply(state, must_arrive, is_current);
        });
        worker_.beats.end_beat(number, sent ? nullptr : &sent.error(), std::move(state));
        if (worker_.backend.has_responded() && worker_.backend.connected.has_pending_callbacks()) {
            const user_call entered(worker_.user.callbacks);
            worker_.backend.connected.run_callbacks();
        }
        worker_.note_response(sent, begun_at);
        if (sent) return std::move(*sent);
        plan_retry(sent.error(), must_arrive);
        return {};
    }
    // A beat that must arrive does not wait for the next interval.
    void plan_retry(const error& failure, bool must_arrive) {
        const bool outdated = failure.code == errc::cancelled;  // send the current state instead
        if (!outdated) log_failure("heartbeat failed", failure);
        if (!outdated && (!must_arrive || failure.code == errc::rejected)) return;
        if (failure.retry_after.count() > 0)
            return worker_.beats.request_by(deadline_after(failure.retry_after));
        worker_.beats.request_soon();
    }
    void log_failure(const char* message, const error& failure) const {
        attempt([&] { worker_.log.write(log_level::warn, message, {field("error", failure.text)}); });
    }

    time_point call_deadline() const {
        return worker_.beats.cap_deadline(steady_clock::now() + worker_.options.request_timeout);
    }

    // Retries: repeating it is harmless.
    void send_last_beat() {
        const time_point deadline = worker_.beats.cap_deadline(deadline_after(last_beat_timeout));
        backoff retry_backoff(last_beat_backoff);
        for (;;) {
            const auto sent = unless_out_of_memory(
                [&] { return send_and_apply(worker_.options.dialect.last_state, true, nullptr); });
            if (sent) return;
            const errc code = sent.error().code;
            const bool retryable =
                code == errc::unavailable || code == errc::unreachable || code == errc::disconnected;
            const std::chrono::milliseconds pause = retry_backoff.next();
            if (!retryable || deadline_after(pause) >= deadline)
                return log_failure("cannot send the last heartbeat", sent.error());
            pause_for(pause);
        }
    }

    result<array<ref<active_job>>> send_and_apply(std::string state, bool must_arrive,
                                                  function<bool()> should_send) {
        const array<ref<active_job>> jobs = worker_.jobs.snapshot(job_flags::reassigned);
        const time_point sent_at = steady_clock::now();
        const lease_time leased_at = lease_time::now();
        const heartbeat_request request = {&worker_.identity, std::move(state),       ids_of(jobs),
                                           must_arrive,       std::move(should_send), claims_of(jobs)};
        array<std::uint32_t> numbers;
        for (const ref<active_job>& job : jobs) numbers.push_back(job->claim_number());
        const result<heartbeat_response> response =
            worker_.backend.call([&](ojs::transport& transport) -> result<heartbeat_response> {
                if (request.should_send && !request.should_send())  // not every transport does
                    return error{errc::cancelled, 0, "cancelled: a newer state must be sent"};
                return transport.heartbeat(request, call_deadline());
            });
        if (!response && response.error().code == errc::cancelled) return response.error();
        worker_.user.notify_extensions(
            [&](worker_extension& extension) { extension.on_heartbeat(response.has_value()); });
        for (const ref<active_job>& job : jobs) worker_.beats.request_renewal(sent_at, job->lease);
        if (!response) return response.error();
        worker_.backend.note_response();
        renew_leases(jobs, *response, sent_at, leased_at);
        if (response->claims_lost) revoke_unlisted(jobs, numbers, sent_at);
        if (!response->jobs_extended.empty()) fills_jobs_extended_ = true;
        apply_directive(*response);
        return fills_jobs_extended_ ? find_missing(jobs, sent_at) : array<ref<active_job>>();
    }

    // A lease that expired before the response is renewed only if `jobs_extended` names its job.
    void renew_leases(const array<ref<active_job>>& jobs, const heartbeat_response& response,
                      time_point sent_at, const lease_time& leased_at) {
        const lease_time received_at = lease_time::now();
        for (const ref<active_job>& job : jobs) {
            if (!job->lease_expired(received_at)) job->extend_lease(leased_at);
        }
        std::size_t next = 0;  // a response has the order of its request
        for (const std::string& id : response.jobs_extended) {
            std::size_t left = jobs.size();
            while (left > 0 && jobs[next % jobs.size()]->job.id != id) ++next, --left;
            if (left == 0) continue;
            active_job& job = *jobs[next++ % jobs.size()];
            job.extend_lease(leased_at);
            job.note_listed(sent_at);
        }
    }

    // Those that were claimed again meanwhile are not lost.
    void revoke_unlisted(const array<ref<active_job>>& jobs, const array<std::uint32_t>& numbers,
                         time_point sent_at) {
        for (std::size_t i = 0; i < jobs.size(); ++i) {
            if (!jobs[i]->was_listed(sent_at) && jobs[i]->mark_lost(numbers[i])) jobs[i]->revoke();
        }
        worker_.reports.retry_now();
        worker_.supervisor.notify();
    }

    // Each is queried once.
    static array<ref<active_job>> find_missing(const array<ref<active_job>>& jobs, time_point sent_at) {
        array<ref<active_job>> out;
        for (const ref<active_job>& job : jobs) {
            if (out.size() < max_queries && job->is_missing(sent_at)) out.push_back(job);
        }
        return out;
    }
    void query_claims(const array<ref<active_job>>& jobs) {
        for (const ref<active_job>& job : jobs) {
            if (!worker_.beats.is_finishing() && job->begin_query()) cancel_unless_ours(*job);
        }
        worker_.beats.end_queries();
        worker_.supervisor.notify();
    }
    void cancel_unless_ours(active_job& job) {
        const std::uint32_t claim = job.claim_number();
        const time_point deadline =
            deadline_after(detail::min(worker_.options.request_timeout, max_query_time));
        const result<bool> ours = query_claim(worker_, job, deadline);
        if (ours && !*ours && job.mark_lost(claim)) job.revoke();
    }

    // "running" resumes nothing: backends send it with every response. [WIRE]
    void apply_directive(const heartbeat_response& response) {
        const bool names_queues = response.directive == directive::quiet && !response.queues.empty();
        if (names_queues) pause_queues(response.queues);
        const bool all_paused = names_queues && worker_.queues.unpaused().empty();
        if (response.directive == directive::quiet && (!names_queues || all_paused))
            worker_.stage.own.apply(event::quiet_request, {cause_kind::directive, 0});
        if (response.directive == directive::terminate)
            worker_.stage.own.apply(event::stop_request, {cause_kind::directive, 0});
    }

    // In addition to queues already paused.
    void pause_queues(const std::vector<std::string>& queues) {
        for (const std::string& queue : queues) {
            const bool is_known = worker_.queues.is_known(queue);
            if (is_known && !worker_.queues.set(queue, true)) continue;
            worker_.supervisor.notify();
            worker_.log.write(
                is_known ? log_level::info : log_level::debug,
                is_known ? "queue paused by the backend"
                         : "the backend asked to pause a queue that this worker does not serve; ignored",
                {field("queue", printable(queue, 100))});
        }
    }

    bool register_worker() {
        const auto should_send = [this] { return !worker_.beats.has_last_begun(); };
        const result<void> response = unless_out_of_memory([&] {
            return worker_.backend.call([&](ojs::transport& transport) -> result<void> {
                if (!should_send()) return error{errc::cancelled, 0, "the last heartbeat has begun"};
                return transport.register_worker(worker_.identity, call_deadline(), should_send);
            });
        });
        if (!response && response.error().code != errc::cancelled)
            log_failure("registration failed", response.error());
        return response.has_value();
    }

    // Takes at most half of the time: the last beat matters more.
    void deregister_worker() {
        const time_point now = steady_clock::now();
        const time_point deadline = now + (call_deadline() - now) / 2;
        const result<void> response = worker_.backend.call([&](ojs::transport& transport) {
            return transport.deregister_worker(worker_.identity, deadline);
        });
        if (!response) log_failure("deregistration failed", response.error());
    }

    static constexpr std::chrono::milliseconds max_query_time{2000};
    static constexpr std::size_t max_queries = 8;  // per beat; the next one takes the rest

    worker_context& worker_;
    pool_threads& threads_;
    call_threads& calls_;
    atomic<bool> registered_{false};  // or a thread is about to
    atomic<bool> fills_jobs_extended_{false};
};

}  // namespace ojs::detail
