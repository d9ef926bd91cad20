#pragma once

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "../base/detail/atomic.hpp"
#include "../base/detail/exchange.hpp"
#include "../base/detail/proc.hpp"
#include "../base/detail/signal_names.hpp"
#include "../base/detail/text.hpp"
#include "detail/wake.hpp"
#include "signals.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// A SIGTTIN of ours to one of our threads, which is no event: see system/detail/thread_stack.ipp.
struct thread_request {
    bool (*answer)(const siginfo_t* info) noexcept;  // in the handler; false: it was none
    void (*forget)() noexcept;                       // in the child of a fork
};

struct signal_rule {
    int number;
    event what;
    bool only_if_asked = false;
};

// Which signal is which event. [GS 4.1]
inline constexpr signal_rule signal_rules[] = {
    {SIGTERM, event::stop_signal},    {SIGINT, event::stop_signal},     {SIGTSTP, event::quiet_request},
    {SIGCONT, event::resume_request}, {SIGTTIN, event::report_request}, {SIGUSR1, event::reclaim, true},
};
inline constexpr std::size_t signal_rule_count = sizeof signal_rules / sizeof signal_rules[0];

// The process-wide state of the library, all of it. Constant-initialised, so a handler always finds it whole.
struct process_state {
    static constexpr std::uint32_t log_size = 16;
    static constexpr std::size_t chain_size = 16;

    // Of the installer that is active, or about to be: its number, and the process. 0: none.
    atomic<std::uint64_t> claim{0};
    atomic<std::uint32_t> claims{0};     // so far
    atomic<lifecycle*> target{nullptr};  // what the handler drives
    atomic<int> notify_fd{-1};           // the installer's own wake-up
    atomic<int> handlers_running{0};
    atomic<unsigned> forks{0};                          // between the first process and this one
    atomic<const siginfo_t*> chained[chain_size] = {};  // what foreign handlers are called for now
    atomic<bool> fork_handler_set{false};
    atomic<const thread_request*> asks_threads{nullptr};  // what else a SIGTTIN may be
    atomic<std::uint32_t> received{0};                    // signals so far
    atomic<std::uint64_t> log[log_size] = {};             // the last of them, packed, with their lap_bit
    atomic<std::uint64_t> last[signal_rule_count] = {};   // the last of each number, packed
    // Written before the handler is installed, read by it and after fork.
    pid_t owner = 0;          // the process that installed them
    std::uint32_t taken = 0;  // signals wait() has returned or skipped
    wake* waker = nullptr;
    atomic<bool> installed[signal_rule_count] = {};
    struct sigaction previous[signal_rule_count] = {};
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

// What pack_signal() made.
struct received_word {
    std::uint64_t packed;

