// lifecycle: the phase of a process between running and terminated, in one word. [GS 4, 5]
#pragma once

#include <chrono>
#include <cstdint>

#include "../base/detail/light.hpp"
#include "../base/duration.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// What a process goes through, in this order.
enum class phase : std::uint8_t {
    running,   ///< fetches jobs and runs them
    quiet,     ///< fetches nothing, runs what it has; only quiet can go back, to running
    draining,  ///< waits for jobs in flight, up to the grace period
    stopping,  ///< interrupts and reports the remaining jobs
    terminated
};

/// What changes a lifecycle. `cancel_request`: stop_and_cancel(); `report_request`, SIGTTIN: followers log the jobs in
/// flight. The library applies `grace_expired`, `drained`, `finished` and `mode_reclaim` (the termination-mode file).
enum class event : std::uint8_t {
    stop_signal,     ///< SIGTERM, SIGINT, ... [signal_options::stop_signals]
    stop_request,    ///< stop(), the backend's `terminate`, RPC Shutdown
    quiet_request,   ///< SIGTSTP, quiet(), the backend's `quiet`
    resume_request,  ///< SIGCONT, resume(); never the backend
    reclaim,         ///< SIGUSR1, if the spot policy is enabled
    cancel_request,
    grace_expired,
    drained,
    finished,
    report_request,
    mode_reclaim
};

/// How the stop treats jobs in flight. It only ever rises.
enum class stop_mode : std::uint8_t { graceful, forced, reclaim };

/// The kind of request; `directive`: the backend, by a heartbeat response.
enum class cause_kind : std::uint8_t { none, signal, directive, api, rpc };

/// What requested an event, with the signal.
struct cause {
    cause_kind kind = cause_kind::none;  ///< none: internal
    int signal = 0;                      ///< its number, else 0
};

namespace detail {
inline constexpr int phase_count = 5;
inline constexpr int event_count = 11;

// What an event does in a phase.
struct transition {
    bool moves = false;                    // changes the phase to `next`
    phase next = phase::running;           // meaningless unless `moves`
    stop_mode mode = stop_mode::graceful;  // raises the mode to this
};

namespace cells {
inline constexpr transition none{};
inline constexpr transition quiet{true, phase::quiet};
inline constexpr transition resume{true, phase::running};
inline constexpr transition drain{true, phase::draining};
inline constexpr transition force{true, phase::stopping, stop_mode::forced};
inline constexpr transition escalate{false, phase::stopping, stop_mode::forced};
inline constexpr transition reclaim{true, phase::stopping, stop_mode::reclaim};
inline constexpr transition stop{true, phase::stopping};
inline constexpr transition end{true, phase::terminated};

// clang-format off
inline constexpr transition table[event_count][phase_count] = {
    //                   running  quiet    draining stopping  terminated
    /* stop_signal    */ {drain,   drain,   force,   escalate, none},
    /* stop_request   */ {drain,   drain,   none,    none,     none},
    /* quiet_request  */ {quiet,   none,    none,    none,     none},
    /* resume_request */ {none,    resume,  none,    none,     none},
    /* reclaim        */ {reclaim, reclaim, reclaim, none,     none},
    /* cancel_request */ {stop,    stop,    stop,    none,     none},
    /* grace_expired  */ {none,    none,    stop,    none,     none},
    /* drained        */ {none,    none,    stop,    none,     none},
    /* finished       */ {none,    none,    none,    end,      none},
    /* report_request */ {none,    none,    none,    none,     none},
    /* mode_reclaim   */ {none,    none,    reclaim, none,     none},
};
// clang-format on
}  // namespace cells

struct lifecycle_access;
}  // namespace detail

/// A snapshot.
struct lifecycle_state {
    ojs::phase phase = ojs::phase::running;  ///< where it is
    stop_mode mode = stop_mode::graceful;    ///< how the stop treats jobs
    event last_event = event::stop_signal;   ///< the latest change; meaningless before the first
    ojs::cause cause;                        ///< what requested it
    bool cancel_requested = false;           ///< stop_and_cancel() was called
    unsigned stop_signals = 0;               ///< stop signals so far, counted up to 3: exit now
    std::uint8_t sequence = 0;               ///< changes so far, modulo 256
    std::uint32_t changed_ms = 0;            ///< steady-clock time of the latest change, modulo 2^32
};

