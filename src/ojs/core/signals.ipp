#pragma once

#include <errno.h>
#include <signal.h>
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
struct claimed_signal {
    atomic<std::uint64_t> last{0};  // the latest one, packed
    atomic<bool> installed{false};
    atomic<ojs::event> event{};  // with `previous`, set before the handler is installed
    struct sigaction previous {};
};

// All process-wide state. Constant-initialised: no handler sees it half-built.
struct process_state {
    atomic<pid_t> owner{0};              // the process of the active installer; 0: none
    atomic<lifecycle*> target{nullptr};  // what the handler drives
    atomic<int> handlers_running{0};
    atomic<bool> fork_handler_set{false};
    atomic<std::uint64_t> last_stop{0};      // time of the last stop signal or reclaim; 0: none
    atomic<std::uint32_t> repeat_gap_ms{0};  // of the latest target, see is_repeated_stop()
    atomic<bool> third_signal_exits{false};
    atomic<unsigned> turn{0};                   // of the handlers of SIGTSTP, see signal_handlers
    const wake* unread = nullptr;               // the installer's, written before `target`
    claimed_signal claimed[signal_limit] = {};  // by number
};
__attribute__((visibility("default"))) inline process_state process;

inline bool sent_by_process(const siginfo_t& info) noexcept {
#ifdef SI_TKILL
    if (info.si_code == SI_TKILL) return true;
#endif
    return info.si_code == SI_USER || info.si_code == SI_QUEUE;
}

inline std::uint64_t pack_signal(const siginfo_t& info) noexcept {
    const std::uint64_t number = static_cast<std::uint64_t>(info.si_signo) << 56;
    if (!sent_by_process(info)) return number;
    return number | (static_cast<std::uint64_t>(info.si_pid) & 0xffffff) << 32 |
           static_cast<std::uint32_t>(info.si_uid);
}

// A SIGTSTP may be handled after the SIGCONT sent later. So each SIGCONT gives SIGTSTP the next of these handlers.
using signal_handler = void (*)(int, siginfo_t*, void*);
template <unsigned Turn>
void on_signal(int number, siginfo_t* info, void* context);
inline constexpr signal_handler signal_handlers[] = {on_signal<0>,  on_signal<1>,  on_signal<2>,  on_signal<3>,
                                                     on_signal<4>,  on_signal<5>,  on_signal<6>,  on_signal<7>,
                                                     on_signal<8>,  on_signal<9>,  on_signal<10>, on_signal<11>,
                                                     on_signal<12>, on_signal<13>, on_signal<14>, on_signal<15>};
inline constexpr unsigned signal_turns = sizeof signal_handlers / sizeof *signal_handlers;

inline bool is_ours(const struct sigaction& action) noexcept {
    bool out = false;
    for (const signal_handler each : signal_handlers) out = out || action.sa_sigaction == each;
    return out && (action.sa_flags & SA_SIGINFO) != 0;
}

// False: the signal is ignored, or the program has set its own handler.
inline bool read_ours(int number, struct sigaction& out) noexcept {
    return ::sigaction(number, nullptr, &out) == 0 && is_ours(out);
}

// For SIGCONT, before its event is applied.
inline void start_next_turn() noexcept {
    struct sigaction action {};
    if (!read_ours(SIGTSTP, action)) return;
    process.turn.fetch_add(1);
    unsigned turn = 0;
    do {  // another thread may set an earlier one meanwhile
        turn = process.turn.load();
        action.sa_sigaction = signal_handlers[turn % signal_turns];
        ::sigaction(SIGTSTP, &action, nullptr);
    } while (turn != process.turn.load());
}

// steady_ms() with one bit always set, so that 0, none, is longer ago than any gap.
inline std::uint64_t stop_time() noexcept { return std::uint64_t{1} << 32 | steady_ms(); }

inline bool is_stop(event what) noexcept { return what == event::stop_signal || what == event::reclaim; }

// Whether a stop signal repeats the last one, after the uninstallation.
inline bool is_repeated_stop(ojs::event event) noexcept {
    return is_stop(event) && stop_time() - process.last_stop.load() < process.repeat_gap_ms.load();
}

// False: the program has set its own handler over ours, which stays.
inline bool set_previous(int number) noexcept {
    struct sigaction current {};
    return read_ours(number, current) && ::sigaction(number, &process.claimed[number].previous, nullptr) == 0;
}
inline void restore_previous(int number) noexcept {
    if (process.claimed[number].installed.exchange(false)) set_previous(number);
}

