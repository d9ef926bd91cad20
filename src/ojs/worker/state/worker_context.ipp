// worker_context: the state that all parts of a worker share.
#pragma once

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "../../loop/detail/loop_context.ipp"
#include "../transport.hpp"
#include "../worker_options.hpp"
#include "active_job.ipp"
#include "beat_schedule.ipp"
#include "fetch_period.ipp"
#include "job_tally.ipp"

namespace ojs::detail {

// The queues that a worker does not fetch from. A resume of its lifecycle (SIGCONT) resumes them too. Thread-safe.
class paused_queues {
  public:
    paused_queues(const std::vector<std::string>& all, const lifecycle& life, mutex& guard)
        : all_(all), life_(life), mutex_(guard), paused_in_epoch_(all.size()) {}

    // False: nothing has changed, or the queue is not one of the worker's.
    bool set(const std::string& queue, bool paused) {
        const unique_lock held(mutex_);
        bool changed = false;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (all_[i] != queue || is_paused(i) == paused) continue;
            paused_in_epoch_[i] = paused ? current_epoch() : 0;
            changed = true;
        }
        if (changed) changes_.fetch_add(1);
        return changed;
    }
    bool is_known(const std::string& queue) const noexcept { return contains(all_, queue); }

    // Changes whenever unpaused() does. 0 until the first pause: an earlier resume changes nothing.
    std::uint32_t version() const noexcept {
        const std::uint32_t changes = changes_.load();
        return changes == 0 ? 0 : changes + life_.resume_requests();
    }
    std::vector<std::string> unpaused() const {
        const unique_lock held(mutex_);
        std::vector<std::string> out;
        for (std::size_t i = 0; i < all_.size(); ++i) {
            if (!is_paused(i)) out.push_back(all_[i]);
        }
        return out;
    }

  private:
    std::uint64_t current_epoch() const noexcept { return life_.resume_requests() + std::uint64_t{1}; }
    bool is_paused(std::size_t i) const noexcept { return paused_in_epoch_[i] == current_epoch(); }

    const std::vector<std::string>& all_;
    const lifecycle& life_;
    mutex& mutex_;
    array<std::uint64_t> paused_in_epoch_;  // per queue: current_epoch() when it was paused; 0: not paused
    atomic<std::uint32_t> changes_{0};
};

// Measures how long the backend does not respond. Thread-safe.
class outage_watch {
  public:
    explicit outage_watch(mutex& guard) : mutex_(guard) {}

    // A request sent at `sent_at` got no response. Not counted if the backend has responded to another one since. True:
    // an outage begins.
    bool note_failure(time_point sent_at) {
        const unique_lock held(mutex_);
        const time_point known = began_at_;
        began_at_ = detail::min(known, sent_at);  // first: a response that comes now sees it, or is seen
        const bool counts = last_response_at_.load() < sent_at;
        if (!counts) began_at_ = known;
        return counts && known == never;
    }
    // Returns, once after an outage, how long it was; else 0. Without the lock while there is none.
    steady_clock::duration note_response(time_point now) {
        if (last_response_at_.load() < now) last_response_at_ = now;
        if (began_at_.load() == never) return {};
        const unique_lock held(mutex_);
        const time_point began_at = began_at_.exchange(never);
        return began_at == never ? steady_clock::duration() : now - began_at;
    }

  private:
    mutex& mutex_;
    atomic<time_point> began_at_{never};  // without an outage
    atomic<time_point> last_response_at_{time_point::min()};
};

// The request failed without a response of the backend; that of a proxy counts as none.
constexpr bool is_unanswered(const error& failure) noexcept {
    return failure.code == errc::unreachable || failure.code == errc::disconnected ||
           failure.code == errc::timed_out || (failure.http_status >= 502 && failure.http_status <= 504);
}

class backend_calls {
  public:
    backend_calls(ojs::transport* given, mutex& guard) : outage(guard), transport(given) {}

    // Makes every call to the transport. None begins once `calls` is closed: nothing follows the last heartbeat,
    // and the transport's owner can wait until no thread is in it.
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
    // The backend has responded: the worker is ready. The heartbeat thread runs the callbacks, as it runs no jobs.
    void note_response() {
        if (!has_responded()) connected.request(cancel_reason::cancelled);
    }
    bool has_responded() const noexcept { return connected.requested(); }
    // In a child of the process that started the worker: state_lock must not be used.
    bool is_forked() const noexcept {
        const std::uint32_t started_by = owner;
        return started_by != 0 && started_by != fork_generation();
    }