    int number() const noexcept { return static_cast<int>(packed >> 56); }
    pid_t pid() const noexcept { return static_cast<pid_t>(packed >> 32 & 0xffffff); }
    uid_t uid() const noexcept { return static_cast<uid_t>(packed & 0xffffffff); }
};

// Tells one round through the log from the next, and both from a place never written.
inline std::uint64_t lap_bit(std::uint32_t place) noexcept {
    return static_cast<std::uint64_t>(1 - (place / process_state::log_size & 1)) << 63;
}

void on_signal(int number, siginfo_t* info, void* context);

inline bool is_ours(const struct sigaction& action) noexcept {
    return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == on_signal;
}

inline bool is_foreign(const struct sigaction& action) noexcept {
    return (action.sa_flags & SA_SIGINFO) != 0 ||
           (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

inline bool same_handler(const struct sigaction& a, const struct sigaction& b) noexcept {
    if ((a.sa_flags & SA_SIGINFO) != (b.sa_flags & SA_SIGINFO)) return false;
    return (a.sa_flags & SA_SIGINFO) != 0 ? a.sa_sigaction == b.sa_sigaction : a.sa_handler == b.sa_handler;
}

// A handler set over ours may call ours, as is polite, and be chained by our next installer: that would go round for ever.
inline bool is_chained(const siginfo_t* info) noexcept {
    for (const atomic<const siginfo_t*>& place : process.chained) {
        if (info != nullptr && place.load() == info) return true;
    }
    return false;
}

inline atomic<const siginfo_t*>* note_chained(const siginfo_t* info) noexcept {
    for (atomic<const siginfo_t*>& place : process.chained) {
        const siginfo_t* expected = nullptr;
        if (place.compare_exchange_strong(expected, info)) return &place;
    }
    return nullptr;  // many threads at once: a later round finds a place
}

inline void call_previous(const struct sigaction& previous, int number, siginfo_t* info, void* context) {
    if (!is_foreign(previous) || info == nullptr) return;
    atomic<const siginfo_t*>* noted = note_chained(info);
    if ((previous.sa_flags & SA_SIGINFO) != 0) {
        previous.sa_sigaction(number, info, context);
    } else {
        previous.sa_handler(number);
    }
    if (noted != nullptr) noted->store(nullptr);
}

// Everything that ever runs in signal context.
inline void handle_signal(std::size_t rule, lifecycle& target, int number, siginfo_t* info, void* context) {
    if (number == SIGTTIN &&
        !sent_by_process(info)) {  // a read of the terminal, in the background: stop, as ever
        raise(SIGSTOP);
        return;
    }
    const thread_request* const request = process.asks_threads.load();
    if (number == SIGTTIN && request != nullptr && request->answer(info)) return;
    const std::uint64_t packed = pack_signal(number, info);
    const std::uint32_t place = process.received.fetch_add(1);
    process.log[place % process_state::log_size].store(packed | lap_bit(place));
    process.last[rule].store(packed);
    const received_word from{packed};
    target.apply(signal_rules[rule].what, {cause_kind::signal, number, from.pid(), from.uid()});
    wake::notify(process.notify_fd.load());
    call_previous(process.previous[rule], number, info, context);
}

// A handler set on top of ours since is its owner's to keep.
inline void restore_previous(std::size_t rule) noexcept {
    struct sigaction current {};
    const int number = signal_rules[rule].number;
    if (::sigaction(number, nullptr, &current) == 0 && is_ours(current))
        ::sigaction(number, &process.previous[rule], nullptr);
}

// Without an installer of this process: a child whose fork ran no atfork handlers, or has yet to, or a foreign handler
// that still chains to us. The signal does what it would do without us.
inline void stand_aside(std::size_t rule, int number, siginfo_t* info, void* context) {
    struct sigaction current {};
    const struct sigaction& previous = process.previous[rule];
    if (::sigaction(number, nullptr, &current) == 0 && is_ours(current)) {
        ::sigaction(number, &previous, nullptr);
        // Not raise(): musl sends it to the thread it remembers, which after a fork behind its back is the parent's.
        ::kill(getpid(), number);
    } else if (!same_handler(current, previous)) {  // it is what called us
        call_previous(previous, number, info, context);
    }
}

inline void on_signal(int number, siginfo_t* info, void* context) {
    if (is_chained(info)) return;
    const int saved = errno;
    const unsigned forks = process.forks.load();
    process.handlers_running.fetch_add(1);  // sequentially consistent with uninstall()
    for (std::size_t rule = 0; rule < signal_rule_count; ++rule) {
        if (signal_rules[rule].number != number) continue;
        lifecycle* target = process.target.load();
        if (target != nullptr && getpid() == process.owner) {
            handle_signal(rule, *target, number, info, context);
        } else {
            stand_aside(rule, number, info, context);
        }
    }
    // A foreign handler may have called fork(), and this be its child.
    if (process.forks.load() == forks) process.handlers_running.fetch_sub(1);
    errno = saved;
}

// In the child of a fork: the installer and our threads are the parent's, so signals must do what they did before us.
inline void forget_parent() noexcept {
    process.forks.fetch_add(1);
    process.handlers_running.store(0);  // those of other threads, which are not here
    for (atomic<const siginfo_t*>& place : process.chained) place.store(nullptr);
    if (const thread_request* const request = process.asks_threads.load()) request->forget();
    lifecycle* target = process.target.exchange(nullptr);
    if (target == nullptr) return;
    target->after_fork();
    for (std::size_t rule = 0; rule < signal_rule_count; ++rule) {
        if (process.installed[rule].exchange(false)) restore_previous(rule);
    }
}

inline void ojs_shutdown_after_fork() {
    process.claim.store(0);
    forget_parent();
}

inline struct sigaction our_action() {
    struct sigaction ours {};
    ours.sa_sigaction = on_signal;
    ours.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    for (const signal_rule& rule : signal_rules) sigaddset(&ours.sa_mask, rule.number);
    return ours;
}

inline bool is_wanted(std::size_t rule, const signal_options& options) noexcept {
    return !signal_rules[rule].only_if_asked || options.reclaim;
}

// A signal that was ignored stays so; then this is false.
inline bool install_handler(std::size_t rule) {
    const struct sigaction& previous = process.previous[rule];
    if (!is_foreign(previous) && previous.sa_handler == SIG_IGN) return false;
    const struct sigaction ours = our_action();
    process.installed[rule] = ::sigaction(signal_rules[rule].number, &ours, nullptr) == 0;
    return process.installed[rule];
}

inline void install_handlers(const signal_options& options, std::vector<int>& ignored) {
    sigset_t unblocked;
    sigemptyset(&unblocked);
    for (std::size_t i = 0; i < signal_rule_count; ++i) {
        if (!is_wanted(i, options)) continue;
        if (install_handler(i)) {
            sigaddset(&unblocked, signal_rules[i].number);
        } else {
            ignored.push_back(signal_rules[i].number);
        }
    }
    pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
}

inline void uninstall_handlers() {
    for (std::size_t rule = 0; rule < signal_rule_count; ++rule) {
        if (process.installed[rule].exchange(false)) restore_previous(rule);
    }
    process.target.store(nullptr);
    while (process.handlers_running.load() != 0) sched_yield();
}

// The claim on the signals of this process, or 0: somebody has it. One that is of another process was made before a fork
// that ran no atfork handlers.
inline std::uint64_t claim_signals() noexcept {
    const auto pid = static_cast<std::uint32_t>(getpid());
    const std::uint64_t own = static_cast<std::uint64_t>(process.claims.fetch_add(1) + 1) << 32 | pid;
    std::uint64_t held = process.claim.load();
    if (static_cast<std::uint32_t>(held) == pid || !process.claim.compare_exchange_strong(held, own))
        return 0;
    if (held != 0) forget_parent();
    return own;
}

inline error installer_busy(std::string text) {
    return {errc::busy, 0, std::move(text)};
}

inline result<void> remember_previous(std::size_t rule, const signal_options& options) {
    struct sigaction found {};
    ::sigaction(signal_rules[rule].number, nullptr, &found);
    // Ours may have come back after its installer had gone, by a foreign handler that was set over it.
    if (!is_ours(found)) process.previous[rule] = found;
    if (!is_foreign(process.previous[rule]) || options.chain_foreign) return {};
    return installer_busy(cat({signal_name(signal_rules[rule].number),
                               " already has a handler from elsewhere in this process; set "
                               "signal_options::chain_foreign to run both"}));
}

inline result<void> remember_previous(const signal_options& options) {
    for (std::size_t i = 0; i < signal_rule_count; ++i) {
        if (!is_wanted(i, options)) continue;
        const result<void> remembered = remember_previous(i, options);
        if (!remembered) return remembered;
    }
    return {};
}

inline received_signal unpack_signal(std::uint64_t packed) {
    const received_word from{packed};
    received_signal out;
    out.number = from.number();
    out.sender_pid = from.pid();
    out.sender_uid = from.uid();
    if (out.sender_pid != 0) out.sender_name = process_name("", cat({out.sender_pid}));
    return out;
}

// The next signal of the log, or 0: none, or one whose handler is still at work and will notify.
inline std::uint64_t take_signal() {
    constexpr std::uint64_t lap_mask = std::uint64_t{1} << 63;
    for (;;) {
        const std::uint32_t received = process.received.load();
        if (received - process.taken > process_state::log_size)
            process.taken = received - process_state::log_size;
        if (received == process.taken) return 0;
        const std::uint64_t packed = process.log[process.taken % process_state::log_size].load();
        if ((packed & lap_mask) == lap_bit(process.taken) && packed != 0) {
            ++process.taken;
            return packed & ~lap_mask;
        }
        // Not written yet, or overwritten meanwhile: then the log has moved on.
        if (process.received.load() - process.taken <= process_state::log_size) return 0;
    }
}

}  // namespace detail

OJS_SHUTDOWN_INLINE result<signals> signals::install(lifecycle& target, signal_options options) {
    using detail::process;
    const std::uint64_t claim = detail::claim_signals();
    if (claim == 0) {
        return detail::installer_busy(
            "the signals of this process already have an installer; share its lifecycle");
    }
    result<void> remembered = detail::remember_previous(options);
    result<detail::wake> waker = detail::wake::create();
    if (!remembered || !waker) {
        process.claim.store(0);
        return remembered ? waker.error() : remembered.error();
    }
    if (!process.fork_handler_set.exchange(true))
        pthread_atfork(nullptr, nullptr, detail::ojs_shutdown_after_fork);
    // A forked child still has its parent's.
    delete detail::exchange(process.waker, new detail::wake(std::move(*waker)));
    process.taken = process.received.load();
    process.owner = getpid();
    process.notify_fd.store(process.waker->notify_fd());
    process.target.store(&target);
    signals out;
    out.claim_ = claim;
    detail::install_handlers(options, out.ignored_);
    return result<signals>(std::move(out));
}

OJS_SHUTDOWN_INLINE bool signals::installed_for(const lifecycle& target) noexcept {
    return detail::process.target.load() == &target;
}

OJS_SHUTDOWN_INLINE result<void> signals::add_reclaim(const lifecycle& target) {
    std::size_t rule = 0;
    while (detail::signal_rules[rule].what != event::reclaim) ++rule;
    if (!installed_for(target)) return detail::installer_busy("no installer is active for this lifecycle");
    if (detail::process.installed[rule]) return {};
    const result<void> remembered = detail::remember_previous(rule, {});
    if (!remembered) return remembered;
    if (!detail::install_handler(rule)) return {};  // ignored from the start
    sigset_t unblocked;
    sigemptyset(&unblocked);
    sigaddset(&unblocked, detail::signal_rules[rule].number);
    pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
    return {};
}

OJS_SHUTDOWN_INLINE signals::signals(signals&& other) noexcept
    : claim_(detail::exchange(other.claim_, 0)), ignored_(std::move(other.ignored_)) {}

OJS_SHUTDOWN_INLINE signals& signals::operator=(signals&& other) noexcept {
    detail::swap(claim_, other.claim_);
    ignored_.swap(other.ignored_);
    return *this;
}

// False in the child of a fork, whatever that has installed since.
OJS_SHUTDOWN_INLINE bool signals::active() const noexcept {
    return claim_ != 0 && detail::process.claim.load() == claim_;
}

OJS_SHUTDOWN_INLINE signals::~signals() {
    if (!active()) return;
    detail::uninstall_handlers();
    delete detail::exchange(detail::process.waker, nullptr);
    detail::process.claim.store(0);
}

OJS_SHUTDOWN_INLINE int signals::fd() const noexcept {
    return active() ? detail::process.waker->fd() : -1;
}

OJS_SHUTDOWN_INLINE received_signal signals::wait(time_point deadline, const cancel_token& until) {
    if (!active()) return {};
    const detail::wake* const waker = detail::process.waker;
    const cancel_registration told = until.on_cancel([waker] { waker->notify(); });
    waker->clear();
    std::uint64_t packed = detail::take_signal();
    while (packed == 0) {
        if (until.cancelled() || !waker->wait_until(deadline)) return {};
        packed = detail::take_signal();
    }
    waker->notify();  // fd() stays readable until a wait() finds nothing left
    return detail::unpack_signal(packed);
}

OJS_SHUTDOWN_INLINE received_signal signals::last_received(int number) {
    for (std::size_t i = 0; i < detail::signal_rule_count; ++i) {
        if (detail::signal_rules[i].number == number)
            return detail::unpack_signal(detail::process.last[i].load());
    }
    return {};
}

OJS_SHUTDOWN_INLINE std::string signal_name(int number) {
    const char* const known = detail::known_signal_name(number);
    return known != nullptr ? known : detail::cat({"signal ", number});
}

}  // namespace v0_1_0
}  // namespace ojs
