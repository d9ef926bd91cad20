// worker_context: what the parts of one worker share.
#pragma once

#include <unistd.h>

#include <atomic>

#include "../../base/detail/array.hpp"
#include "../../base/detail/backoff.hpp"
#include "../../core/detail/wake.hpp"
#include "../../core/shutdown_sequence.hpp"
#include "../../core/signals.hpp"
#include "../../net/json.ipp"
#include "../exit_status.hpp"
#include "../transport.hpp"
#include "../worker_options.hpp"
#include "active_job.ipp"
#include "beat_schedule.ipp"
#include "metrics.ipp"
#include "queue_gate.ipp"
#include "watch.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What the parts of one worker share. It lives as long as the last thread that uses it.
class worker_context : public ref_counted {
  public:
    explicit worker_context(worker_options given, ojs::transport* outside, lifecycle* shared)
        : options(std::move(given)),
          log(options.log),
          transport(outside),
          followed(shared),
          beats(options.heartbeat_interval),
          life(shared == nullptr ? options.repeat_signal_gap : std::chrono::milliseconds(0)) {
        life.set_first_signal_wins(shared == nullptr && options.dialect.first_signal_wins);
    }
    ~worker_context() override {
        if (owns_transport) delete transport;
    }

    // No FETCH begins once a stop or quiet was asked for, even before the supervisor has noticed.
    bool may_fetch() const noexcept {
        return life.phase() == phase::running && (followed == nullptr || followed->phase() == phase::running);
    }
    // The further one of this worker's own phase and that of the lifecycle it follows, which takes it as far as the drain:
    // what comes after is the worker's own.
    ojs::phase effective_phase() const noexcept {
        const ojs::phase own = life.phase();
        if (own >= phase::draining || followed == nullptr) return own;
        const ojs::phase outside = followed->phase();
        return outside >= phase::draining ? phase::draining : own < outside ? outside : own;
    }
    // What a heartbeat says, except for the last one.
    std::string beat_state() const {
        if (may_fetch()) return "running";
        return past_intake() ? options.dialect.drain_state : options.dialect.quiet_state;
    }
    bool past_intake() const noexcept { return effective_phase() >= phase::draining; }

    // When the drain under way ends; time_point::max() while there is none. Known as soon as the drain has begun, even
    // before the supervisor has noticed; whoever comes first says when that was.
    time_point drain_deadline() const noexcept {
        steady_clock::rep known = drain_deadline_.load(std::memory_order_acquire);
        if (known != never || !past_intake()) return time_point(steady_clock::duration(known));
        const lifecycle& began = life.phase() >= phase::draining ? life : *followed;
        const time_point ends = end_of_drain(lifecycle::changed_at(began.state()));
        const bool first = drain_deadline_.compare_exchange_strong(known, ends.time_since_epoch().count());
        return first ? ends : time_point(steady_clock::duration(known));
    }
    void drain_began(time_point when) noexcept {
        steady_clock::rep unknown = never;
        drain_deadline_.compare_exchange_strong(unknown, end_of_drain(when).time_since_epoch().count());
    }
    // Settling calls give up at this moment; set when the stop begins.
    time_point report_deadline() const noexcept {
        return time_point(steady_clock::duration(report_deadline_.load(std::memory_order_acquire)));
    }
    // In a stop no FAIL waits for a checkpoint under way after this moment: what it holds goes with the FAIL anyway.
    time_point saves_deadline() const noexcept {
        return time_point(steady_clock::duration(saves_deadline_.load(std::memory_order_acquire)));
    }
    void set_saves_deadline(time_point when) noexcept {
        saves_deadline_.store(when.time_since_epoch().count(), std::memory_order_release);
    }
    void set_report_deadline(time_point when) {
        const lock_guard held(retry_mutex_);
        report_deadline_.store(when.time_since_epoch().count(), std::memory_order_release);
        retry_changed_.notify_all();
    }
    // Between two tries of a settling call. Ends early when the stop begins.
    void pause_before_retry(std::chrono::milliseconds pause) {
        lock_guard held(retry_mutex_);
        const time_point deadline = report_deadline();
        const time_point until = steady_clock::now() + pause;
        while (report_deadline() == deadline &&
               retry_changed_.wait_until(held, until < deadline ? until : deadline)) {
        }
    }

    // Every call to the backend is made through here: none begins once `calls` is closed, so that nothing follows the
    // last heartbeat, and whoever owns the transport can wait until nobody is in it.
    template <class Call>
    auto call(Call make) -> decltype(make(std::declval<ojs::transport&>())) {
        const drain_barrier::ticket ticket = calls.enter();
        if (!ticket) return error{errc::cancelled, 0, "the worker has stopped"};
        const cancellable off(false);
        try {
            return make(*transport);
        } catch (...) {
            return error{errc::disconnected, 0, "the transport threw an exception"};
        }
    }

    // Every ticket of `claims` is given back here: the last one ends the drain.
    void leave(drain_barrier::ticket& ticket) {
        if (ticket.leave()) supervisor.notify();
        if (metrics && claims.count() == 0) changes.announce();
    }
    void forget(active_job& job) {
        jobs.remove(job);
        leave(job.ticket);
    }