inline void handle_signal(claimed_signal& claimed, lifecycle& target, unsigned turn, const siginfo_t& info) {
    const int number = info.si_signo;
    if (number == SIGTTIN && !sent_by_process(info)) {
        raise(SIGSTOP);  // the default action: a background process reads the terminal
        return;
    }
    const std::uint64_t packed = pack_signal(info);
    claimed.last.store(packed);
    if (is_stop(claimed.event)) process.last_stop.store(stop_time());
    if (number == SIGCONT) start_next_turn();
    target.apply(claimed.event, {cause_kind::signal, number});
    if (number == SIGTSTP && turn != process.turn.load() % signal_turns)  // a SIGCONT came meanwhile
        target.apply(event::resume_request, {cause_kind::signal, SIGCONT});
    const lifecycle_state now = target.state();
    // A worker or loop that follows the lifecycle exits by itself, and says what it leaves, unless it hangs.
    if (process.third_signal_exits && now.stop_signals >= 3 && is_stop(claimed.event) &&
        (!lifecycle_access::is_followed(target) || steady_ms() - now.changed_ms >= 1000))
        _exit(128 + now.cause.signal);
    process.unread->put(packed);
}

inline void receive_signal(unsigned turn, int number, siginfo_t* info) {
    const int saved = errno;
    const pid_t owner = process.owner;
    if (owner != 0 && owner != ::getpid()) {                   // a child whose fork ran no atfork handler
        if (set_previous(number)) ::kill(::getpid(), number);  // not raise(): musl's signals the parent's thread
        errno = saved;
        return;
    }
    process.handlers_running.fetch_add(1);  // sequentially consistent with ~signal_claim()
    claimed_signal& claimed = process.claimed[number];
    if (lifecycle* const target = process.target.load()) {
        handle_signal(claimed, *target, turn, *info);
    } else if (!is_repeated_stop(claimed.event) && set_previous(number)) {
        ::kill(::getpid(), number);
    }
    process.handlers_running.fetch_sub(1);
    errno = saved;
}

template <unsigned Turn>
void on_signal(int number, siginfo_t* info, void* /*context*/) {
    receive_signal(Turn, number, info);
}

inline void restore_all() noexcept {
    for (int number = 1; number < signal_limit; ++number) restore_previous(number);
}

// In the child of a fork: installer and threads are the parent's.
inline void forget_parent() noexcept {
    process.owner = 0;
    process.handlers_running.store(0);  // in threads that this process does not have
    if (lifecycle* const target = process.target.exchange(nullptr)) lifecycle_access::after_fork(*target);
    restore_all();
}

// Handles and unblocks it. Ignored: appended to `ignored`, and stays so, as a foreign handler of SIGHUP does.
inline result<void> claim_signal(int number, ojs::event event, std::vector<int>& ignored) {
    struct sigaction found {};
    ::sigaction(number, nullptr, &found);
    claimed_signal& claimed = process.claimed[number];
    if (!is_ours(found)) {  // ours is never a previous one, even if it outlasted its installer
        const bool is_foreign =
            (found.sa_flags & SA_SIGINFO) != 0 || (found.sa_handler != SIG_DFL && found.sa_handler != SIG_IGN);
        if (is_foreign && number == SIGHUP) return {};  // a reload
        if (is_foreign)
            return error{
                errc::busy, 0,
                cat({signal_name(number), " already has a handler in this process; remove that, or call start()"})};
        claimed.previous = found;
    }
    claimed.event = event;
    if (claimed.previous.sa_handler == SIG_IGN) return ignored.push_back(number), result<void>();
    struct sigaction action {};
    action.sa_sigaction = signal_handlers[process.turn.load() % signal_turns];
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigfillset(&action.sa_mask);
    claimed.installed = ::sigaction(number, &action, nullptr) == 0;
    const int failed = errno;
    if (!claimed.installed) return system_error(cat({"cannot handle ", signal_name(number)}), failed);
    sigset_t unblocked;
    sigemptyset(&unblocked);
    sigaddset(&unblocked, number);
    pthread_sigmask(SIG_UNBLOCK, &unblocked, nullptr);
    return {};
}

inline result<void> check_stop_signals(const std::vector<int>& numbers, bool reclaim) {
    for (const int number : numbers) {
        if (const char* const fault = stop_signal_error(number, reclaim))
            return invalid(cat({"stop_signals (OJS_STOP_SIGNALS): ", signal_name(number), " ", fault}));
    }
    if (!numbers.empty()) return {};
    return invalid("stop_signals (OJS_STOP_SIGNALS) must name at least one signal");
}

OJS_SHUTDOWN_INLINE result<std::vector<int>> add_signals(const signal_options& options) {
    result<void> status = check_stop_signals(options.stop_signals, options.reclaim);
    std::vector<int> ignored;
    const auto claim = [&](int number, ojs::event event) {
        if (status && !process.claimed[number].installed) status = claim_signal(number, event, ignored);
    };
    if (status) process.third_signal_exits = options.third_signal_exits;
    for (const int number : options.stop_signals) claim(number, event::stop_signal);
    claim(SIGTSTP, event::quiet_request);
    claim(SIGCONT, event::resume_request);
    claim(SIGTTIN, event::report_request);
    if (options.reclaim) claim(SIGUSR1, event::reclaim);
    return status ? result<std::vector<int>>(std::move(ignored)) : status.error();
}

