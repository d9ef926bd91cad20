// lifecycle: where a process stands between running and terminated, in one word.
//
// Every event (a signal, a directive, a call) goes through one table, see transition_for() below, and is applied to
// one lock-free 64-bit atomic by compare-exchange, so it can be applied in a signal handler. [GS 4, 5]
#pragma once

#include <chrono>
#include <cstdint>

#include "../base/detail/light.hpp"
#include "../base/duration.hpp"

namespace ojs {
inline namespace v0_1_0 {

enum class phase : std::uint8_t {
    running,    // fetches and works
    quiet,      // fetches nothing, works on; the only phase that can go back
    draining,   // waits for jobs in flight, at most the grace period
    stopping,   // interrupts and reports what is left
    terminated  // all done
};
inline constexpr int phase_count = 5;

enum class event : std::uint8_t {
    stop_signal,     // SIGTERM, SIGINT, ... [signal_options::stop_signals]
    stop_request,    // directive `terminate`, stop(), RPC Shutdown
    quiet_request,   // SIGTSTP, directive `quiet`, quiet()
    resume_request,  // SIGCONT, resume(); never a directive
    reclaim,         // SIGUSR1, where the spot policy is on
    cancel_request,  // stop_and_cancel()
    grace_expired,   // the drain took longer than the grace period
    drained,         // the last job in flight is settled
    finished,        // everything is reported
    report_request,  // SIGTTIN: changes nothing; whoever follows the lifecycle says what it is doing
    mode_reclaim     // the termination-mode file says that the stop under way is a reclaim
};
inline constexpr int event_count = 11;

// How the stop goes about jobs in flight. Only ever rises.
enum class stop_mode : std::uint8_t { graceful, forced, reclaim };

enum class cause_kind : std::uint8_t { none, signal, directive, api, rpc };

// Who asked.
struct cause {
    cause_kind kind = cause_kind::none;
    int signal = 0;  // its number; 0 for anything else. signals::last_received() says who sent it.
};

// One cell of the event table: what an event does in a phase. By default, nothing.
struct transition {
    bool moves = false;  // to the phase `next`
    phase next = phase::running;
    stop_mode mode = stop_mode::graceful;  // the mode afterwards, if that is higher than now
    bool cancels = false;                  // jobs in flight are asked to return at once
    bool third_exits = false;              // from the third stop signal on: exit at once with 128+n
};

namespace detail {
namespace cells {
inline constexpr transition none{};
inline constexpr transition quiet{true, phase::quiet};
inline constexpr transition resume{true, phase::running};
inline constexpr transition drain{true, phase::draining};
inline constexpr transition force{true, phase::stopping, stop_mode::forced};
inline constexpr transition escalate{false, phase::stopping, stop_mode::forced, false, true};
inline constexpr transition reclaim{true, phase::stopping, stop_mode::reclaim};
inline constexpr transition cancel{true, phase::stopping, stop_mode::graceful, true};
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
    /* cancel_request */ {cancel,  cancel,  cancel,  none,     none},
    /* grace_expired  */ {none,    none,    stop,    none,     none},
    /* drained        */ {none,    none,    stop,    none,     none},
    /* finished       */ {none,    none,    none,    end,      none},
    /* report_request */ {none,    none,    none,    none,     none},
    /* mode_reclaim   */ {none,    none,    reclaim, none,     none},
};
// clang-format on
}  // namespace cells
}  // namespace detail

// The event table: what `what` does in phase `now`. Everything that ever changes a lifecycle is in it.
constexpr const transition& transition_for(ojs::event event, ojs::phase phase) noexcept {
    return detail::cells::table[static_cast<int>(event)][static_cast<int>(phase)];
}

// The word, unpacked.
struct lifecycle_state {
    ojs::phase phase = ojs::phase::running;
    stop_mode mode = stop_mode::graceful;
    event last_event = event::finished;  // what changed it last; meaningless while sequence is 0
    ojs::cause cause;                    // who asked for that
    bool cancel_requested = false;       // stop_and_cancel() was called
    bool exit_now = false;               // the third stop signal came
    unsigned stop_signals = 0;           // stop signals counted so far, at most 3
    std::uint8_t sequence = 0;     // changes so far, modulo 256; next_change() does not rely on it alone
    std::uint32_t changed_ms = 0;  // when, in milliseconds of the steady clock modulo 2^32
};

// "running", "quiet", ... Never null. Thread-safe, async-signal-safe.
const char* to_string(phase value) noexcept;
const char* to_string(event value) noexcept;
const char* to_string(stop_mode value) noexcept;
const char* to_string(cause_kind value) noexcept;

class lifecycle {
  public:
    // Two stop signals closer together than `repeat_signal_gap` are one stop event: some supervisors and
    // runtimes send each one twice.
    explicit lifecycle(std::chrono::milliseconds repeat_signal_gap = std::chrono::milliseconds(250)) noexcept;
    lifecycle(const lifecycle&) = delete;
    lifecycle& operator=(const lifecycle&) = delete;

