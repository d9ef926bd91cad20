// worker_context: the state that all parts of a worker share.
#pragma once

#include <unistd.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.ipp"
#include "../../core/detail/wake.hpp"
#include "../heartbeat/beat_schedule.ipp"
#include "../jobs/active_job.ipp"
#include "../reports/job_tally.ipp"
#include "../transport.hpp"
#include "../worker_options.hpp"
#include "../worker_part.hpp"

namespace ojs::detail {

// If user code calls fork() and the child returns from it, two processes must not act for one worker.
inline void exit_if_forked(std::uint32_t from) noexcept {
    constexpr std::string_view text =
        "error: a child made by fork() in a job handler or a callback returned from it; the child ends "
        "here\n";
    if (from == fork_generation()) return;
    // Not by the log, whose reader the parent may be. A failed write is ignored.
    if (::write(STDERR_FILENO, text.data(), text.size()) < 0) _exit(70);
    _exit(70);
}

// Holds a ticket of `gate` while a thread is in user code. Lives on the stack.
class user_call {
  public:
    explicit user_call(drain_barrier& gate) noexcept
        : gate_(gate), ticket_(gate.enter()), outer_(detail::exchange(innermost(), this)) {}
    user_call(const user_call&) = delete;
    user_call& operator=(const user_call&) = delete;
    ~user_call() {
        innermost() = outer_;
        exit_if_forked(process_);
    }
    explicit operator bool() const noexcept { return bool(ticket_); }

    // The calling thread is in such a call.
    static bool is_in(const drain_barrier& gate) noexcept {
        const user_call* call = innermost();
        while (call != nullptr && &call->gate_ != &gate) call = call->outer_;
        return call != nullptr;
    }

  private:
    static user_call*& innermost() noexcept {
        thread_local user_call* of_this_thread = nullptr;
        return of_this_thread;
    }

    const drain_barrier& gate_;
    drain_barrier::ticket ticket_;
    user_call* const outer_;
    const std::uint32_t process_ = fork_generation();
};

// The phase of a worker: its own lifecycle, and a shared one that it may follow.
class worker_stage {
  public:
    worker_stage(const worker_options& options, lifecycle* shared_lifecycle)
        : own(shared_lifecycle == nullptr ? options.repeat_signal_gap : std::chrono::milliseconds(0)),
          shared(shared_lifecycle),
          grace_period_(options.times.shutdown_grace_period) {
        own.set_first_signal_wins(shared_lifecycle == nullptr && options.dialect.first_signal_wins);
    }

    // False from the moment of a stop or quiet, even before the supervisor has noticed it.
    bool may_fetch() const noexcept {
        return own.phase() == phase::running && (shared == nullptr || shared->phase() == phase::running);
    }
    // The later of the two phases. The shared lifecycle takes the worker as far as the drain.
    ojs::phase effective_phase() const noexcept {
        const ojs::phase self = own.phase();
        if (self >= phase::draining || shared == nullptr) return self;
        const ojs::phase other = shared->phase();
        return other >= phase::draining ? phase::draining : self < other ? other : self;
    }
    bool has_stop_begun() const noexcept { return effective_phase() >= phase::draining; }
    // The lifecycle that signals change.
    lifecycle& signalled() noexcept { return shared == nullptr ? own : *shared; }

    // time_point::max(): no drain. Set as soon as the drain begins, even before the supervisor has noticed it.
    time_point drain_deadline() const noexcept {
        const time_point known = drain_deadline_.load(memory_order::acquire);
        if (known != time_point::max() || !has_stop_begun()) return known;
        const lifecycle& began = own.phase() >= phase::draining ? own : *shared;
        return begin_drain(lifecycle::changed_at(began.state()));
    }
    // Returns when the drain ends.
    time_point begin_drain(time_point begun_at) const noexcept {
        time_point known = time_point::max();
        const time_point ends = grace_period_ == no_limit ? known : begun_at + grace_period_;
        return drain_deadline_.compare_exchange_strong(known, ends) ? ends : known;
    }

    lifecycle own;
    lifecycle* const shared;