    // The supervisor looks at the jobs at `when` at the latest. It says when it will before it goes through them, and again
    // after: so either it sees what the caller has set, or the caller sees that it has to be woken.
    void look_at_jobs_by(steady_clock::rep when) {
        if (when < next_look.load()) supervisor.notify();
    }

    // Names a job nobody could be told about, once.
    void mark_unreported(active_job& job) {
        if (!job.known_unreported.exchange(true)) name_unreported(job.job.id);
    }

    // Of threads that do not run jobs: they call transports, hooks and callbacks, which are the user's code as well.
    thread_options service_thread(const char* name) const noexcept {
        thread_options out;
        out.stack_size = options.thread_stack_size;
        out.least_stack_size = 256 * 1024;
        out.name = name;
        return out;
    }

    // The same for one that cannot be named: why takes the place of its id, and each counts.
    void mark_nameless(const std::string& why) { name_unreported(cat({"(", why, ")"})); }

    // For the health server; nothing is counted without one.
    void note_heartbeat(bool answered) noexcept {
        if (answered) set_ready();
        if (metrics) count_one(answered ? metrics->beats_ok : metrics->beats_failed);
    }
    void note_fetch(fetch_end how) noexcept {
        if (how != fetch_end::failed) set_ready();
        if (metrics) count_one(metrics->fetches[static_cast<std::size_t>(how)]);
    }
    void note_phase(ojs::phase now) noexcept {
        if (metrics) metrics->phase_began(now);
    }
    void note_turn() noexcept {
        if (!metrics) return;
        count_one(turns);
        changes.announce();
    }

    int exit_code() const {
        const lock_guard held(report_mutex);
        return unreported.empty() ? exit_status::settled : exit_status::unreported;
    }

    // Here because a friend of job_context may make one.
    static outcome call_handler(worker_context& worker, active_job& job) {
        job_context context(worker, job);
        const cancellable on(true);
        return job.handler->call(context);
    }

    const worker_options options;
    logger log;  // set up once more, with the worker's id, before any thread starts
    worker_identity identity;
    ojs::transport* transport;
    bool owns_transport = false;
    lifecycle* const followed;  // an outside lifecycle, or null
    beat_schedule beats;
    lifecycle life;  // this worker's own
    queue_gate queues{options.queues, life};
    wake supervisor;
    drain_barrier claims;  // every FETCH under way and every claimed job holds a ticket
    drain_barrier calls;   // see call()
    job_table jobs;
    const ref<all_jobs_cancel> all_jobs = make_ref<all_jobs_cancel>();
    std::atomic<steady_clock::rep> next_look{never};  // see look_at_jobs_by()
    pid_t owner = 0;  // the process it was started in, which is not always the one that made it

    std::atomic<std::uint64_t> claimed{0};
    std::atomic<std::uint64_t> completed{0};
    std::atomic<std::uint64_t> failed{0};
    std::atomic<std::uint64_t> interrupted{0};
    std::atomic<std::uint64_t> handed_back{0};
    std::atomic<std::uint64_t> gone{0};
    std::atomic<bool> registration_tried{false};  // no FETCH before [WP 3.1]
    std::atomic<bool> ready{false};               // the backend has answered a heartbeat or a FETCH
    ref<worker_metrics> metrics;  // none: no health server; set once, before any thread starts
    watch changes;                // only with metrics: a turn of the supervisor, or no claim left
    counter turns{0};             // of the supervisor's loop, only with metrics
    mutable mutex report_mutex;
    std::vector<std::string> unreported;  // guarded by report_mutex
    std::vector<std::string> stuck;       // guarded by report_mutex
    shutdown_sequence at_shutdown;        // see worker::on_shutdown(); the supervisor's, once started
    std::vector<step_result> steps;       // guarded by report_mutex

  private:
    time_point end_of_drain(time_point began) const noexcept {
        const std::chrono::milliseconds grace = options.shutdown_grace_period;
        return grace == no_limit ? time_point::max() : began + grace;
    }
    // A backend that goes on like that must not grow the worker: the log has them all.
    void name_unreported(std::string name) {
        const lock_guard held(report_mutex);
        if (unreported.size() < most_unreported) unreported.push_back(std::move(name));
    }
    static constexpr std::size_t most_unreported = 10000;

    void set_ready() noexcept {
        if (!ready.load(std::memory_order_relaxed)) ready.store(true, std::memory_order_release);
    }

    mutable std::atomic<steady_clock::rep> drain_deadline_{never};
    std::atomic<steady_clock::rep> saves_deadline_{never};
    std::atomic<steady_clock::rep> report_deadline_{never};
    mutex retry_mutex_;
    condition retry_changed_;
};

inline std::vector<std::string> ids_of(const array<ref<active_job>>& jobs) {
    std::vector<std::string> out;
    for (const ref<active_job>& each : jobs) out.push_back(each->job.id);
    return out;
}

inline long long milliseconds_since(time_point then) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - then).count();
}

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