class signal_claim : public ref_counted {
  public:
    explicit signal_claim(wake unread) noexcept : unread_(std::move(unread)) {
        const pid_t self = ::getpid();
        if (process.owner != 0 && process.owner != self) forget_parent();  // fork() ran no atfork handler
        pid_t none = 0;
        if (!process.owner.compare_exchange_strong(none, self)) return;
        process_ = self;
        restore_all();  // that an earlier installer left
        process.unread = &unread_;
    }
    ~signal_claim() override {
        if (!active()) return;
        for (int number = 1; number < signal_limit; ++number) {
            // A repetition would kill the process before main() returns.
            if (!is_repeated_stop(process.claimed[number].event)) restore_previous(number);
        }
        process.target.store(nullptr);
        while (process.handlers_running.load() != 0) pause_for(milliseconds(1));
        process.owner = 0;
    }
    // False: another installer of this process has the signals, or this is the child of a fork.
    bool active() const noexcept { return process_ == ::getpid(); }
    const wake& unread() const noexcept { return unread_; }

    std::vector<int> ignored;

  private:
    pid_t process_ = 0;  // 0: not active
    const wake unread_;  // a queue of the signals that wait() has not returned, packed
};

inline received_signal unpack_signal(std::uint64_t packed) {
    received_signal out{static_cast<int>(packed >> 56),
                        static_cast<pid_t>(packed >> 32 & 0xffffff),
                        static_cast<uid_t>(packed & 0xffffffff),
                        {}};
    if (out.sender_pid != 0) out.sender_name = read_stat("", cat({out.sender_pid})).comm;
    return out;
}

OJS_SHUTDOWN_INLINE bool drives_signals(const lifecycle& target) noexcept { return process.target.load() == &target; }

OJS_SHUTDOWN_INLINE std::string replaced_signals() {
    std::string out;
    for (int number = 1; number < signal_limit; ++number) {
        struct sigaction found {};
        if (!process.claimed[number].installed || read_ours(number, found) || number == SIGHUP) continue;  // a reload
        if (found.sa_handler == SIG_IGN && (number == SIGINT || number == SIGQUIT)) continue;  // by system(3)
        process.claimed[number].installed = false;
        append(out, {out.empty() ? "" : ",", signal_name(number)});
    }
    return out;
}

OJS_SHUTDOWN_INLINE received_signal last_signal(int number) { return unpack_signal(process.claimed[number].last); }
}  // namespace detail

OJS_SHUTDOWN_INLINE result<signals> signals::install(lifecycle& target, signal_options options) {
    using detail::process;
    result<detail::wake> unread = detail::wake::create();
    if (!unread) return unread.error();
    signals out;
    out.claim_ = detail::make_ref<detail::signal_claim>(std::move(*unread));
    if (!out.claim_->active())
        return error{errc::busy, 0,
                     "ojs::signals is already installed in this process; pass its lifecycle to the second worker"};
    if (!process.fork_handler_set.exchange(true)) pthread_atfork(nullptr, nullptr, detail::forget_parent);
    process.repeat_gap_ms = detail::lifecycle_access::repeat_gap_ms(target);
    process.target = &target;
    result<std::vector<int>> ignored = detail::add_signals(options);
    if (!ignored) return ignored.error();
    out.claim_->ignored = std::move(*ignored);
    return result<signals>(std::move(out));
}

OJS_SHUTDOWN_INLINE std::vector<int> signals::ignored() const { return claim_ ? claim_->ignored : std::vector<int>(); }

OJS_SHUTDOWN_INLINE int signals::fd() const noexcept { return claim_ && claim_->active() ? claim_->unread().fd() : -1; }

OJS_SHUTDOWN_INLINE received_signal signals::wait(time_point deadline, const cancel_token& until) {
    if (fd() < 0) return {};
    const detail::wake& unread = claim_->unread();
    const cancel_registration on_cancelled = until.on_cancel([&unread] { unread.notify(); });
    for (;;) {
        for (std::uint64_t packed = 0; unread.take(packed);) {
            received_signal next = detail::unpack_signal(packed);
            if (next.number != 0) return next;  // 0: the cancellation of a wait
        }
        if (until.cancelled() || !unread.await(deadline)) return {};
    }
}

OJS_SHUTDOWN_INLINE std::string signal_name(int number) {
    if (const char* const known = detail::known_signal_name(number)) return known;
    return detail::is_realtime(number) ? detail::cat({"SIGRTMIN+", number - detail::realtime_signal(true)})
                                       : detail::cat({"signal ", number});
}
}  // namespace v0_1_0
}  // namespace ojs
