#pragma once

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "../base/detail/light.hpp"
#include "../base/detail/text.hpp"
#include "../base/duration.hpp"
#include "../base/log.hpp"
#include "../net/detail/socket.ipp"
#include "service_notifier.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
inline constexpr std::size_t max_notification_size = 4096;
inline constexpr std::size_t max_status_length = 1000;

inline error invalid_variable(const char* name, std::string_view value, std::string_view reason,
                              errc code = errc::invalid_argument) {
    return {code, 0, cat({name, "='", printable(value), "' cannot be used: ", reason})};
}

// $NOTIFY_SOCKET as the bytes of sun_path.
inline result<std::string> notify_address(std::string_view value) {
    constexpr const char* name = "NOTIFY_SOCKET";
    const bool abstract = value.front() == '@';
    if (value.front() != '/' && !abstract)
        return invalid_variable(name, value, "neither an absolute path nor @ and a name", errc::unsupported);
#ifndef __linux__
    if (abstract) return invalid_variable(name, value, "abstract names exist only on Linux", errc::unsupported);
#endif
    // A path ends with a NUL, an abstract name begins with one.
    constexpr std::size_t max_length = sizeof(sockaddr_un::sun_path);
    if (value.size() > (abstract ? max_length : max_length - 1))
        return invalid_variable(name, value, cat({"longer than the ", max_length - 1, " bytes of a socket's path"}));
    if (value.size() < 2) return invalid_variable(name, value, "no name follows");
    std::string out(value);
    if (abstract) out.front() = '\0';
    return out;
}

// Half of $WATCHDOG_USEC; 0 if it is unset or meant for another process.
inline result<std::chrono::milliseconds> watchdog_share(const char* usec, const char* pid) {
    constexpr auto most = static_cast<std::uint64_t>(INT64_MAX);
    std::uint64_t interval = 0;
    std::uint64_t watched = 0;
    if (usec == nullptr) return std::chrono::milliseconds(0);
    if (!parse_number(usec, most, interval) || interval == 0)
        return invalid_variable("WATCHDOG_USEC", usec, "not a number of microseconds");
    if (pid != nullptr && !parse_number(pid, most, watched))
        return invalid_variable("WATCHDOG_PID", pid, "not a process id");
    if (pid != nullptr && watched != static_cast<std::uint64_t>(::getpid())) return std::chrono::milliseconds(0);
    const auto half = static_cast<std::int64_t>(interval / 2000);
    return std::chrono::milliseconds(half > 0 ? half : 1);
}

// A line break in a text would begin another assignment.
inline std::string status_line(std::string_view text) {
    std::string out;
    while (!text.empty()) {
        const std::string_view character = take_character(text).repaired();
        if (out.size() + character.size() > max_status_length) break;
        const auto first = static_cast<unsigned char>(character.front());
        append(out, {first < 0x20 || first == 0x7f ? std::string_view(" ") : character});
    }
    return out;
}

inline std::string with_status(std::string assignment, std::string_view text) {
    if (!text.empty()) append(assignment, {"\nSTATUS=", status_line(text)});
    return assignment;
}

inline std::string reloading_since(const timespec& now) {
    const long long usec = static_cast<long long>(now.tv_sec) * 1000000 + now.tv_nsec / 1000;
    return cat({"RELOADING=1\nMONOTONIC_USEC=", usec});
}

inline error notify_failure(int failed) {
    errc code = errc::system;
    if (failed == ENOENT || failed == ECONNREFUSED || failed == ENOTDIR) code = errc::unreachable;
    if (failed == EAGAIN || failed == EWOULDBLOCK || failed == ENOBUFS) code = errc::unavailable;
    return {code, failed, cat({"cannot notify the service manager: ", errno_text(failed)})};
}
}  // namespace detail

OJS_SHUTDOWN_INLINE result<service_notifier> service_notifier::from_environment(const environment_lookup& lookup) {
    service_notifier out;
    const char* const where = detail::find_variable(lookup, "NOTIFY_SOCKET");
    if (where == nullptr || *where == '\0') return result<service_notifier>(std::move(out));
    result<std::string> address = detail::notify_address(where);
    if (!address) return address.error();
    const auto share = detail::watchdog_share(detail::find_variable(lookup, "WATCHDOG_USEC"),
                                              detail::find_variable(lookup, "WATCHDOG_PID"));
    if (!share) return share.error();
    out.socket_ = detail::open_socket(AF_UNIX, SOCK_DGRAM);
    if (!out.socket_) return detail::notify_failure(errno);
    out.address_ = std::move(*address);
    out.watchdog_interval_ = *share;
    return result<service_notifier>(std::move(out));
}

OJS_SHUTDOWN_INLINE result<void> service_notifier::notify_ready(std::string_view text) const {
    return send(detail::with_status("READY=1", text));
}

OJS_SHUTDOWN_INLINE result<void> service_notifier::notify_reloading(std::string_view text) const {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return send(detail::with_status(detail::reloading_since(now), text));
}

OJS_SHUTDOWN_INLINE result<void> service_notifier::notify_status(std::string_view text) const {
    return send(detail::cat({"STATUS=", detail::status_line(text)}));
}

