// service_notifier: reports the state of the service to systemd (sd_notify protocol).
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "../base/detail/sync.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// The notify protocol of sd_notify(3), without libsystemd: one datagram per message to the socket in $NOTIFY_SOCKET.
/// Without that variable every call succeeds and does nothing.
///
/// No call blocks. A failed call (the socket is gone, or the manager does not read) has no effect and may be repeated.
/// Thread-safe, except for moving from it; not async-signal-safe. The unit needs Type=notify and NotifyAccess=main:
/// systemd then accepts messages of the process it started, and of no other.
class service_notifier {
  public:
    service_notifier() = default;  ///< does nothing
    /// Reads $NOTIFY_SOCKET (an absolute path, or @ and an abstract name), $WATCHDOG_USEC and $WATCHDOG_PID.
    /// errc::invalid_argument: an unusable value, such as a path longer than a socket address holds;
    /// errc::unsupported: another kind of address; errc::system: cannot create a socket. `lookup` is for tests; empty:
    /// the process's environment.
    static result<service_notifier> from_environment(const environment_lookup& lookup = nullptr);

    /// Whether a service manager listens.
    bool active() const noexcept { return static_cast<bool>(socket_); }
    /// How often to call notify_watchdog(): half of the manager's limit; 0 if it does not watch this process.
    std::chrono::milliseconds watchdog_interval() const noexcept { return watchdog_interval_; }

    /// Start-up has finished; `text` is a notify_status() sent with it. READY=1
    result<void> notify_ready(std::string_view text = {}) const;
    /// The configuration is being replaced; notify_ready() ends that. RELOADING=1, MONOTONIC_USEC=
    result<void> notify_reloading(std::string_view text = {}) const;
    /// One line for people (systemctl status), cut at 1000 bytes. Control characters become blanks, bytes that are not
    /// UTF-8 become U+FFFD. STATUS=
    result<void> notify_status(std::string_view text) const;
    /// The drain has begun. Starts the manager's stop timeout, so it must not be sent on quiet. STOPPING=1
    result<void> notify_stopping(std::string_view text = {}) const;
    /// Starting or stopping needs at least this much more time from now. Repeat it before that has passed.
    /// EXTEND_TIMEOUT_USEC=
    result<void> extend_timeout(detail::any_ms from_now) const;
    /// The process is alive. WATCHDOG=1
    result<void> notify_watchdog() const;
    /// Custom assignments, VARIABLE=value, one per line; at most 4096 bytes, which is what managers read.
    /// errc::unreachable: no process has the socket open; errc::unavailable: its queue is full; errc::invalid_argument:
    /// too long; errc::system: anything else.
    result<void> send(std::string_view assignments) const;

  private:
    detail::unique_fd socket_;
    std::string address_;  // the bytes of sun_path: an abstract name begins with NUL
    std::chrono::milliseconds watchdog_interval_{0};
};
}  // namespace v0_1_0
}  // namespace ojs