  private:
    const std::chrono::milliseconds grace_period_;
    mutable atomic<time_point> drain_deadline_{time_point::max()};
};

// The queues that a worker does not fetch from. A resume of its lifecycle (SIGCONT) resumes them too. Thread-safe.
class paused_queues {
  public:
    paused_queues(const std::vector<std::string>& all, const lifecycle& life)
        : all_(all), life_(life), paused_in_epoch_(all.size()) {}

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

    // Changes whenever open() does. 0 until the first pause: an earlier resume changes nothing.
    std::uint32_t version() const noexcept {
        const std::uint32_t changes = changes_.load();
        return changes == 0 ? 0 : changes + life_.resume_requests();
    }
    std::vector<std::string> open() const {
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
    mutable mutex mutex_;
    array<std::uint64_t> paused_in_epoch_;  // per queue: current_epoch() when it was paused; 0: not paused
    atomic<std::uint32_t> changes_{0};
};

// Measures how long the backend does not respond. Thread-safe.
class outage_watch {
  public:
    // A request sent at `sent_at` got no response. Not counted if the backend has responded to another one since.
    void note_failure(time_point sent_at) {
        const unique_lock held(mutex_);
        if (last_response_at_ < sent_at) began_at_ = detail::min(began_at_, sent_at);
    }
    // Returns, once after an outage, how long it was; else 0.
    steady_clock::duration note_response(time_point now) {
        const unique_lock held(mutex_);
        last_response_at_ = detail::max(last_response_at_, now);
        const time_point began_at = detail::exchange(began_at_, never);
        return began_at == never ? steady_clock::duration() : now - began_at;
    }

  private:
    mutex mutex_;
    time_point began_at_ = never;  // without an outage
    time_point last_response_at_ = time_point::min();
};

// The request failed without a response of the backend; that of a proxy counts as none.
constexpr bool is_unanswered(const error& failure) noexcept {
    return failure.code == errc::unreachable || failure.code == errc::disconnected ||
           failure.code == errc::timed_out || (failure.http_status >= 502 && failure.http_status <= 504);
}

class backend_calls {
  public:
    explicit backend_calls(ojs::transport* given) : transport(given) {}

    // Makes every call to the transport. None begins once `calls` is closed: nothing follows the last heartbeat,
    // and the transport's owner can wait until no thread is in it.
    template <class Call>
    auto call(Call request) -> decltype(request(std::declval<ojs::transport&>())) {
        const user_call entered(calls);
        if (!entered) return error{errc::cancelled, 0, "the worker has stopped"};
        if (owner != fork_generation()) return error{errc::cancelled, 0, "the job is the parent process's"};
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

    outage_watch outage;
    ojs::transport* transport;  // set before any thread starts, like the next
    std::uint32_t owner = 0;    // the process that started the worker
    drain_barrier calls;
    cancel_source connected;
};

// The user's callbacks, hooks and parts. Not called once the worker is destroyed.
class user_code {
  public:
    explicit user_code(const logger& log) : log_(log) {}
    user_code(const user_code&) = delete;
    user_code& operator=(const user_code&) = delete;
    ~user_code() { delete_parts(); }

    // Calls on_transition or on_stuck_job.
    template <class Callback>
    void call_back(const char* message_if_thrown, Callback call) {
        const user_call entered(callbacks);
        if (entered) guard(message_if_thrown, call);
    }
    // Calls each part, on a thread that may outlive the worker.
    template <class Call>
    void notify_parts(Call call) {
        if (parts.empty()) return;
        const user_call entered(callbacks);
        if (entered) for_each_part(call);
    }
    // The same on the supervising thread.
    template <class Call>
    void for_each_part(Call call) {
        for (worker_part* part : parts) guard("a worker part threw; ignored", [&] { call(*part); });
    }
    template <class Call>
    void guard(const char* message_if_thrown, Call call) {
        try {
            call();
        } catch (...) {
            attempt(
                [&] { log_.write(log_level::error, message_if_thrown, {field("error", thrown_text())}); });
        }
    }
    void delete_parts() noexcept {
        for (worker_part* part : parts) delete part;
        parts.clear();
    }
    // Returns `log` with a hook that writes to standard error once the worker is destroyed.
    log_options with_gated_hook(const log_options& log) {
        log_options out = log;
        if (!out.hook) return out;
        out.hook = [this, &log](const log_record& record) {
            const user_call entered(callbacks);
            if (entered) return log.hook(record);
            log_options without_hook;
            without_hook.format = log.format;
            logger(without_hook, record.component, record.worker_id).write(record);
        };
        return out;
    }