OJS_SHUTDOWN_INLINE result<void> service_notifier::notify_stopping(std::string_view text) const {
    return send(detail::with_status("STOPPING=1", text));
}

OJS_SHUTDOWN_INLINE result<void> service_notifier::extend_timeout(detail::any_ms from_now) const {
    constexpr std::chrono::milliseconds max = std::chrono::hours(24 * 365);  // no overflow in microseconds
    const long long usec = std::max<long long>(std::min<std::chrono::milliseconds>(from_now, max).count(), 0) * 1000;
    return send(detail::cat({"EXTEND_TIMEOUT_USEC=", usec}));
}

OJS_SHUTDOWN_INLINE result<void> service_notifier::notify_watchdog() const { return send("WATCHDOG=1"); }

OJS_SHUTDOWN_INLINE result<void> service_notifier::send(std::string_view assignments) const {
    if (!active()) return {};
    if (assignments.size() > detail::max_notification_size) {
        return error{
            errc::invalid_argument, 0,
            detail::cat({"notification of ", assignments.size(), " bytes; at most ", detail::max_notification_size})};
    }
    // Not connected: a restarted manager has a new socket of the same name.
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, address_.data(), address_.size());
    // An abstract name is exactly its length; a path includes its final NUL.
    const std::size_t used = address_.size() + (address_.front() == '\0' ? 0 : 1);
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + used);
    for (;;) {
        const ssize_t sent = ::sendto(socket_.get(), assignments.data(), assignments.size(), detail::send_flags,
                                      reinterpret_cast<const sockaddr*>(&to), length);
        if (sent >= 0) return {};
        if (errno != EINTR) return detail::notify_failure(errno);
    }
}

namespace detail {
// Reports a program's state to the service manager when it is due. For one thread. [sd_notify]
class service_report {
  public:
    explicit service_report(const logger& log) : log_(log) {}

    void start(time_point now) {
        result<service_notifier> found = service_notifier::from_environment();
        if (!found) {
            log_failure(found.error());
            found = service_notifier::from_environment(without_watchdog);  // READY=1 must arrive anyway
        }
        if (found) notifier_ = std::move(*found);
        if (notifier_.active() && notifier_.watchdog_interval().count() > 0) watchdog_due_ = now;
    }
    bool active() const noexcept { return notifier_.active(); }

    // READY=1 when `is_ready` first holds, and after a reload; RELOADING=1 when one begins; else the text, whenever it
    // changes.
    void report(bool is_ready, const std::string& text, bool is_reloading = false) {
        const state next = next_state(reported_, is_ready, is_reloading);
        if (!active() || (next == reported_ && (next == state::starting || text == reported_text_))) return;
        if (!log_result(send(next, text))) return;  // retried later
        reported_ = next;
        reported_text_ = text;
    }
    // STOPPING=1 starts the manager's stop timeout: so it is sent on a drain, never on quiet.
    void stopping(std::string_view text) {
        if (!active()) return;
        log_result(notifier_.notify_stopping(text));
        if (reported_ != state::starting) reported_ = state::stopping;
        extension_due_ = time_point::min();
    }

    time_point next_due() const noexcept { return std::min(watchdog_due_, extension_due_); }
    // Sends what is due. Requests more time in small steps until `end`, the stop's deadline; true: it did.
    bool tick(time_point now, time_point end) {
        if (now >= watchdog_due_) {
            log_result(notifier_.notify_watchdog());
            watchdog_due_ = now + notifier_.watchdog_interval();
        }
        if (now < extension_due_) return false;
        extension_due_ = now + extension_interval;
        if (now >= end) return false;
        const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - now);
        return log_result(notifier_.extend_timeout(std::min(left + extension_interval, max_extension)));
    }

  private:
    enum class state { starting, ready, reloading, stopping };
    // A manager takes a reload only from a service that has started, and nothing ends a stop.
    static state next_state(state now, bool is_ready, bool is_reloading) noexcept {
        if (now == state::stopping) return now;
        if (now == state::starting) return is_ready ? state::ready : now;
        return is_reloading ? state::reloading : state::ready;
    }
    result<void> send(state next, std::string_view text) const {
        if (next == reported_) return notifier_.notify_status(text);
        return next == state::reloading ? notifier_.notify_reloading(text) : notifier_.notify_ready(text);
    }
    static const char* without_watchdog(const char* name) {
        return std::strncmp(name, "WATCHDOG_", 9) == 0 ? nullptr : std::getenv(name);
    }
    bool log_result(const result<void>& sent) {
        if (sent) failure_logged_ = false;
        if (!sent) log_failure(sent.error());
        return sent.has_value();
    }
    void log_failure(const error& reason) {
        if (!detail::exchange(failure_logged_, true))
            log_.write(log_level::warn, "cannot notify the service manager", {field("error", reason.text)});
    }

    static constexpr std::chrono::milliseconds extension_interval{1000};
    static constexpr std::chrono::milliseconds max_extension{5000};

    const logger& log_;
    service_notifier notifier_;
    std::string reported_text_;
    time_point watchdog_due_ = time_point::max();
    time_point extension_due_ = time_point::max();
    state reported_ = state::starting;
    bool failure_logged_ = false;
};
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
