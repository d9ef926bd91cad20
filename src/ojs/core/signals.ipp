#pragma once

#include <errno.h>
#include <signal.h>
#include <string.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <time.h>
#include <unistd.h>

#include "../base/detail/light.hpp"
#include "../base/detail/proc.ipp"
#include "../base/detail/signal_names.ipp"
#include "../base/detail/sync.ipp"
#include "../base/detail/text.hpp"
#include "detail/wake.hpp"
#include "signals.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct signal_rule {
    int number;
    ojs::event event;
};

struct claimed_signal {
    atomic<std::uint64_t> last{0};  // the latest one, packed
    atomic<bool> installed{false};
    atomic<bool> known{false};  // the members below are set
    atomic<ojs::event> event{};
    struct sigaction previous {};
};

// All process-wide state. Constant-initialised: no handler sees it half-built. All zero: it takes no file space.
struct process_state {
    static constexpr std::size_t chain_size = 16;

    atomic<pid_t> claim{0};              // the process of the active installer; 0: none
    atomic<lifecycle*> target{nullptr};  // what the handler drives
    atomic<int> handlers_running{0};
    atomic<const siginfo_t*> chained[chain_size] = {};  // calls of foreign handlers in progress
    atomic<bool> fork_handler_set{false};
    atomic<std::uint64_t> last_stop{0};      // time of the last stop signal or reclaim; 0: none
    atomic<std::uint32_t> repeat_gap_ms{0};  // of the latest target, see is_repeated_stop()
    atomic<bool> third_signal_exits{false};
    atomic<int> exit_timer{0};  // its number plus 1; 0: none
    atomic<unsigned> turn{0};   // of the handlers of SIGTSTP, see signal_handlers
    // Written before the handler is installed, read by it and after fork.
    pid_t owner = 0;                            // the process that installed them
    const wake* unread = nullptr;               // a pipe of the signals that wait() has not returned, packed
    claimed_signal claimed[signal_limit] = {};  // by number
};
__attribute__((visibility("default"))) inline process_state process;

inline bool sent_by_process(const siginfo_t* info) noexcept {
    return info != nullptr && (info->si_code == SI_USER || info->si_code == SI_QUEUE
#ifdef SI_TKILL
                               || info->si_code == SI_TKILL
#endif
                              );
}

inline std::uint64_t pack_signal(int number, const siginfo_t* info) noexcept {
    const bool sender = sent_by_process(info);
    const std::uint64_t pid = sender ? static_cast<std::uint64_t>(info->si_pid) & 0xffffff : 0;
    const std::uint64_t uid = sender ? static_cast<std::uint32_t>(info->si_uid) : 0;
    return static_cast<std::uint64_t>(number) << 56 | pid << 32 | uid;
}

// Two threads may handle a SIGTSTP and the SIGCONT sent after it, the SIGCONT first: a thread may lose its processor
// after the kernel chose its handler and before that begins. So each SIGCONT gives SIGTSTP the next of these handlers,
// and a SIGTSTP that runs another one is older. (The kernel drops a SIGTSTP that no thread has taken yet.)
using signal_handler = void (*)(int, siginfo_t*, void*);
template <unsigned Turn>
void on_signal(int number, siginfo_t* info, void* context);
inline constexpr signal_handler signal_handlers[] = {
    on_signal<0>,  on_signal<1>,  on_signal<2>,  on_signal<3>, on_signal<4>,  on_signal<5>,
    on_signal<6>,  on_signal<7>,  on_signal<8>,  on_signal<9>, on_signal<10>, on_signal<11>,
    on_signal<12>, on_signal<13>, on_signal<14>, on_signal<15>};
inline constexpr unsigned signal_turns = sizeof signal_handlers / sizeof *signal_handlers;

inline bool is_ours(const struct sigaction& action) noexcept {
    bool out = false;
    for (const signal_handler each : signal_handlers) out = out || action.sa_sigaction == each;
    return out && (action.sa_flags & SA_SIGINFO) != 0;
}

// False: SIGTSTP is ignored, or the program has set its own handler.
inline bool read_quiet_action(struct sigaction& out) noexcept {
    return ::sigaction(SIGTSTP, nullptr, &out) == 0 && is_ours(out);
}

