// loop_context: what a loop or a worker shares with the stop machine, the log and its extensions.
#pragma once

#include <unistd.h>

#include <cstdio>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/light.hpp"
#include "../../core/detail/wake.hpp"
#include "../loop_options.hpp"
#include "user_code.ipp"

namespace ojs::detail {

// The phase of a loop or a worker: its own lifecycle, and a shared one that it may follow.
class loop_stage {
  public:
    loop_stage(const loop_options& options, lifecycle* shared_lifecycle)
        : own(shared_lifecycle == nullptr ? options.signal_debounce : std::chrono::milliseconds(0)),
          shared(shared_lifecycle == nullptr ? idle_ : *shared_lifecycle),
          grace_period_(options.times.shutdown_grace_period) {
        own.set_first_signal_wins(shared_lifecycle == nullptr && options.dialect.first_signal_wins);
    }

    // False from the moment of a stop or quiet, even before the supervisor has noticed it.
    bool may_fetch() const noexcept {
        return own.phase() == phase::running && shared.phase() == phase::running;
    }
    // The later of the two phases. The shared lifecycle takes it as far as the drain.
    ojs::phase effective_phase() const noexcept {
        const ojs::phase self = own.phase();
        if (self >= phase::draining) return self;
        const ojs::phase other = shared.phase();
        return other >= phase::draining ? phase::draining : self < other ? other : self;
    }
    bool has_stop_begun() const noexcept { return effective_phase() >= phase::draining; }
    // Notifies the descriptor of each change. False: too many follow the shared lifecycle.
    bool subscribe(int fd) noexcept { return own.subscribe(fd) && shared.subscribe(fd); }
    void unsubscribe(int fd) noexcept {
        own.unsubscribe(fd);
        shared.unsubscribe(fd);
    }
    // The lifecycle that signals change.
    lifecycle& signalled() noexcept { return &shared == &idle_ ? own : shared; }

    // time_point::max(): no drain. Set as soon as the drain begins, even before the supervisor has noticed it.
    time_point drain_deadline() const noexcept {
        const time_point known = drain_deadline_.load(memory_order::acquire);
        if (known != time_point::max() || !has_stop_begun()) return known;
        const lifecycle& began = own.phase() >= phase::draining ? own : shared;
        return begin_drain(lifecycle::changed_at(began.state()));
    }
    // The first call sets when the drain ends; each returns that.
    time_point begin_drain(time_point begun_at) const noexcept {
        time_point known = time_point::max();
        const time_point ends = grace_period_ == no_limit ? known : begun_at + grace_period_;
        return drain_deadline_.compare_exchange_strong(known, ends) ? ends : known;
    }

    lifecycle own;
    lifecycle& shared;  // the one that it follows; without one, `idle_`

  private:
    lifecycle idle_;  // never changes
    const std::chrono::milliseconds grace_period_;
    mutable atomic<time_point> drain_deadline_{time_point::max()};
};

// "worker_" and a UUIDv7: unique, and sortable by start time.
inline std::string make_worker_id() {
    const auto millis = static_cast<unsigned long long>(wall_clock_ms());
    const unsigned long long random[] = {random_number(), random_number()};
    char text[64];
    std::snprintf(text, sizeof text, "worker_%08llx-%04llx-7%03llx-%04llx-%012llx", millis >> 16 & 0xffffffff,
                  millis & 0xffff, random[0] & 0xfff, (random[0] >> 16 & 0x3fff) | 0x8000,
                  random[1] & 0xffffffffffff);
    return text;
}

// A base before loop_context, which uses them.
template <class Options>
struct held_options {
    const Options options;
};

// Lives as long as the last thread that uses it.
class loop_context : public ref_counted {
  public:
    loop_context(const loop_options& given, const char* component, lifecycle* shared)
        : settings(given), user(log), stage(given, shared) {
        log = logger(user.with_gated_hook(given.log), component);
    }

    virtual std::size_t active() const noexcept = 0;  // claimed and not settled
    // Calls `visit` with each active job and the time of its claim, outside of locks.
    virtual void visit_active(const function<void(const job&, time_point)>& visit) const = 0;
    virtual worker_report report() const = 0;
    virtual std::uint64_t unreported() const noexcept = 0;
    virtual bool connected() const noexcept { return true; }

    // Nothing is in flight, and nothing follows. In this order, because a ticket is taken first.
    virtual bool is_drained() const noexcept { return !stage.may_fetch() && claims.count() == 0; }

    // Before any thread starts.
    void identify(const char* component, std::vector<std::string> secrets) {
        identity.worker_id = settings.worker_id.empty() ? make_worker_id() : settings.worker_id;
        char host[256] = "";
        if (gethostname(host, sizeof host - 1) == 0) identity.hostname = host;
        identity.pid = getpid();
        identity.concurrency = settings.concurrency;
        identity.started_at = utc_timestamp();
        secrets.push_back(settings.health_token);
        log = logger(user.with_gated_hook(settings.log), component, identity.worker_id, std::move(secrets));
    }

    // For threads that run no jobs: the transports, hooks and callbacks that they call may need much stack.
    thread_options service_thread(const char* name) const noexcept {
        thread_options out;
        out.stack_size = settings.thread_stack_size;
        out.min_stack_size = 256 * 1024;
        out.name = name;
        return out;
    }

    const loop_options& settings;
    logger log;  // replaced by one with the worker's id before any thread starts
    user_code user;
    loop_stage stage;
    wake supervisor;
    drain_barrier claims;               // what is taken or being taken holds a ticket
    atomic<int> fetches{0};             // FETCHes in flight, or with jobs not yet in the table
    atomic<bool> stopped_stuck{false};  // by stuck_action::stop

    // Set once, before any thread starts.
    worker_identity identity;
    std::vector<std::string> job_types;
    std::string backend_url;                     // without credentials; empty: none
    std::chrono::milliseconds steps_timeout{0};  // the sum of the timeouts of on_shutdown() steps
    bool owns_process = false;                   // run() may end the process if a handler is stuck
};

}  // namespace ojs::detail