    // Applies one event. Returns whether it changed anything. Thread-safe, async-signal-safe, keeps errno.
    bool apply(ojs::event event, ojs::cause cause) noexcept;

    // Thread-safe, async-signal-safe. Both are sequentially consistent with apply(): who announces work before it looks
    // at the phase, as drain_barrier::enter() does, and finds it running, is seen by everyone who knows it is over.
    ojs::phase phase() const noexcept { return static_cast<ojs::phase>(word_.load() & 7U); }
    lifecycle_state state() const noexcept;

    // How often resume was asked for, also where it changed nothing: a worker that follows this lifecycle may have
    // been quieted by itself. Thread-safe, async-signal-safe.
    std::uint32_t resume_requests() const noexcept { return resume_requests_.load(); }
    // The same for report_request.
    std::uint32_t report_requests() const noexcept { return report_requests_.load(); }

    void set_repeat_signal_gap(std::chrono::milliseconds gap) noexcept;
    // The first stop signal or reclaim decides; later ones change nothing: none forces the stop, none ends it. A stop
    // signal that finds a drain nobody signalled lets that go on, and is noted as its cause. [Spot]
    void set_first_signal_wins(bool enabled) noexcept {
        first_signal_wins_.store(enabled, detail::memory_order::relaxed);
    }

    // Writes to `notify_fd` (8 bytes, an eventfd or a pipe) after every change, until unsubscribe() returns, which
    // waits for the writes under way alone. False when all 16 places are taken. Thread-safe.
    bool subscribe(int notify_fd) noexcept;
    void unsubscribe(int notify_fd) noexcept;

    // In the child of a fork(): forgets notifications that other threads had under way. Async-signal-safe.
    void after_fork() noexcept;

    // Moves `seen`, which begins as lifecycle_state() or as a state(), on to the change after it; false when there is
    // none yet. A reader that falls more than 15 changes behind misses the oldest, but never where they led to: it ends
    // at state(). Waits for no writer. Thread-safe for one `seen` a thread.
    bool next_change(lifecycle_state& seen) const noexcept;

    // The steady-clock moment of a state's `changed_ms`, right for states younger than 24 days.
    static time_point changed_at(const lifecycle_state& state) noexcept;

  private:
    using word = std::uint64_t;
    static constexpr int history_size = 16;
    static constexpr int max_subscribers = 16;
    static_assert(detail::atomic<word>::is_always_lock_free,
                  "a signal handler needs a lock-free 64-bit atomic");
    static_assert(detail::atomic<int>::is_always_lock_free, "a signal handler needs a lock-free int");

    struct subscriber {
        static constexpr int none = -1;
        static constexpr int leaving = -2;  // until `writers` is 0
        detail::atomic<int> fd{none};
        detail::atomic<int> writers{0};  // notifications under way
    };

    bool next_state(lifecycle_state& state, ojs::event event, ojs::cause cause) const noexcept;
    bool repeats_last_signal(const lifecycle_state& state, std::uint32_t now_ms) const noexcept;
    bool replace(word& current, word next) noexcept;
    void notify_subscribers() noexcept;

    detail::atomic<word> word_;
    detail::atomic<std::uint32_t> repeat_gap_ms_;
    detail::atomic<bool> first_signal_wins_{false};
    detail::atomic<std::uint32_t> last_stop_signal_ms_{0};
    detail::atomic<std::uint32_t> resume_requests_{0};
    detail::atomic<std::uint32_t> report_requests_{0};
    detail::atomic<word> history_[history_size] = {};
    subscriber subscribers_[max_subscribers];
};

}  // namespace v0_1_0
}  // namespace ojs