    drain_barrier callbacks;    // entered by the supervising thread, and for every call from another thread
    array<worker_part*> parts;  // made before any thread starts
    std::size_t running_parts = 0;  // those that were not stopped

  private:
    const logger& log_;
};

// Lives as long as the last thread that uses it.
class worker_context : public ref_counted {
  public:
    explicit worker_context(worker_options given, ojs::transport* given_transport, lifecycle* shared)
        : options(std::move(given)),
          user(log),
          log(user.with_gated_hook(options.log), "worker"),
          backend(given_transport),
          stage(options, shared),
          beats(options.heartbeat_interval) {}

    // Returns a ticket of `claims`. The last one ends the drain.
    void leave(drain_barrier::ticket& ticket) {
        if (ticket.leave() || (!user.parts.empty() && is_drained())) supervisor.notify();
    }
    // Nothing is in flight, and no FETCH follows. In this order, because a FETCH takes a ticket first.
    bool is_drained() const noexcept { return !stage.may_fetch() && claims.count() == 0; }

    // For each FETCH, heartbeat, ACK and FAIL: logs the end of an outage.
    template <class T>
    void note_response(const result<T>& response, time_point sent_at) {
        if (!response && is_unanswered(response.error())) return backend.outage.note_failure(sent_at);
        if (!response && response.error().http_status == 0) return;  // it may not have been sent
        const auto outage = backend.outage.note_response(steady_clock::now());
        if (outage.count() == 0) return;
        const auto outage_ms = std::chrono::duration_cast<std::chrono::milliseconds>(outage).count();
        attempt(
            [&] { log.write(log_level::info, "backend reachable again", {field("outage_ms", outage_ms)}); });
    }

    // For threads that run no jobs: the transports, hooks and callbacks that they call may need much stack.
    thread_options service_thread(const char* name) const noexcept {
        thread_options out;
        out.stack_size = options.thread_stack_size;
        out.min_stack_size = 256 * 1024;
        out.name = name;
        return out;
    }

    const worker_options options;
    user_code user;
    logger log;  // replaced by one with the worker's id before any thread starts
    backend_calls backend;
    worker_stage stage;
    beat_schedule beats;
    paused_queues queues{options.queues, stage.own};
    wake supervisor;

    drain_barrier cancel_callbacks;  // entered by the threads that call those of jobs
    drain_barrier claims;            // every FETCH in flight and every claimed job holds a ticket
    atomic<int> fetches{0};          // in flight, or with jobs not yet in the table
    atomic<int> fetch_pauses{0};
    job_table jobs;
    atomic<bool> stopped_stuck{false};  // by stuck_action::stop
    job_tally tally{jobs};
    report_limits reports;

    // Set once, before any thread starts.
    worker_identity identity;
    std::vector<std::string> job_types;
    std::chrono::milliseconds steps_timeout{0};  // the sum of the timeouts of on_shutdown() steps
    bool owns_process = false;                   // run() may end the process if a handler is stuck
    transport_ref owned_transport;  // null: the caller's is used; last, as its destructor may log
};

// transport::confirm_claim() for the latest claim of a job.
inline result<bool> query_claim(worker_context& worker, const active_job& job, time_point deadline) {
    return worker.backend.call([&](ojs::transport& transport) {
        return transport.confirm_claim(
            {&worker.identity, job.job.id, [&worker] { return !worker.beats.has_last_begun(); },
             job.latest_attempt()},
            deadline);
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

}  // namespace ojs::detail
