// signals: turns SIGTERM, SIGINT, SIGTSTP and others into events of a lifecycle.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "cancel_token.hpp"
#include "lifecycle.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
class signal_claim;
// Not {a, b}: every file would compile what that is made of.
std::vector<int> signal_list(int one, int two, int three = 0);
}  // namespace detail

struct signal_options {
    // What to do about a signal that already has a handler from elsewhere: false refuses with errc::busy, true installs
    // ours and calls the other one after it, in the handler. It must return. Where it calls us back, because it was set
    // over ours before, that does nothing.
    bool chain_foreign = false;
    // SIGUSR1 is taken too, and means that the machine goes away: reclaim. [Spot, WIRE 2]
    bool reclaim = false;
    // The signals that request a stop; all are equivalent. An existing handler for SIGHUP stays, unless chain_foreign
    // is set. errc::invalid_argument: an empty list; SIGKILL and SIGSTOP; faults (SIGSEGV, ...); signals with another
    // meaning (SIGTSTP, SIGCONT, SIGTTIN, SIGPIPE, SIGCHLD, SIGTTOU, SIGURG; with `reclaim` SIGUSR1).
    std::vector<int> stop_signals = detail::signal_list(SIGTERM, SIGINT);
};

// A signal that arrived. `number` is 0 where wait() ended at its deadline, or was cancelled.
struct received_signal {
    int number = 0;
    pid_t sender_pid = 0;  // 0: the kernel, the terminal, or a process outside our PID namespace
    uid_t sender_uid = 0;
    std::string sender_name;  // comm of the sender, where it still runs and /proc tells; else empty
};

// The one signal installer of a process. Claim the signals in the first line of main, and a SIGTERM that
// comes while the program still starts is kept: the worker built later finds its lifecycle draining.
//
//     ojs::lifecycle lifecycle;
//     auto signals = ojs::signals::install(lifecycle);
//
// The handler notes the signal and its sender, applies one event to the lifecycle, writes both to a pipe, and calls the
// handler it replaced where chain_foreign asks for that. (A SIGTTIN that this library sends to one of its threads, for
// the stack of a stuck job, is answered in it as well.) It runs on the alternate stack of a thread that has one. A
// signal that was ignored when the process started stays ignored (ignored() lists it).
//
// A child made by fork() without exec gets the previous dispositions back, so it can be stopped like any process; an
// object made before holds nothing there. A child that goes on as a server (pre-fork, daemon()) claims the signals
// anew: by install(), or by worker::run(). The parent's object keeps them in the parent.
class [[nodiscard]] signals {
  public:
    // Thread-safe. errc::busy: another installer is active in this process, or a signal has a foreign
    // handler. The signals are unblocked in the calling thread, which delivers what came while they were blocked:
    // as PID 1 the only signals the kernel keeps until now. `target` must outlive the returned object.
    // [GS 4.1]
    static result<signals> install(lifecycle& target, signal_options options = {});
    // True while an installer is active for this very lifecycle. Thread-safe.
    static bool installed_for(const lifecycle& target) noexcept;
    // Adds signals to the active installer of `target`, which restores them with its own. Returns the numbers of those
    // that stay ignored. errc::busy: there is no such installer, or a signal has a foreign handler.
    // errc::invalid_argument: as for install(). Do not call it while that installer is being destroyed.
    static result<std::vector<int>> add(const lifecycle& target, signal_options options);

    signals() = default;  // holds nothing
    signals(signals&& other) noexcept = default;
    signals& operator=(signals&& other) noexcept = default;
    // Restores the previous dispositions, whole. Exception: after worker::run() a stop signal with the default
    // disposition stays handled for `repeat_signal_gap` after the last one, so that a repetition does not kill main()
    // after run(). The first stop signal after that has its default effect.
    ~signals() = default;

    // For your own poll loop: readable while there are signals that wait() has not returned yet. When
    // thousands are unread, the oldest are dropped. Do not read it. -1 if this holds nothing.
    int fd() const noexcept;
    // The next signal, or number 0 at the deadline (time_point::max(): never) and once `until` is cancelled. For one
    // thread at a time.
    received_signal wait(time_point deadline = time_point::max(), const cancel_token& until = {});
    // The last signal of that number, without waiting for or taking anything; number 0 if none came.
    // Thread-safe.
    static received_signal last_received(int number);
    // Numbers of the signals left alone because the process was started with them ignored.
    std::vector<int> ignored() const;

  private:
    bool active() const noexcept;

    detail::ref<detail::signal_claim> claim_;
};

// "SIGTERM", "SIGRTMIN+3", ... or "signal 99" for an unknown number. Thread-safe.
std::string signal_name(int number);

namespace detail {
// errc::invalid_argument: these cannot be the stop signals.
result<void> check_stop_signals(const std::vector<int>& numbers, bool reclaim);
}  // namespace detail

}  // namespace v0_1_0
}  // namespace ojs
