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
        const ref<heartbeat> self(this);
        const ref<worker_context> context(&worker_);
        result<thread> started =
            thread::start([self, context] { self->run(); }, worker_.service_thread("ojs-heartbeat"));
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }

    // Sends what is due, then the last beat, and nothing ever after; wakes the supervisor when that is done.
    void finish(time_point deadline) { worker_.beats.finish(deadline); }
    bool finished() const noexcept { return finished_.load(std::memory_order_acquire); }
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
        while (worker_.beats.wait()) {
            if (!registered_) registered_ = register_worker();
            result<void> sent = beat(worker_.beat_state());
            if (!sent)
                worker_.log.write(log_level::warn, "heartbeat failed", {field("error", sent.error().text)});
            worker_.beats.end(std::move(sent));
        }
        deregister_worker();
        last_beat();  // the very last request
        finished_.store(true, std::memory_order_release);
        worker_.supervisor.notify();
    }

    time_point call_deadline() const {
        return worker_.beats.latest(steady_clock::now() + worker_.options.request_timeout);
    }

    // Tried again, for a moment, only where it was not processed: the backend gets one last beat.
    void last_beat() {
        const time_point give_up = worker_.beats.latest(deadline_after(last_beat_tries));
        backoff pauses(std::chrono::milliseconds(20), std::chrono::milliseconds(200));
        for (;;) {
            const result<void> sent = beat(worker_.options.dialect.last_state);
            if (sent) return;
            const errc why = sent.error().code;
            const time_point next = steady_clock::now() + pauses.next();
            if ((why != errc::unavailable && why != errc::unreachable) || next >= give_up) {
                worker_.log.write(log_level::warn, "the last heartbeat could not be sent",
                                  {field("error", sent.error().text)});
                return;
            }
            worker_.beats.pause(next);
        }
    }

    result<void> beat(std::string state) {
        const std::vector<ref<active_job>> jobs = worker_.jobs.snapshot();
        const time_point sent = steady_clock::now();
        const heartbeat_request request = {&worker_.identity, std::move(state), ids_of(jobs)};
        const result<heartbeat_answer> answer = worker_.call(
            [&](ojs::transport& transport) { return transport.heartbeat(request, call_deadline()); });
        worker_.note_heartbeat(answer.has_value());
        cover_leases(jobs, sent);
        if (!answer) return answer.error();
        renew_leases(jobs, *answer, sent);
        obey(answer->directive);
        return {};
    }

    // The next beat follows the shortest lease in hand.
    void cover_leases(const std::vector<ref<active_job>>& jobs, time_point sent) {
        auto shortest = std::chrono::milliseconds::max();
        for (const ref<active_job>& each : jobs) shortest = each->lease < shortest ? each->lease : shortest;
        worker_.beats.cover(sent, shortest);
    }

    // A lease that ran out before the answer is ours again only if the backend says so by name.
    void renew_leases(const std::vector<ref<active_job>>& jobs, const heartbeat_answer& answer,
                      time_point sent) {
        const time_point answered = steady_clock::now();
        for (const ref<active_job>& each : jobs) {
            if (!each->lease_expired(answered)) each->extend_lease(sent);
        }
        for (const std::string& id : answer.jobs_extended) {
            worker_.jobs.each_of(id, [&](active_job& job) { job.extend_lease(sent); });
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
    std::atomic<bool> finished_{false};
    bool registered_ = false;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