/// The enumerator's name. Never null. Thread-safe, async-signal-safe.
inline const char* to_string(phase value) noexcept {
    return detail::name_of(value, {"running", "quiet", "draining", "stopping", "terminated"});
}
inline const char* to_string(event value) noexcept {
    return detail::name_of(
        value, {"stop_signal", "stop_request", "quiet_request", "resume_request", "reclaim", "cancel_request",
                "grace_expired", "drained", "finished", "report_request", "mode_reclaim"});
}
inline const char* to_string(stop_mode value) noexcept {
    return detail::name_of(value, {"graceful", "forced", "reclaim"});
}
inline const char* to_string(cause_kind value) noexcept {
    return detail::name_of(value, {"none", "signal", "directive", "api", "rpc"});
}

/// The state machine of a shutdown. Several workers may share one. Every member is thread-safe.
class lifecycle {
  public:
    /// Two stop signals within `signal_debounce` are one stop event: some supervisors send each one twice.
    explicit lifecycle(detail::any_ms signal_debounce = std::chrono::milliseconds(250)) noexcept {
        set_signal_debounce(signal_debounce);
    }

    /// True if it changed anything. Async-signal-safe, keeps errno.
    bool apply(ojs::event event, ojs::cause cause) noexcept;

    /// The phase. Async-signal-safe, sequentially consistent with apply(), see drain_barrier::enter().
    ojs::phase phase() const noexcept { return static_cast<ojs::phase>(word_.load() & 7U); }
    lifecycle_state state() const noexcept;  ///< a snapshot, with the guarantees of phase()
    /// The number of report requests. Async-signal-safe.
    std::uint32_t report_requests() const noexcept { return requests_[static_cast<int>(event::report_request)]; }

    void set_signal_debounce(detail::any_ms gap) noexcept;  ///< sets that of the constructor

    /// Writes 8 bytes to `notify_fd`, an eventfd or a pipe, after every change. False: all 16 slots are taken.
    bool subscribe(int notify_fd) noexcept;
    void unsubscribe(int notify_fd) noexcept;  ///< waits for writes in progress

  private:
    friend struct detail::lifecycle_access;
    using word = std::uint64_t;
    static_assert(detail::atomic<word>::is_always_lock_free, "a signal handler needs a lock-free 64-bit atomic");

    bool next_state(lifecycle_state& state, ojs::event event, ojs::cause cause) const noexcept;
    void notify_subscribers() noexcept;

    detail::atomic<word> word_{0};  // the state, packed
    detail::atomic<std::uint32_t> repeat_gap_ms_;
    detail::atomic<bool> first_signal_wins_{false};
    detail::atomic<std::uint32_t> last_stop_signal_ms_{0};
    detail::atomic<int> resume_signal_{0};
    detail::atomic<std::uint32_t> requests_[detail::event_count] = {};  // also of those that changed nothing
    detail::atomic<int> subscribers_[16] = {};                          // their descriptors plus 1; 0: free
    detail::atomic<int> notifiers_{0};                                  // threads that write to subscribers
};

namespace detail {
struct lifecycle_access {
    // Later ones change nothing; during a drain that no signal started, the first only becomes its cause. [Spot]
    static void set_first_signal_wins(lifecycle& target, bool enabled) noexcept { target.first_signal_wins_ = enabled; }
    // Counts those that changed nothing, too: a follower may be quiet by itself.
    static std::uint32_t requests(const lifecycle& in, event of) noexcept { return in.requests_[static_cast<int>(of)]; }
    // The signal of the latest resume request, 0 if that was a call.
    static int resume_signal(const lifecycle& target) noexcept { return target.resume_signal_; }
    static bool is_followed(const lifecycle& target) noexcept {
        bool out = false;
        for (const atomic<int>& each : target.subscribers_) out = out || each != 0;
        return out;
    }
    static std::uint32_t repeat_gap_ms(const lifecycle& target) noexcept { return target.repeat_gap_ms_; }
    // In the child of a fork(): the threads that were notifying are its parent's.
    static void after_fork(lifecycle& target) noexcept { target.notifiers_ = 0; }
};

// False: `seen` is the state already.
bool take_change(const lifecycle& from, lifecycle_state& seen) noexcept;
// Right for states younger than 24 days.
time_point changed_at(const lifecycle_state& state) noexcept;
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
