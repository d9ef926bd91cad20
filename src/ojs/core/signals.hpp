// signals: turns SIGTERM, SIGINT, SIGTSTP and others into events of a lifecycle.
#pragma once

#include <signal.h>

#include <string>
#include <vector>

#include "cancel_token.hpp"
#include "lifecycle.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Which signals install() claims, and how.
struct signal_options {
    /// Claims SIGUSR1 too, as reclaim: the machine is about to go away. [Spot, WIRE 2]
    bool reclaim = false;
    /// The signals that request a stop. An existing handler for SIGHUP stays. errc::invalid_argument: an empty list, or a
    /// signal with another meaning (SIGKILL, SIGSEGV, SIGTSTP, SIGPIPE, SIGCHLD, ...; with `reclaim` SIGUSR1).
    std::vector<int> stop_signals{SIGTERM, SIGINT};
    /// The third stop signal ends the process by _exit(128 + n) in the handler. If `target` has subscribers, such as a
    /// worker, which exits by itself, the first one after a second does. False: `target` alone notes it.
    bool third_signal_exits = true;
};

/// A signal that arrived.
struct received_signal {
    int number = 0;           ///< 0: wait() reached its deadline or was cancelled
    pid_t sender_pid = 0;     ///< 0: the kernel, the terminal, or a process outside our PID namespace
    uid_t sender_uid = 0;     ///< meaningless if sender_pid is 0
    std::string sender_name;  ///< its comm, if it still runs and /proc can be read; else empty
};

namespace detail {
class signal_claim;
bool drives_signals(const lifecycle& target) noexcept;
// Claims what the active installer lacks. Returns those that stay ignored. Not while that installer is being destroyed.
result<std::vector<int>> add_signals(const signal_options& options);
// Claimed signals whose handler the program has replaced, each once: "SIGTERM,SIGINT".
std::string replaced_signals();
// The latest signal of that number; number 0 if there was none. Thread-safe.
received_signal last_signal(int number);
}  // namespace detail

/// The signal installer of a process. In the first line of main, it keeps a SIGTERM during start-up.
///
///     ojs::lifecycle lifecycle;
///     auto signals = ojs::signals::install(lifecycle);
///
/// The handler runs on the alternate stack of a thread that has one. A SIGCONT undoes every SIGTSTP sent before it, and
/// may undo one sent a moment after it.
///
/// The destructor restores the previous dispositions, but stop signals stay handled for the lifecycle's debounce time
/// after the last one, so that a repetition does not kill main().
///
/// A child of fork() has the previous dispositions; objects made before hold nothing there, and it may install anew.
class [[nodiscard]] signals {
  public:
    /// Claims the stop signals, SIGTSTP (quiet: Ctrl-Z no longer suspends), SIGCONT (resume), SIGTTIN (report the work
    /// in flight) and, with `reclaim`, SIGUSR1 for `target`, which must outlive the returned object. Unblocks them in
    /// the calling thread, which delivers those that are pending. errc::busy: another installer is active, or a signal
    /// has a foreign handler; errc::invalid_argument: see stop_signals; errc::system: the kernel refused. Nothing is
    /// claimed then. Thread-safe. [GS 4.1]
    static result<signals> install(lifecycle& target, signal_options options = {});

    signals() = default;
    signals(signals&& other) noexcept = default;
    signals& operator=(signals&& other) noexcept = default;

    /// A descriptor to poll, not to read: readable while wait() has signals. -1 if this object holds nothing.
    int fd() const noexcept;
    /// The next signal; number 0 at the deadline or once `until` is cancelled. For one thread at a time.
    received_signal wait(time_point deadline = time_point::max(), const cancel_token& until = {});
    /// The signals that stay ignored, as at process start.
    std::vector<int> ignored() const;

  private:
    detail::ref<detail::signal_claim> claim_;
};

/// "SIGTERM", "SIGRTMIN+3", ... or "signal 99" for an unknown number. Thread-safe.
std::string signal_name(int number);
}  // namespace v0_1_0
}  // namespace ojs
