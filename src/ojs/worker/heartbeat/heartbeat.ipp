// heartbeat: the threads that beat, to the very last request of the worker.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../detail/worker_context.ipp"

namespace ojs::detail {

// Heartbeats, on threads that do nothing else, so that no slow FETCH or ACK delays one; see beat_schedule.
class heartbeat : public ref_counted {
  public:
    explicit heartbeat(worker_context& worker) : worker_(worker) {}

    // Without a thread for the helper it works on.
    result<void> start() {
        const ref<heartbeat> self(this);
        const ref<worker_context> context(&worker_);
        for (thread& each : threads_) {
            const bool helper = &each != &threads_[0];
            result<thread> started = unless_out_of_memory([&] {
                return thread::start([self, context, helper] { self->run(helper); },
                                     worker_.service_thread(helper ? "ojs-beat-helper" : "ojs-heartbeat"));
            });
            if (started) each = std::move(*started);
            if (!started && !helper) return started.error();
        }
        return {};
    }
    void join() {
        for (thread& each : threads_) each.join();
    }
    // Joins the threads; detaches those that a call to the backend still holds, and returns their number.
    std::size_t end(time_point deadline) {
        if (!worker_.beats.all_finished()) deadline = time_point();  // do not wait for the others
        std::size_t left = 0;
        for (thread& each : threads_) {
            if (each.joinable() && !each.end_by(deadline)) ++left;
        }
        return left;
    }

  private:
    void run(bool helper) {
        bool registered = helper || register_worker();
        if (!helper) {
            worker_.beats.end(0, {}, {});
            worker_.supervisor.notify();
        }
        std::uint64_t number = 0;
        while ((number = worker_.beats.next(helper)) < beat_schedule::no_beat) {
            if (!registered) registered = register_worker();
            send_beat(number);
        }
        if (number == beat_schedule::last_beat) {
            attempt([this] { deregister_worker(); });
            send_last_beat();  // the very last request
            worker_.beats.end(number, {}, {});
        }
        worker_.supervisor.notify();
    }

    // What a beat says, except for the last one.
    std::string current_state() const {
        if (worker_.stage.may_fetch()) return "running";
        const dialect& words = worker_.options.dialect;
        return worker_.stage.past_intake() ? words.drain_state : words.quiet_state;
    }

    void send_beat(std::uint64_t number) {
        std::string state;
        bool must_arrive = false;
        const auto still_true = [&] { return !worker_.beats.is_over() && state == current_state(); };
        const result<void> sent = unless_out_of_memory([&] {
            state = current_state();
            must_arrive = !worker_.stage.may_fetch() && worker_.beats.is_news(state);
            return beat(state, must_arrive, still_true);
        });
        insist([&] { worker_.beats.end(number, sent, state); });
        if (worker_.backend.has_answered() && worker_.backend.answered.callbacks_due())
            worker_.backend.answered.run_callbacks();
        if (!sent) plan_retry(sent.error(), must_arrive);
    }
    // What the backend must know is not left to the next interval.
    void plan_retry(const error& why, bool must_arrive) {
        const bool outdated = why.code == errc::cancelled;  // what is true now is to be said instead
        if (!outdated) log_failure("heartbeat failed", why);
        if (!outdated && (!must_arrive || why.code == errc::rejected)) return;
        if (why.retry_after.count() > 0) return worker_.beats.by(deadline_after(why.retry_after));
        worker_.beats.request_soon();
    }
    void log_failure(const char* text, const error& why) const {
        attempt([&] { worker_.log.write(log_level::warn, text, {field("error", why.text)}); });
    }

    time_point call_deadline() const {
        return worker_.beats.deadline(steady_clock::now() + worker_.options.request_timeout);
    }

    // Tried again, for a moment: it is harmless to repeat.
    void send_last_beat() {
        const time_point give_up = worker_.beats.deadline(deadline_after(last_beat_tries));
        backoff pauses(std::chrono::milliseconds(20), std::chrono::milliseconds(200));
        for (;;) {
            const result<void> sent =
                unless_out_of_memory([&] { return beat(worker_.options.dialect.last_state, true, nullptr); });
            if (sent) return;
            const errc why = sent.error().code;
            const bool again =
                why == errc::unavailable || why == errc::unreachable || why == errc::disconnected;
            const std::chrono::milliseconds pause = pauses.next();
            if (!again || deadline_after(pause) >= give_up)
                return log_failure("the last heartbeat could not be sent", sent.error());
            const timespec left = to_timespec(pause);
            ::nanosleep(&left, nullptr);
        }
    }

