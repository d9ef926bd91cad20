// heartbeat: the thread that beats, to the very last request of the worker.
#pragma once

#include "worker_context.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Heartbeats, on a thread that does nothing else, so that no slow FETCH or ACK ever delays one.
class heartbeat : public ref_counted {
  public:
    explicit heartbeat(worker_context& worker) : worker_(worker) {}

    result<void> start() {
        thread_options options;
        options.name = "ojs-heartbeat";
        const ref<heartbeat> self(this);
        const ref<worker_context> context(&worker_);
        result<thread> started = thread::start([self, context] { self->run(); }, options);
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }

    // A beat at once, besides the regular ones.
    void beat_now() {
        const lock_guard held(mutex_);
        if (finishing_) return;  // a handler that keeps asking must not hold up the last beat
        due_ = true;
        changed_.notify_one();
    }

    // Sends what is due, then the last beat, and nothing ever after; wakes the supervisor when that is done.
    void finish(time_point deadline) {
        const lock_guard held(mutex_);
        last_deadline_ = deadline;
        finishing_ = true;
        changed_.notify_one();
    }
    bool finished() {
        const lock_guard held(mutex_);
        return finished_;
    }
    void join() { thread_.join(); }
    // Joins the thread, or leaves it to end by itself where a call to the backend still holds it.
    void end() {
        if (finished()) {
            thread_.join();
        } else {
            thread_.detach();
        }
    }

  private:
    void run() {
        registered_ = register_worker();
        beat_now();  // the first beat is the registration where there is no route for it
        while (wait_for_beat()) {
            if (!registered_) registered_ = register_worker();
            static_cast<void>(beat(false));  // a beat that failed is logged; the next one is due soon
        }
        deregister_worker();
        last_beat();  // the very last request
        const lock_guard held(mutex_);
        finished_ = true;
        worker_.supervisor.notify();
    }

    // False when it is time for the last beat. A beat that is due by then is still sent: it announces `quiet`.
    bool wait_for_beat() {
        lock_guard held(mutex_);
        while (!due_ && !finishing_) {
            if (!changed_.wait_until(held, next_beat_)) due_ = true;
        }
        next_beat_ = steady_clock::now() + worker_.options.heartbeat_interval;
        return std::exchange(due_, false);
    }

    time_point call_deadline() {
        const lock_guard held(mutex_);
        const time_point ordinary = steady_clock::now() + worker_.options.request_timeout;
        return finishing_ && last_deadline_ < ordinary ? last_deadline_ : ordinary;
    }

    // Tried again, for a moment, only where it was not processed: the backend gets one last beat.
    void last_beat() {
        const time_point give_up = deadline_after(last_beat_tries);
        backoff pauses(std::chrono::milliseconds(20), std::chrono::milliseconds(200));
        for (;;) {
            const result<void> sent = beat(true);
            if (sent || (sent.error().code != errc::unavailable && sent.error().code != errc::unreachable))
                return;
            const time_point next = steady_clock::now() + pauses.next();
            lock_guard held(mutex_);
            if (next >= give_up || next >= last_deadline_) return;
            while (changed_.wait_until(held, next)) {
            }
        }
    }

    result<void> beat(bool last) {
        const std::vector<ref<active_job>> jobs = worker_.jobs.snapshot();
        const time_point sent = steady_clock::now();
        const heartbeat_request request = {&worker_.identity,
                                           last ? worker_.options.dialect.last_state : worker_.beat_state(),
                                           ids_of(jobs)};
        const result<heartbeat_answer> answer = worker_.call(
            [&](ojs::transport& transport) { return transport.heartbeat(request, call_deadline()); });
        worker_.note_heartbeat(answer.has_value());
        if (!answer) {
            worker_.log.write(log_level::warn, "heartbeat failed", {field("error", answer.error().text)});
            return answer.error();
        }
        renew_leases(jobs, *answer, sent);
        obey(answer->directive);
        return {};
    }

    // A lease that ran out before the beat is ours again only if the backend says so by name.
    static void renew_leases(const std::vector<ref<active_job>>& jobs, const heartbeat_answer& answer,
                             time_point sent) {
        for (const ref<active_job>& each : jobs) {
            if (!each->lease_expired(sent) || answer.extends(each->job.id)) each->extend_lease(sent);
        }
    }

    // No answer ever un-quiets a worker: backends say "running" to every beat. [WIRE]
    void obey(directive wanted) {
        if (wanted == directive::quiet) worker_.life.apply(event::quiet_request, {cause_kind::directive, 0});
        if (wanted == directive::terminate)
            worker_.life.apply(event::stop_request, {cause_kind::directive, 0});
    }

    bool register_worker() {
        const result<void> done = worker_.call([&](ojs::transport& transport) {
            return transport.register_worker(worker_.identity, call_deadline());
        });
        if (!done)
            worker_.log.write(log_level::warn, "registration failed", {field("error", done.error().text)});
        return done.has_value();
    }

    void deregister_worker() {
        const result<void> done = worker_.call([&](ojs::transport& transport) {
            return transport.deregister_worker(worker_.identity, call_deadline());
        });
        if (!done)
            worker_.log.write(log_level::warn, "deregistration failed", {field("error", done.error().text)});
    }

    static constexpr std::chrono::milliseconds last_beat_tries{500};

    worker_context& worker_;
    thread thread_;
    mutex mutex_;
    condition changed_;
    time_point next_beat_ = time_point::max();
    time_point last_deadline_ = time_point::max();
    bool due_ = false;
    bool finishing_ = false;
    bool finished_ = false;
    bool registered_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