    outage_watch outage;
    ojs::transport* transport;       // set before any thread starts, like the next
    atomic<std::uint32_t> owner{0};  // the process that started the worker
    drain_barrier calls;
    cancel_source connected;
};

// Lives as long as the last thread that uses it.
class worker_context : public held_options<worker_options>, public loop_context {
  public:
    explicit worker_context(worker_options given, ojs::transport* given_transport, lifecycle* shared)
        : held_options{std::move(given)},
          loop_context(options, "worker", shared),
          backend(given_transport, state.guard),
          beats(state, options.heartbeat_interval) {}

    std::size_t active() const noexcept override { return jobs.size(); }
    void visit_active(const function<void(const job&, time_point)>& visit) const override {
        for (const ref<active_job>& job : jobs.snapshot()) visit(job->job, job->claimed_at);
    }
    worker_report report() const override { return backend.is_forked() ? worker_report() : tally.report(); }
    std::uint64_t unreported() const noexcept override { return tally.unreported(); }
    bool connected() const noexcept override { return backend.has_responded(); }

    // Returns a ticket of `claims`. The last one ends the drain.
    void leave(drain_barrier::ticket& ticket) {
        if (ticket.leave() || (!user.extensions.empty() && is_drained())) supervisor.notify();
    }

    // For each FETCH, heartbeat, ACK and FAIL: logs the start and the end of an outage.
    template <class T>
    void note_response(const result<T>& response, time_point sent_at) {
        if (!response && is_unanswered(response.error())) return note_failure(response.error(), sent_at);
        if (!response && response.error().http_status == 0) return;  // it may not have been sent
        const auto outage = backend.outage.note_response(steady_clock::now());
        if (outage.count() == 0) return;
        const auto outage_ms = std::chrono::duration_cast<std::chrono::milliseconds>(outage).count();
        attempt(
            [&] { log.write(log_level::info, "backend reachable again", {field("outage_ms", outage_ms)}); });
    }

    void note_failure(const error& why, time_point sent_at) {
        if (!backend.outage.note_failure(sent_at)) return;
        attempt([&] {
            log.write(log_level::warn, "backend unreachable",
                      {field("url", backend_url), field("error", why.text)});
        });
    }

    const ref<job_cancel_group> group = make_ref<job_cancel_group>();
    state_lock& state = *group;
    backend_calls backend;
    beat_schedule beats;
    paused_queues queues{options.queues, stage.own, state.guard};

    fetch_periods fetching{state.guard};
    drain_barrier cancel_callbacks;      // entered by the threads that call those of jobs
    atomic<std::size_t> in_handlers{0};  // threads that have called a handler and not left its job
    atomic<int> fetch_pauses{0};
    job_table jobs{state.guard};
    job_tally tally{jobs, state.guard};
    report_limits reports{state};

    transport_ref owned_transport;  // null: the caller's is used; last, as its destructor may log
};

// transport::confirm_claim() for the latest claim of a job.
inline result<bool> query_claim(worker_context& worker, const active_job& job, time_point deadline) {
    return unless_out_of_memory([&] {
        return worker.backend.call([&](ojs::transport& transport) {
            return transport.confirm_claim(
                {&worker.identity, job.job.id, [&worker] { return !worker.beats.has_last_begun(); },
                 job.latest_attempt(), job.latest_claim()},
                deadline);
        });
    });
}
// The response to the query settles nothing. [WIRE 7]
constexpr bool is_inconclusive(errc code) noexcept {
    return code == errc::unsupported || code == errc::rejected;
}

inline std::vector<std::string> ids_of(const array<ref<active_job>>& jobs) {
    std::vector<std::string> out;
    for (const ref<active_job>& job : jobs) out.push_back(job->job.id);
    return out;
}
// Empty if none has a claim's text.
inline std::vector<std::string> claims_of(const array<ref<active_job>>& jobs) {
    std::vector<std::string> out;
    for (const ref<active_job>& job : jobs) out.push_back(job->latest_claim());
    for (const std::string& claim : out) {
        if (!claim.empty()) return out;
    }
    return {};
}

}  // namespace ojs::detail
