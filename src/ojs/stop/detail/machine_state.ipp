// machine_state: what a loop or a worker shares with its threads and its extensions, below one mutex.
#pragma once

#include <unistd.h>

#include <cstdio>

#include "../../core/cancel_token.ipp"
#include "../../core/shutdown_sequence.ipp"
#include "../job.hpp"
#include "../stoppable.hpp"
#include "machine_threads.ipp"
#include "process.ipp"
#include "stop_phase.ipp"

namespace ojs::detail {
struct cancellable : ref_counted {
    explicit cancellable(split_source source) : cancel(std::move(source)) {}
    split_source cancel;
};
struct work : cancellable {
    work(ojs::job&& claimed, split_source source, time_point claimed_at = steady_clock::now())
        : cancellable(std::move(source)), job(std::move(claimed)), since(claimed_at) {}

    // Not by a stop. The machine's mutex is held.
    bool cancel_alone(cancel_reason reason) {
        if (!cancel.request(reason)) return false;
        cancelled_at = steady_clock::now();
        return true;
    }

    const ojs::job job;  // of an item: id and queue
    const time_point since;
    // Guarded by the machine's mutex.
    time_point cancelled_at = never;  // alone
    bool is_over = false;             // in the account: nothing waits for it any more
    bool is_stuck = false;            // logged: has ignored its cancellation
};
using work_list = array<ref<work>>;

inline void remove_work(work_list& list, const work& gone) noexcept {
    for (std::size_t i = 0; i < list.size(); ++i) {
        if (list[i].get() == &gone) return static_cast<void>(list.remove(i));
    }
}
inline std::vector<std::string> ids_of(const work_list& list) {
    std::vector<std::string> out;
    for (const ref<work>& each : list) out.push_back(each->job.id);
    return out;
}
inline std::string join_names(const std::vector<std::string>& names, std::size_t max = 20) {
    std::string out;
    for (std::size_t i = 0; i < names.size() && i < max; ++i) append(out, {i == 0 ? "" : ",", printable(names[i], 80)});
    return names.size() > max ? cat({out, ",... ", names.size() - max, " more"}) : out;
}

// "worker_" and a UUIDv7: unique, and sortable by start time.
inline std::string make_worker_id() {
    const auto millis = static_cast<unsigned long long>(wall_clock_ms());
    const unsigned long long random[] = {random_number(), random_number()};
    char text[64];
    std::snprintf(text, sizeof text, "worker_%08llx-%04llx-7%03llx-%04llx-%012llx", millis >> 16 & 0xffffffff,
                  millis & 0xffff, random[0] & 0xfff, (random[0] >> 16 & 0x3fff) | 0x8000, random[1] & 0xffffffffffff);
    return text;
}

template <class Options>
struct held_options {
    explicit held_options(Options&& given)
        : options((given.termination_mode_file = absolute_path(given.termination_mode_file), std::move(given))) {}
    const Options options;
};

// Lives as long as the last of its threads.
class machine_state : public ref_counted {
  public:
    machine_state(const loop_options& given, const char* name, lifecycle* followed)
        : settings(given), component(name), phases(given, followed), threads(*this, guard, given, waker) {
        log = logger(gated_log(), component);
    }

    template <class Code>
    auto locked(Code code) const -> decltype(code()) {
        const unique_lock held(guard);
        return code();
    }
    // Nothing is in flight, and nothing follows.
    bool is_drained() const noexcept {
        return locked([this] { return !phases.may_take() && in_flight.empty() && !may_come(); });
    }
    std::size_t active() const noexcept {
        return locked([this] { return in_flight.size(); });
    }
    work_list works(bool and_unreturned = false) const {
        const unique_lock held(guard);
        work_list out = in_flight;
        for (const ref<work>& each : and_unreturned ? unreturned : work_list()) out.push_back(each);
        return out;
    }
    worker_report report() const {
        const unique_lock held(guard);
        worker_report out = counts;
        for (const work_list* const list : {&in_flight, &unreturned}) {
            for (const ref<work>& each : *list)
                if (each->is_stuck) out.stuck.push_back(each->job.id);
        }
        return out;
    }
    std::uint64_t unreported() const noexcept {
        return locked([this] { return not_reported; });
    }
    cancel_token taking(std::size_t which = 0) const {
        return locked([&] { return takings_[which]->cancel.token(); });
    }