// For SIGCONT, before its event is applied; runs in signal context.
inline void start_next_turn() noexcept {
    struct sigaction action {};
    if (!read_quiet_action(action)) return;
    process.turn.fetch_add(1);
    unsigned turn = 0;
    do {  // another thread may set an earlier one meanwhile
        turn = process.turn.load();
        action.sa_sigaction = signal_handlers[turn % signal_turns];
        ::sigaction(SIGTSTP, &action, nullptr);
    } while (turn != process.turn.load());
}

// For SIGTSTP, after its event is applied: whether a SIGCONT came meanwhile; runs in signal context.
inline bool is_past(unsigned turn) noexcept {
    struct sigaction action {};
    return turn != process.turn.load() % signal_turns && read_quiet_action(action);
}

inline bool is_foreign(const struct sigaction& action) noexcept {
    return (action.sa_flags & SA_SIGINFO) != 0 ||
           (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

inline bool same_handler(const struct sigaction& a, const struct sigaction& b) noexcept {
    if ((a.sa_flags & SA_SIGINFO) != (b.sa_flags & SA_SIGINFO)) return false;
    return (a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction : a.sa_handler == b.sa_handler;
}

// False: no slot held `from`.
inline bool replace_chained(const siginfo_t* from, const siginfo_t* to) noexcept {
    for (atomic<const siginfo_t*>& slot : process.chained) {
        const siginfo_t* expected = from;
        if (slot.compare_exchange_strong(expected, to)) return true;
    }
    return false;
}

inline void call_previous(const struct sigaction& previous, int number, siginfo_t* info, void* context) {
    if (!is_foreign(previous) || info == nullptr) return;
    const bool recorded = replace_chained(nullptr, info);  // false (no free slot): a later call finds one
    const bool informed = (previous.sa_flags & SA_SIGINFO) != 0;
    informed ? previous.sa_sigaction(number, info, context) : previous.sa_handler(number);
    if (recorded) replace_chained(info, nullptr);
}

// steady_ms() with one bit always set, so that 0, none, is longer ago than any gap.
inline std::uint64_t stop_time() noexcept {
    return std::uint64_t{1} << 32 | steady_ms();
}

inline bool is_stop(ojs::event event) noexcept {
    return event == ojs::event::stop_signal || event == ojs::event::reclaim;
}

// Its times are two longs each.
inline constexpr long set_timer_call =
#if defined(SYS_timer_settime32)  // musl's name, where a long has 32 bits
    SYS_timer_settime32;
#elif defined(SYS_timer_settime)
    SYS_timer_settime;
#else
    -1;
#endif

// Runs in signal context: has the signal sent again in a second. No thread: the program may fork, or have none to spare.
inline void start_exit_timer([[maybe_unused]] int number) noexcept {
#ifdef SYS_timer_create
    // System calls: timer_create() is not async-signal-safe by POSIX, and may need -lrt.
    struct sigevent expiry {};
    expiry.sigev_notify = SIGEV_SIGNAL;
    expiry.sigev_signo = number;
    expiry.sigev_value.sival_ptr = &process;
    const long in_a_second[] = {0, 0, 1, 0};  // the kernel's itimerspec
    int timer = 0;
    if (::syscall(SYS_timer_create, CLOCK_MONOTONIC, &expiry, &timer) != 0) return;
    process.exit_timer = timer + 1;
    ::syscall(set_timer_call, timer, 0, in_a_second, nullptr);
#endif
}
inline void stop_exit_timer() noexcept {
#ifdef SYS_timer_delete
    if (const int timer = process.exit_timer.exchange(0)) ::syscall(SYS_timer_delete, timer - 1);
#endif
}

// Runs in signal context.
inline void handle_signal(claimed_signal& claimed, lifecycle& target, unsigned turn, int number,
                          siginfo_t* info, void* context) {
    if (number == SIGTTIN && !sent_by_process(info)) {
        raise(SIGSTOP);  // the default action: a background process reads the terminal
        return;
    }
    const bool is_timer =
        info != nullptr && info->si_code == SI_TIMER && info->si_value.sival_ptr == &process;
    const lifecycle_state before = target.state();
    const bool exits = process.third_signal_exits && before.exit_now;
    // Where nobody else ended the process in the second after the third stop signal.
    if (exits && (is_timer || steady_ms() - before.changed_ms >= 1000)) _exit(128 + before.cause.signal);
    if (is_timer) return;
    const std::uint64_t packed = pack_signal(number, info);
    claimed.last.store(packed);
    if (is_stop(claimed.event)) process.last_stop.store(stop_time());
    if (number == SIGCONT) start_next_turn();
    const bool changed = target.apply(claimed.event, {cause_kind::signal, number});
    if (number == SIGTSTP && is_past(turn))
        target.apply(event::resume_request, {cause_kind::signal, SIGCONT});
    if (changed && process.third_signal_exits && target.state().exit_now) start_exit_timer(number);
    process.unread->put(packed);
    call_previous(claimed.previous, number, info, context);
}

// Whether a stop signal repeats the last one, after the uninstallation.
inline bool is_repeated_stop(ojs::event event) noexcept {
    const std::uint64_t last = process.last_stop.load();
    return is_stop(event) && stop_time() - last < process.repeat_gap_ms.load();
}

// A handler that the program has set over ours stays.
inline void restore_previous(int number) noexcept {
    struct sigaction current {};
    if (process.claimed[number].installed.exchange(false) && ::sigaction(number, nullptr, &current) == 0 &&
        is_ours(current))
        ::sigaction(number, &process.claimed[number].previous, nullptr);
}

// Called without an installer of this process: in a child whose fork ran no atfork handlers (yet), or by a foreign
// handler that still chains to us. The signal has the effect it would have without us.
inline void deliver_without_us(const struct sigaction& previous, int number, siginfo_t* info, void* context) {
    struct sigaction current {};
    if (::sigaction(number, nullptr, &current) == 0 && is_ours(current)) {
        ::sigaction(number, &previous, nullptr);
        // Not raise(): after a raw fork, musl would signal the parent's thread.
        ::kill(getpid(), number);
    } else if (!same_handler(current, previous)) {  // else it is what called us
        call_previous(previous, number, info, context);
    }
}

inline void receive_signal(unsigned turn, int number, siginfo_t* info, void* context) {
    // A handler set over ours may call ours and be chained by our next installer: this ends the recursion.
    if (info != nullptr && replace_chained(info, info)) return;
    const int saved = errno;
    const pid_t self = ::getpid();
    process.handlers_running.fetch_add(1);  // sequentially consistent with ~signal_claim()
    claimed_signal& claimed = process.claimed[number > 0 && number < signal_limit ? number : 0];
    lifecycle* const target = process.target.load();
    const bool is_owner = self == process.owner;
    if (claimed.known && target != nullptr && is_owner) {
        handle_signal(claimed, *target, turn, number, info, context);
    } else if (claimed.known && !(is_owner && is_repeated_stop(claimed.event))) {
        deliver_without_us(claimed.previous, number, info, context);
    }
    // False in a child that a foreign handler has forked.
    if (::getpid() == self) process.handlers_running.fetch_sub(1);
    errno = saved;
}

template <unsigned Turn>
void on_signal(int number, siginfo_t* info, void* context) {
    receive_signal(Turn, number, info, context);
}

// In the child of a fork: installer and threads are the parent's, so signals regain their previous effect.
inline void forget_parent() noexcept {
    process.exit_timer.store(0);
    process.handlers_running.store(0);  // in threads that this process does not have
    for (atomic<const siginfo_t*>& slot : process.chained) slot.store(nullptr);
    if (lifecycle* const target = process.target.exchange(nullptr)) target->after_fork();
    for (int number = 1; number < signal_limit; ++number) restore_previous(number);
}

// Of the signals that `options` name: all for a new installer, else those without a handler. [GS 4.1]
inline array<signal_rule> rules_for(const signal_options& options, bool is_new) {
    array<signal_rule> out;
    const auto add = [&](int number, ojs::event event) {
        if (is_new || !process.claimed[number].installed) out.push_back({number, event});
    };
    for (const int number : options.stop_signals) {
        struct sigaction found {};
        const bool is_reload = number == SIGHUP && !options.chain_foreign &&
                               ::sigaction(number, nullptr, &found) == 0 && is_foreign(found) &&
                               !is_ours(found);
        if (!is_reload) add(number, event::stop_signal);
    }
    add(SIGTSTP, event::quiet_request);
    add(SIGCONT, event::resume_request);
    add(SIGTTIN, event::report_request);
    if (options.reclaim) add(SIGUSR1, event::reclaim);
    return out;
}

inline error signal_error(const char* problem, int number) {
    const int failed = errno;
    return {errc::system, failed, cat({problem, signal_name(number), ": ", errno_text(failed)})};
}

// Installs the handler for each rule and unblocks its signal. Ignored signals stay so and are appended to `ignored`.
inline result<void> install_handlers(const array<signal_rule>& rules, std::vector<int>& ignored) {
    struct sigaction action {};
    action.sa_sigaction = signal_handlers[process.turn.load() % signal_turns];
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int number = 1; number < signal_limit; ++number) {
        if (process.claimed[number].known) sigaddset(&action.sa_mask, number);
    }
    sigset_t unblocked;
    sigemptyset(&unblocked);
    for (const signal_rule& rule : rules) {
        claimed_signal& claimed = process.claimed[rule.number];
        if (!is_foreign(claimed.previous) && claimed.previous.sa_handler == SIG_IGN) {
            ignored.push_back(rule.number);
            continue;
        }
        claimed.installed = ::sigaction(rule.number, &action, nullptr) == 0;
        if (!claimed.installed) return signal_error("cannot handle ", rule.number);
        sigaddset(&unblocked, rule.number);
    }
    pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
    return {};
}

// 0: another installer has the signals. A claim of another process dates from before a fork without atfork handlers.
inline pid_t claim_signals() noexcept {
    const pid_t self = ::getpid();
    pid_t current = process.claim.load();
    if (current == self || !process.claim.compare_exchange_strong(current, self)) return 0;
    if (current != 0) forget_parent();
    return self;
}

class signal_claim : public ref_counted {
  public:
    ~signal_claim() override {
        if (!active()) return;
        stop_exit_timer();
        for (int number = 1; number < signal_limit; ++number) {
            // Stop signals stay handled for a while: a repetition would kill the process before main() returns.
            const claimed_signal& claimed = process.claimed[number];
            if (is_foreign(claimed.previous) || !is_repeated_stop(claimed.event)) restore_previous(number);
        }
        process.target.store(nullptr);
        while (process.handlers_running.load() != 0) pause_for(std::chrono::milliseconds(1));
        delete detail::exchange(process.unread, nullptr);
        process.claim.store(0);
    }
    // False in the child of a fork, even if that has installed its own.
    bool active() const noexcept { return process_ == ::getpid(); }

    std::vector<int> ignored;

  private:
    const pid_t process_ = claim_signals();  // 0: refused
};

// errc::invalid_argument: one of them cannot be a stop signal.
inline result<void> check_stop_signals(const std::vector<int>& numbers, bool reclaim) {
    for (const int number : numbers) {
        if (const char* const fault = stop_signal_error(number, reclaim))
            return error{errc::invalid_argument, 0,
                         cat({"stop_signals (OJS_STOP_SIGNALS): ", signal_name(number), " ", fault})};
    }
    if (!numbers.empty()) return {};
    return error{errc::invalid_argument, 0, "stop_signals (OJS_STOP_SIGNALS) must name at least one signal"};
}

// Records the event and the previous disposition of each. errc::busy: a foreign handler, and no chain_foreign.
inline result<void> record_claims(const array<signal_rule>& rules, const signal_options& options) {
    for (const signal_rule& rule : rules) {
        struct sigaction found {};
        if (::sigaction(rule.number, nullptr, &found) != 0)
            return signal_error("cannot read the disposition of ", rule.number);
        claimed_signal& claimed = process.claimed[rule.number];
        // Our handler is never a previous one, even if it outlasted its installer or was restored.
        if (!is_ours(found)) claimed.previous = found;
        claimed.event = rule.event;
        claimed.known = true;
        if (is_foreign(claimed.previous) && !options.chain_foreign) {
            return error{errc::busy, 0,
                         cat({signal_name(rule.number),
                              " already has a handler in this process; set "
                              "signal_options::chain_foreign to run both"})};
        }
    }
    return {};
}

// Returns those that stay ignored. A new installer's `new_target` replaces handlers that outlasted another; null: adds.
inline result<std::vector<int>> set_up_signals(const signal_options& options, lifecycle* new_target) {
    const result<void> valid = check_stop_signals(options.stop_signals, options.reclaim);
    if (!valid) return valid.error();
    const array<signal_rule> rules = rules_for(options, new_target != nullptr);
    for (int number = 1; new_target != nullptr && number < signal_limit; ++number) {
        bool kept = false;
        for (const signal_rule& rule : rules) kept = kept || rule.number == number;
        if (!kept) restore_previous(number);
    }
    const result<void> remembered = record_claims(rules, options);
    if (!remembered) return remembered.error();
    process.third_signal_exits = options.third_signal_exits;
    if (new_target != nullptr) {
        process.repeat_gap_ms = static_cast<std::uint32_t>(new_target->signal_debounce().count());
        process.target.store(new_target);
    }
    std::vector<int> ignored;
    const result<void> handled = install_handlers(rules, ignored);
    if (handled) return result<std::vector<int>>(std::move(ignored));
    for (const signal_rule& rule : rules) restore_previous(rule.number);
    return handled.error();
}

inline received_signal unpack_signal(std::uint64_t packed) {
    received_signal out{static_cast<int>(packed >> 56),
                        static_cast<pid_t>(packed >> 32 & 0xffffff),
                        static_cast<uid_t>(packed & 0xffffffff),
                        {}};
    if (out.sender_pid != 0) out.sender_name = read_stat("", cat({out.sender_pid})).comm;
    return out;
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<signals> signals::install(lifecycle& target, signal_options options) {
    using detail::process;
    signals out;
    out.claim_ = detail::make_ref<detail::signal_claim>();
    if (!out.active()) {
        return error{errc::busy, 0,
                     "the signals of this process already have an installer; share its lifecycle"};
    }
    result<detail::wake> unread = detail::wake::create();
    if (!unread) return unread.error();
    if (!process.fork_handler_set.exchange(true)) {
        pthread_atfork(nullptr, nullptr, [] {
            process.claim.store(0);
            detail::forget_parent();
        });
    }
    // In a forked child, its parent's is still there.
    delete detail::exchange(process.unread, new detail::wake(std::move(*unread)));
    process.owner = ::getpid();
    result<std::vector<int>> ignored = detail::set_up_signals(options, &target);
    if (!ignored) return ignored.error();
    out.claim_->ignored = std::move(*ignored);
    return result<signals>(std::move(out));
}

OJS_SHUTDOWN_INLINE bool signals::installed_for(const lifecycle& target) noexcept {
    return detail::process.target.load() == &target;
}

OJS_SHUTDOWN_INLINE result<std::vector<int>> signals::add(const lifecycle& target, signal_options options) {
    if (!installed_for(target)) return error{errc::busy, 0, "no installer is active for this lifecycle"};
    return detail::set_up_signals(options, nullptr);
}

OJS_SHUTDOWN_INLINE bool signals::active() const noexcept {
    return claim_ && claim_->active();
}

OJS_SHUTDOWN_INLINE std::vector<int> signals::ignored() const {
    return claim_ ? claim_->ignored : std::vector<int>();
}

OJS_SHUTDOWN_INLINE int signals::fd() const noexcept {
    return active() ? detail::process.unread->fd() : -1;
}

OJS_SHUTDOWN_INLINE received_signal signals::wait(time_point deadline, const cancel_token& until) {
    if (!active()) return {};
    const detail::wake& unread = *detail::process.unread;
    const cancel_registration on_cancelled = until.on_cancel([&unread] { unread.notify(); });
    for (;;) {
        for (std::uint64_t packed = 0; unread.take(packed);) {
            received_signal next = detail::unpack_signal(packed);
            if (next.number != 0) return next;  // 0: the cancellation of a wait
        }
        if (until.cancelled() || !unread.await(deadline)) return {};
    }
}

OJS_SHUTDOWN_INLINE received_signal signals::last_received(int number) {
    if (number <= 0 || number >= detail::signal_limit) return {};
    return detail::unpack_signal(detail::process.claimed[number].last.load());
}

OJS_SHUTDOWN_INLINE std::string signal_name(int number) {
    if (const char* const known = detail::known_signal_name(number)) return known;
    return detail::is_realtime(number) ? detail::cat({"SIGRTMIN+", number - detail::realtime_signal(true)})
                                       : detail::cat({"signal ", number});
}

}  // namespace v0_1_0
}  // namespace ojs
