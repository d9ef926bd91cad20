// heartbeat: the threads that beat, to the very last request of the worker.
#pragma once

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../detail/worker_context.ipp"

namespace ojs::detail {

// Heartbeats, on threads that do nothing else, so that no slow FETCH or ACK ever delays one; nor does a beat whose answer
// does not come: the spare thread sends what is due meanwhile.
class heartbeat : public ref_counted {
  public:
    explicit heartbeat(worker_context& worker) : worker_(worker) {}

    result<void> start() {
        const ref<heartbeat> self(this);
        const ref<worker_context> context(&worker_);
        for (beating_thread& each : threads_) {
            const bool spare = &each != &threads_[0];
            result<thread> started = unless_out_of_memory([&] {
                return thread::start([self, context, &each, spare] { self->run(each, spare); },
                                     worker_.service_thread(spare ? "ojs-beat-spare" : "ojs-heartbeat"));
            });
            if (started) each.handle = std::move(*started);
            if (!started && !spare) return started.error();
        }
        return {};
    }

    // The last beat is through, and so are all before it.
    bool all_home() const { return finished_.load(memory_order::acquire) && !worker_.beats.any_on_its_way(); }
    void join() {
        for (beating_thread& each : threads_) each.handle.join();
    }
    // Joins the threads; detaches those that a call to the backend still holds, and returns their number.
    std::size_t end(time_point deadline) {
        const bool soon = all_home();
        std::size_t left = 0;
        for (beating_thread& each : threads_) {
            const bool ends = soon || each.left.load(memory_order::acquire);
            if (each.handle.joinable() && !(ends && each.handle.end_by(deadline))) ++left;
            each.handle.detach();
        }
        return left;
    }

  private:
    struct beating_thread {
        thread handle;
        atomic<bool> left{false};
    };

    void run(beating_thread& self, bool spare) {
        bool registered = spare || register_worker();
        if (!spare) {
            worker_.beats.note_registration_tried();
            worker_.supervisor.notify();  // who lets the pool know
        }
        beat_turn turn = worker_.beats.wait(spare);
        for (; turn.what == beat_turn::kind::beat; turn = worker_.beats.wait(spare)) {
            if (!registered) registered = register_worker();
            regular_beat(turn.number);
        }
        if (turn.what == beat_turn::kind::last) {
            attempt([this] { deregister_worker(); });
            last_beat();  // the very last request
            finished_.store(true, memory_order::release);
        }
        self.left.store(true, memory_order::release);
        worker_.supervisor.notify();
    }

    // What a beat says, except for the last one.
    std::string current_state() const {
        if (worker_.may_fetch()) return "running";
        const dialect& words = worker_.options.dialect;
        return worker_.past_intake() ? words.drain_state : words.quiet_state;
    }

    void regular_beat(std::uint64_t number) {
        std::string state;
        bool matters = false;
        const auto still_true = [&] { return !worker_.beats.last_begun() && state == current_state(); };
        const result<void> sent = unless_out_of_memory([&] {
            state = current_state();
            matters = !worker_.may_fetch() && worker_.beats.is_news(state);
            return beat(state, matters, still_true);
        });
        insist([&] { worker_.beats.end(number, sent, state); });
        if (worker_.has_answered() && worker_.answered.callbacks_due()) worker_.answered.run_callbacks();
        if (sent) return;
        const error& why = sent.error();
        if (why.code == errc::cancelled)
            return worker_.beats.soon();  // what is true now is to be said instead
        attempt([&] { worker_.log.write(log_level::warn, "heartbeat failed", {field("error", why.text)}); });
        // What the backend must know is not left to the next interval.
        if (!matters || why.code == errc::rejected) return;
        if (why.retry_after.count() > 0) return worker_.beats.by(deadline_after(why.retry_after));
        worker_.beats.soon();
    }

    time_point call_deadline() const {
        return worker_.beats.latest(steady_clock::now() + worker_.options.request_timeout);
    }

    // Tried again, for a moment: it is harmless to repeat.
    void last_beat() {
        const time_point give_up = worker_.beats.latest(deadline_after(last_beat_tries));
        backoff pauses(std::chrono::milliseconds(20), std::chrono::milliseconds(200));
        for (;;) {
            const result<void> sent =
                unless_out_of_memory([&] { return beat(worker_.options.dialect.last_state, true, nullptr); });
            if (sent) return;
            const errc why = sent.error().code;
            const bool again =
                why == errc::unavailable || why == errc::unreachable || why == errc::disconnected;
            const time_point next = steady_clock::now() + pauses.next();
            if (!again || next >= give_up) {
                attempt([&] {
                    worker_.log.write(log_level::warn, "the last heartbeat could not be sent",
                                      {field("error", sent.error().text)});
                });
                return;
            }
            worker_.beats.pause(next);
        }
    }