    // In a child of the process that has started it: threads and mutex are the parent's.
    bool is_forked() const noexcept { return owner_ != 0 && owner_ != this_process(); }
    // It runs in this process, and names itself anew.
    result<void> claim_process() {
        fill_standard_descriptors();
        result<ojs::detail::wake> made = ojs::detail::wake::create();
        if (!made) return made.error();
        const unique_lock held(guard);
        waker = std::move(*made);
        owner_ = this_process();
        identity.worker_id = settings.worker_id.empty() ? make_worker_id() : settings.worker_id;
        char host[256] = "";
        if (gethostname(host, sizeof host - 1) == 0) identity.hostname = host;
        identity.pid = getpid();
        identity.concurrency = settings.concurrency;
        identity.started_at = utc_text();
        log = logger(gated_log(), component, identity.worker_id);
        return {};
    }
    // Not once the worker is destroyed.
    template <class Code>
    void call_user(const char* message_if_thrown, Code code, std::string_view extension = {}) {
        try {
            const user_call entered(callbacks);
            if (entered) code();
        } catch (...) {
            log.write(log_level::error, message_if_thrown,
                      {field("extension", extension), field("error", thrown_text())});
        }
    }
    template <class Code>
    void call_extensions(Code code) {
        for (std::size_t i = 0; i < extensions.size(); ++i)
            call_user(
                "a worker extension threw; ignored", [&] { code(*extensions[i]); }, settings.extensions[i].name);
    }
    void notify_settled(const work& one, std::string_view type, settled_state state) {
        if (extensions.empty()) return;
        const job_settlement settled{one.job.queue, type, state, steady_clock::now() - one.since};
        call_extensions([&](worker_extension& extension) { extension.on_job_settled(settled); });
    }
    void deliver_cancellation(cancellable& target) {
        target.cancel.wake_waiters();
        if (!target.cancel.has_pending_callbacks()) return;
        threads.post(task_kind::callback, [this, of = ref<cancellable>(&target)] {
            const user_call entered(cancel_callbacks);
            of->cancel.run_callbacks();
        });
    }

    const loop_options& settings;
    const char* const component;  // of the log: "loop", "worker"
    logger log;                   // replaced by one with the worker's id before any thread starts
    drain_barrier callbacks;      // entered by the turning thread, and for each call of user code by another
    stop_phase phases;
    ojs::detail::wake waker;         // of the turning thread
    drain_barrier cancel_callbacks;  // entered for those of works

    // Set before any thread starts.
    array<ref<worker_extension>> extensions;
    shutdown_sequence steps;
    worker_identity identity;
    std::vector<std::string> job_types;  // that have a handler
    std::string backend_url;             // without credentials; empty: none
    milliseconds steps_timeout{0};       // of on_shutdown(), all together
    bool owns_process = false;           // run() may end it if a handler is stuck

    split_source stopped;  // once it has ended
    atomic<int> exit_code{exit_status::usage};
    atomic<bool> is_connected{true};  // of a worker: the backend has responded

    mutable mutex guard;  // never held during a request, a callback or a log line
    condition changed;    // of a phase; a response; the end
    machine_threads threads;

    bool is_started = false;  // guarded, like the rest
    bool has_ended = false;
    std::size_t fetches = 0;        // of a worker: in flight, or with jobs not yet among those in flight
    work_list in_flight;            // in the order of their claims
    work_list unreturned;           // reported, but their handlers have not returned
    worker_report counts;           // without `stuck`
    const char* done_by = nullptr;  // max_jobs or exit_when_idle: stop once nothing is in flight
    std::uint64_t not_reported = 0;
    time_point all_cancelled_at = never;
    time_point next_check = never;  // of what is in flight: timeouts, and what is stuck

    // ---- with the guard held ----

    virtual bool may_come() const noexcept = 0;                                         // work, from a FETCH in flight
    virtual bool is_idle() const noexcept { return in_flight.empty() && !may_come(); }  // then a drain ends
    virtual void retry_reports() {}  // ends the waits for the next try
    void add(const ref<work>& added) {
        in_flight.push_back(added);
        ++counts.claimed;
    }
    void count_unreported(std::string_view name) {
        constexpr std::size_t max_names = 10000;  // a backend that sends many must not grow the worker
        ++not_reported;
        if (counts.unreported.size() < max_names) counts.unreported.emplace_back(name);
    }
    // True: from now on it is. False: it is to be checked again then.
    bool gets_stuck(work& one, time_point now, bool is_running = true) noexcept {
        const time_point cancelled = min(one.cancelled_at, all_cancelled_at);
        if (one.is_stuck || cancelled == never) return false;
        const time_point stuck_at = cancelled + settings.stuck_after;
        if (now < stuck_at) next_check = min(next_check, stuck_at);
        one.is_stuck = now >= stuck_at && is_running;
        return one.is_stuck;
    }
    void check_soon(time_point when) noexcept {
        if (when >= next_check) return;
        next_check = when;
        waker.notify();
    }
    void notify_if_idle() const noexcept {
        if (in_flight.empty() && (done_by != nullptr || !phases.may_take())) waker.notify();
    }

    split_source new_member() const { return group_.member(); }

  protected:
    ref<cancellable> make_taking() { return make_ref<cancellable>(new_member()); }

    split_source group_;                              // of all works: one store cancels them
    array<ref<cancellable>> takings_{make_taking()};  // guarded; end with the next quiet; after the first, of consumers

  private:
    // Its hook writes to standard error once the worker is destroyed.
    log_options gated_log() {
        log_options out = settings.log;
        if (!out.hook) return out;
        out.hook = [this](const log_record& record) {
            const user_call entered(callbacks);
            if (entered) return settings.log.hook(record);
            logger({settings.log.level, settings.log.format, {}}, record.component, record.worker_id).write(record);
        };
        return out;
    }

    atomic<pid_t> owner_{0};  // the process that has started it; 0: none yet
};
}  // namespace ojs::detail
