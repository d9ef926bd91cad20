// service_notifier: tells systemd, or whoever speaks its protocol, how the service is.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "../base/detail/sync.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {

// The notify protocol of sd_notify(3), without libsystemd: one datagram a message to the socket that $NOTIFY_SOCKET
// names. Without that variable nothing is done and every message succeeds, so callers need not ask.
//
// No call blocks. One that fails (the socket is gone, or the manager does not read) has done no harm and may be made
// again later. Thread-safe, except for moving from it; not async-signal-safe. The service manager must be told to
// listen (Type=notify, NotifyAccess=main), and believes only the process it started.
class service_notifier {
  public:
    service_notifier() = default;  // tells nobody
    // What $NOTIFY_SOCKET (an absolute path, or @ and an abstract name), $WATCHDOG_USEC and $WATCHDOG_PID say.
    // errc::invalid_argument: a value that cannot be used, such as a path longer than a socket address holds;
    // errc::unsupported: a kind of address this does not speak; errc::system: no socket to be had. `lookup` is for
    // tests; empty: the process's environment.
    static result<service_notifier> from_environment(const environment_lookup& lookup = nullptr);

    // Whether there is a service manager to tell.
    bool active() const noexcept { return static_cast<bool>(socket_); }
    // How often watchdog() is due: half of what the manager tolerates; 0 if it does not watch this process.
    std::chrono::milliseconds watchdog_interval() const noexcept { return watchdog_interval_; }

    // Start-up is over. READY=1
    result<void> ready(std::string_view text = {}) const;
    // One line for people (systemctl status). Line breaks and other control characters become blanks, what is not
    // UTF-8 becomes U+FFFD, and it is cut at 1000 bytes. STATUS=
    result<void> status(std::string_view text) const;
    // The drain began. The manager's stop clock starts with this, so never on quiet. STOPPING=1
    result<void> stopping(std::string_view text = {}) const;
    // At least this much more time is needed, counted from now: while starting or stopping, to be repeated before it
    // is over. EXTEND_TIMEOUT_USEC=
    result<void> extend_timeout(std::chrono::milliseconds from_now) const;
    // Still alive. WATCHDOG=1
    result<void> watchdog() const;
    // Assignments of your own, VARIABLE=value, one a line; at most 4096 bytes, which is what managers read.
    // errc::unreachable: nobody has the socket; errc::unavailable: its queue is full; errc::invalid_argument: too
    // long; errc::system: anything else.
    result<void> send(std::string_view assignments) const;

  private:
    detail::unique_fd socket_;
    std::string address_;  // the bytes of sun_path: an abstract name begins with NUL
    std::chrono::milliseconds watchdog_interval_{0};
};

}  // namespace v0_1_0
}  // namespace ojs