    result<void> beat(std::string state, bool matters, function<bool()> still_wanted) {
        array<ref<active_job>> jobs;
        jobs.reserve(worker_.jobs.size());  // not under the table's mutex
        worker_.jobs.each([&](active_job& job) {
            if (!job.lost()) jobs.push_back(ref<active_job>(&job));
        });
        const time_point sent = steady_clock::now();
        const heartbeat_request request = {&worker_.identity, std::move(state), ids_of(jobs), matters,
                                           std::move(still_wanted)};
        const result<heartbeat_answer> answer =
            worker_.call([&](ojs::transport& transport) -> result<heartbeat_answer> {
                if (request.still_wanted && !request.still_wanted())  // not every transport asks
                    return error{errc::cancelled, 0, "the heartbeat is no longer true"};
                return transport.heartbeat(request, call_deadline());
            });
        if (!answer && answer.error().code == errc::cancelled) return answer.error();
        worker_.tell_parts([&](worker_part& part) { part.on_heartbeat(answer.has_value()); });
        if (answer) worker_.note_answer();
        auto shortest = std::chrono::milliseconds::max();  // lease in hand, which the next beat follows
        for (const ref<active_job>& each : jobs) shortest = each->lease < shortest ? each->lease : shortest;
        worker_.beats.cover(sent, shortest);
        if (!answer) return answer.error();
        renew_leases(jobs, *answer, sent);
        if (!answer->jobs_extended.empty()) names_extended_ = true;
        if (names_extended_) ask_for_missing(jobs, sent);
        obey(*answer);
        return {};
    }

    // A lease that ran out before the answer is ours again only if the backend says so by name.
    void renew_leases(const array<ref<active_job>>& jobs, const heartbeat_answer& answer, time_point sent) {
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

    // Asks once about each job that `jobs_extended` omits: the backend may have cancelled it. On a thread of its own, so that
    // no beat waits; jobs beyond max_queries wait for the next beat.
    void ask_for_missing(const array<ref<active_job>>& jobs, time_point sent) {
        if (asking_.exchange(true)) return;
        bool asks = false;
        attempt([&] { asks = start_query(jobs, sent); });
        if (!asks) asking_ = false;
    }
    bool start_query(const array<ref<active_job>>& jobs, time_point sent) {
        array<ref<active_job>> missing;
        for (const ref<active_job>& each : jobs) {
            if (missing.size() < max_queries && each->is_missing(sent)) missing.push_back(each);
        }
        if (missing.empty()) return false;
        const ref<heartbeat> self(this);
        const ref<worker_context> context(&worker_);
        result<thread> started = thread::start([self, context, missing] { self->ask_for(missing); },
                                               worker_.service_thread("ojs-query"));
        if (started) started->detach();  // all_home() waits for its queries
        return started.has_value();
    }

    void ask_for(const array<ref<active_job>>& jobs) {
        const std::chrono::milliseconds request = worker_.options.request_timeout;
        for (const ref<active_job>& each : jobs) {
            if (!worker_.beats.begin_query()) break;
            each->note_asked();
            const time_point deadline = deadline_after(request < max_query_time ? request : max_query_time);
            const result<bool> ours = worker_.call([&](ojs::transport& transport) {
                return transport.confirm_claim(
                    {&worker_.identity, each->job.id, [this] { return !worker_.beats.last_begun(); }},
                    deadline);
            });
            worker_.beats.end_query();
            if (ours && !*ours && each->lose()) worker_.supervisor.notify();
        }
        asking_ = false;
        worker_.supervisor.notify();
    }

    // No answer ever un-quiets a worker: backends say "running" to every beat. [WIRE]
    void obey(const heartbeat_answer& answer) {
        const bool some = answer.directive == directive::quiet && !answer.queues.empty();
        if (some) quiet_queues(answer.queues);
        const bool all = some && worker_.queues.open().empty();
        if (answer.directive == directive::quiet && (!some || all))
            worker_.life.apply(event::quiet_request, {cause_kind::directive, 0});
        if (answer.directive == directive::terminate)
            worker_.life.apply(event::stop_request, {cause_kind::directive, 0});
    }

    void quiet_queues(const std::vector<std::string>& queues) {
        for (const std::string& queue : queues) {
            if (worker_.queues.set(queue, true)) {
                worker_.supervisor.notify();
                worker_.log.write(log_level::info, "queue quieted by directive",
                                  {field("queue", printable(queue, 100))});
            } else if (!worker_.queues.is_known(queue)) {
                worker_.log.write(log_level::debug,
                                  "a directive names a queue that this worker does not serve",
                                  {field("queue", printable(queue, 100))});
            }
        }
    }

    bool register_worker() {
        if (worker_.beats.last_begun()) return false;  // nothing follows the last beat
        const result<void> done = unless_out_of_memory([&] {
            return worker_.call([&](ojs::transport& transport) {
                return transport.register_worker(worker_.identity, call_deadline());
            });
        });
        if (!done) {
            attempt([&] {
                worker_.log.write(log_level::warn, "registration failed",
                                  {field("error", done.error().text)});
            });
        }
        return done.has_value();
    }

    // In half of the time there is: the last beat is worth more.
    void deregister_worker() {
        const time_point now = steady_clock::now();
        const time_point half = now + (call_deadline() - now) / 2;
        const result<void> done = worker_.call(
            [&](ojs::transport& transport) { return transport.deregister_worker(worker_.identity, half); });
        if (!done)
            worker_.log.write(log_level::warn, "deregistration failed", {field("error", done.error().text)});
    }

    static constexpr std::chrono::milliseconds last_beat_tries{500};
    static constexpr std::chrono::milliseconds max_query_time{2000};
    static constexpr std::size_t max_queries = 8;  // per beat

    worker_context& worker_;
    beating_thread threads_[2];
    atomic<bool> finished_{false};
    atomic<bool> names_extended_{false};  // the backend fills jobs_extended
    atomic<bool> asking_{false};
};

}  // namespace ojs::detail