    result<void> beat(std::string state, bool must_arrive, function<bool()> still_wanted) {
        const array<ref<active_job>> jobs = worker_.jobs.snapshot(job_word::lost);
        const time_point sent = steady_clock::now();
        const heartbeat_request request = {&worker_.identity, std::move(state), ids_of(jobs), must_arrive,
                                           std::move(still_wanted)};
        const result<heartbeat_response> answer =
            worker_.backend.call([&](ojs::transport& transport) -> result<heartbeat_response> {
                if (request.still_wanted && !request.still_wanted())  // not every transport asks
                    return error{errc::cancelled, 0, "the heartbeat is no longer true"};
                return transport.heartbeat(request, call_deadline());
            });
        if (!answer && answer.error().code == errc::cancelled) return answer.error();
        worker_.user.tell_parts([&](worker_part& part) { part.on_heartbeat(answer.has_value()); });
        for (const ref<active_job>& each : jobs) worker_.beats.cover(sent, each->lease);
        if (!answer) return answer.error();
        worker_.backend.note_answer();
        renew_leases(jobs, *answer, sent);
        if (!answer->jobs_extended.empty()) names_extended_ = true;
        if (names_extended_) attempt([&] { ask_for_missing(jobs, sent); });
        obey(*answer);
        return {};
    }

    // A lease that ran out before the answer is ours again only if the backend says so by name.
    void renew_leases(const array<ref<active_job>>& jobs, const heartbeat_response& answer, time_point sent) {
        const time_point answered = steady_clock::now();
        for (const ref<active_job>& each : jobs) {
            if (!each->lease_expired(answered)) each->extend_lease(sent);
        }
        for (const std::string& id : answer.jobs_extended) {
            worker_.jobs.each_of(id, [&](active_job& job) {
                job.extend_lease(sent);
                job.note_listed(sent);
            });
        }
    }

    // Asks once about each job that `jobs_extended` omits: the backend may have cancelled it. On another
    // thread, so that no beat waits; jobs beyond max_queries wait for the next beat.
    void ask_for_missing(const array<ref<active_job>>& jobs, time_point sent) {
        array<ref<active_job>> missing;
        for (const ref<active_job>& each : jobs) {
            if (missing.size() < max_queries && each->is_missing(sent)) missing.push_back(each);
        }
        if (missing.empty() || !worker_.beats.begin_queries()) return;
        const ref<heartbeat> self(this);
        const ref<worker_context> context(&worker_);
        result<thread> started = unless_out_of_memory([&] {
            return thread::start([self, context, missing] { self->ask_for(missing); },
                                 worker_.service_thread("ojs-query"));
        });
        if (started) return started->detach();
        worker_.beats.end_queries();
    }

    void ask_for(const array<ref<active_job>>& jobs) {
        for (const ref<active_job>& each : jobs) {
            if (worker_.beats.finishing()) break;
            each->note_asked();
            const time_point deadline =
                deadline_after(detail::min(worker_.options.request_timeout, max_query_time));
            const result<bool> ours = worker_.backend.call([&](ojs::transport& transport) {
                return transport.confirm_claim(
                    {&worker_.identity, each->job.id, [this] { return !worker_.beats.is_over(); }}, deadline);
            });
            if (ours && !*ours && each->lose()) worker_.supervisor.notify();
        }
        worker_.beats.end_queries();
        worker_.supervisor.notify();
    }

    // No answer ever un-quiets a worker: backends say "running" to every beat. [WIRE]
    void obey(const heartbeat_response& answer) {
        const bool some = answer.directive == directive::quiet && !answer.queues.empty();
        if (some) quiet_queues(answer.queues);
        const bool all = some && worker_.queues.open().empty();
        if (answer.directive == directive::quiet && (!some || all))
            worker_.stage.own.apply(event::quiet_request, {cause_kind::directive, 0});
        if (answer.directive == directive::terminate)
            worker_.stage.own.apply(event::stop_request, {cause_kind::directive, 0});
    }

    void quiet_queues(const std::vector<std::string>& queues) {
        for (const std::string& queue : queues) {
            const bool known = worker_.queues.is_known(queue);
            if (known && !worker_.queues.set(queue, true)) continue;
            worker_.supervisor.notify();
            worker_.log.write(known ? log_level::info : log_level::debug,
                              known ? "queue quieted by directive"
                                    : "a directive names a queue that this worker does not serve",
                              {field("queue", printable(queue, 100))});
        }
    }

    bool register_worker() {
        if (worker_.beats.is_over()) return false;  // nothing follows the last beat
        const result<void> done = unless_out_of_memory([&] {
            return worker_.backend.call([&](ojs::transport& transport) {
                return transport.register_worker(worker_.identity, call_deadline());
            });
        });
        if (!done) log_failure("registration failed", done.error());
        return done.has_value();
    }

    // In half of the time there is: the last beat is worth more.
    void deregister_worker() {
        const time_point now = steady_clock::now();
        const time_point half = now + (call_deadline() - now) / 2;
        const result<void> done = worker_.backend.call(
            [&](ojs::transport& transport) { return transport.deregister_worker(worker_.identity, half); });
        if (!done) log_failure("deregistration failed", done.error());
    }

    static constexpr std::chrono::milliseconds last_beat_tries{500};
    static constexpr std::chrono::milliseconds max_query_time{2000};
    static constexpr std::size_t max_queries = 8;  // per beat

    worker_context& worker_;
    thread threads_[2];                   // the helper is the second
    atomic<bool> names_extended_{false};  // the backend fills jobs_extended
};

}  // namespace ojs::detail
