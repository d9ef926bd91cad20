// Sockets with deadlines. Each is close-on-exec, and non-blocking unless it is connected: see connect_socket().
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cstring>
#include <string>
#include <string_view>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.ipp"
#include "../../base/detail/text.hpp"
#include "../../base/duration.hpp"
#include "../../base/error.hpp"
#include "../../core/detail/wake.hpp"
#include "../http_message.ipp"
#include "url.ipp"

namespace ojs::detail {

struct socket_address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

using socket_addresses = array<socket_address>;

enum class io_status { ok, closed, timed_out, interrupted, failed };

#ifdef SO_NOSIGPIPE  // set on every socket: a macOS whose headers have MSG_NOSIGNAL may run on one that ignores it
inline constexpr int send_flags = MSG_DONTWAIT;
#else
inline constexpr int send_flags = MSG_NOSIGNAL | MSG_DONTWAIT;
#endif

inline constexpr auto receive_limit = std::chrono::milliseconds(800);
inline constexpr auto lookup_max_age = std::chrono::seconds(30);
inline constexpr auto lookup_fallback_delay = std::chrono::milliseconds(200);  // then tries older addresses

inline void set_option(int fd, int level, int name, int value) noexcept {
    ::setsockopt(fd, level, name, &value, sizeof value);
}

// A dead peer is noticed within 20 s, also between requests: a NAT or a load balancer may have forgotten the connection.
inline void set_keep_alive(int fd) noexcept {
    set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
#if defined(TCP_KEEPIDLE) && defined(TCP_KEEPINTVL) && defined(TCP_KEEPCNT)
    set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 10);
    set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
    set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 2);
#endif
#ifdef TCP_USER_TIMEOUT
    set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, 20000);
#endif
}

inline void set_stream_options(int fd, int family) noexcept {
    if (family != AF_UNIX) set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
#ifdef SO_NOSIGPIPE
    set_option(fd, SOL_SOCKET, SO_NOSIGPIPE, 1);
#endif
}

inline void set_nonblocking(int fd, bool on) noexcept {
    const int flags = ::fcntl(fd, F_GETFL);
    ::fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

inline unique_fd open_socket(int family, int type = SOCK_STREAM) noexcept {
#if defined(SOCK_CLOEXEC) && defined(SOCK_NONBLOCK)
    unique_fd out(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
#else
    unique_fd out(::socket(family, type, 0));
    if (out) {
        ::fcntl(out.get(), F_SETFD, FD_CLOEXEC);
        set_nonblocking(out.get(), true);
    }
#endif
    if (out) set_stream_options(out.get(), family);
    return out;
}

// Once the deadline has passed, timed_out even if the descriptor is ready. interrupted: `interrupt_fd` (-1: none) is
// readable. failed: see errno.
inline io_status await_ready(int fd, short events, time_point deadline, int interrupt_fd = -1) noexcept {
    for (;;) {
        const int timeout = poll_timeout(deadline);
        if (timeout == 0) return io_status::timed_out;
        pollfd watched[] = {{fd, events, 0}, {interrupt_fd, POLLIN, 0}};
        const int ready = ::poll(watched, interrupt_fd < 0 ? 1 : 2, timeout);
        if (ready > 0) return watched[1].revents != 0 ? io_status::interrupted : io_status::ok;
        if (ready < 0 && errno != EINTR) return io_status::failed;
    }
}

inline bool would_block(int error_number) noexcept {
    return error_number == EAGAIN || error_number == EWOULDBLOCK;
}

inline socket_address address_of(const void* source, socklen_t length) noexcept {
    socket_address out;
    std::memcpy(&out.storage, source, length);
    out.length = length;
    return out;
}

// The addresses that need no lookup; none if `host` is another name than localhost.
inline socket_addresses known_addresses(const endpoint& target) {
    if (!target.unix_path.empty()) {
        sockaddr_un local{};
        local.sun_family = AF_UNIX;
        const std::string& path = target.unix_path;
        std::memcpy(local.sun_path, path.c_str(), path.size() + 1);  // see parse_unix_url()
        return {address_of(&local, sizeof local)};
    }
    sockaddr_in ip4{};
    ip4.sin_family = AF_INET;
    ip4.sin_port = htons(target.port);
    sockaddr_in6 ip6{};
    ip6.sin6_family = AF_INET6;
    ip6.sin6_port = ip4.sin_port;
    if (::inet_pton(AF_INET, target.host.c_str(), &ip4.sin_addr) == 1) return {address_of(&ip4, sizeof ip4)};
    if (::inet_pton(AF_INET6, target.host.c_str(), &ip6.sin6_addr) == 1)
        return {address_of(&ip6, sizeof ip6)};
    if (!equals_ignore_case(target.host, "localhost")) return {};
    ip4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ip6.sin6_addr = in6addr_loopback;
    return {address_of(&ip4, sizeof ip4), address_of(&ip6, sizeof ip6)};
}

inline socket_address local_address(int fd) noexcept {
    socket_address out;
    out.length = sizeof out.storage;
    ::getsockname(fd, out.get(), &out.length);
    return out;
}

// TCP connects a socket to itself if the kernel picks the unused destination port as the source port.
inline bool is_connected_to_itself(int fd) noexcept {
    const socket_address local = local_address(fd);
    socket_address peer;
    peer.length = sizeof peer.storage;
    return ::getpeername(fd, peer.get(), &peer.length) == 0 && peer.length == local.length &&
           std::memcmp(&peer.storage, &local.storage, peer.length) == 0;
}

inline time_point divided_deadline(time_point deadline, std::size_t shares) noexcept {
    if (deadline == time_point::max()) return deadline;
    const time_point now = steady_clock::now();
    return now + (deadline - now) / static_cast<int>(shares);
}

// Returns 0, or why there is no connection.
inline int connect_to(int fd, const socket_address& address, time_point deadline) noexcept {
    int failed = 0;
    while (::connect(fd, address.get(), address.length) != 0) {
        failed = errno;
        if (address.storage.ss_family != AF_UNIX || !would_block(failed)) break;
        if (steady_clock::now() >= deadline) return ETIMEDOUT;
        pause_for(std::chrono::milliseconds(5));  // until there is space in the listen queue
        failed = 0;
    }
    if (failed == EINPROGRESS || failed == EINTR) {  // interrupted, it continues by itself
        const io_status ready = await_ready(fd, POLLOUT, deadline);
        if (ready != io_status::ok) return ready == io_status::timed_out ? ETIMEDOUT : errno;
        socklen_t size = sizeof failed;
        if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return errno;
    }
    return failed == 0 && is_connected_to_itself(fd) ? ECONNREFUSED : failed;
}

// Each address gets a fair share of the time. recv() blocks for up to receive_limit. Errors: unreachable.
inline result<unique_fd> connect_socket(const socket_addresses& addresses, time_point deadline,
                                        std::string_view name) {
    int first_failure = 0;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
        const int family = addresses[i].storage.ss_family;
        const time_point until = divided_deadline(deadline, addresses.size() - i);
        unique_fd out = open_socket(family);
        const int failed = out ? connect_to(out.get(), addresses[i], until) : errno;
        if (failed == 0) {
            set_nonblocking(out.get(), false);
            if (family != AF_UNIX) set_keep_alive(out.get());
            const timeval limit{0, std::chrono::microseconds(receive_limit).count()};
            ::setsockopt(out.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
            return out;
        }
        if (first_failure == 0) first_failure = failed;
    }
    return error{errc::unreachable, first_failure,
                 cat({"cannot connect to ", name, ": ", errno_text(first_failure)})};
}

// Resolves one host and connects. Numeric addresses, localhost and unix paths need no lookup, and so no file. Other
// names are looked up in a thread that shares this object and that nothing waits for, so that the deadline holds however
// slow DNS is. Addresses are used for 30 s, older ones if a lookup fails or takes longer than 200 ms: name servers may
// stop before the backend does.
class resolver final : public ref_counted {
  public:
    explicit resolver(endpoint target) : target_(std::move(target)), port_(cat({target_.port})) {}

    // Errors: unreachable (also when the deadline passed). Thread-safe.
    result<unique_fd> connect(time_point deadline) {
        const socket_addresses known = known_addresses(target_);
        if (!known.empty()) return connect_socket(known, deadline, target_.name);
        unique_lock held(mutex_);
        if (!is_pending_ && steady_clock::now() >= fresh_until_) begin_lookup();
        const time_point fall_back_at = began_at_ + lookup_fallback_delay;
        await_lookup(held, found_.empty() ? deadline : detail::min(deadline, fall_back_at));
        if (is_pending_ && !found_.empty()) {
            result<unique_fd> connected = connect_to_found(held, divided_deadline(deadline, 2));
            if (connected) return connected;
            await_lookup(held, deadline);
        }
        if (is_pending_)
            return error{errc::unreachable, ETIMEDOUT,
                         cat({"looking up '", target_.host, "' took too long"})};
        if (found_.empty())
            return error{errc::unreachable, 0, cat({"cannot look up '", target_.host, "': ", failure_})};
        return connect_to_found(held, deadline);
    }

  private:
    void begin_lookup() {
        const ref<resolver> self(this);
        result<thread> started = thread::start([self] { self->look_up(); }, {0, 0, false, "ojs-lookup"});
        began_at_ = steady_clock::now();
        is_pending_ = started.has_value();
        if (started) started->detach();
        if (!started) failure_ = "cannot create a thread";
    }

    void await_lookup(unique_lock& held, time_point deadline) noexcept {
        while (is_pending_ && finished_.wait_until(held, deadline)) continue;
    }

    result<unique_fd> connect_to_found(unique_lock& held, time_point deadline) {
        const socket_addresses addresses = found_;
        held.unlock();
        result<unique_fd> connected = connect_socket(addresses, deadline, target_.name);
        held.lock();
        if (!connected) fresh_until_ = time_point();  // none of these addresses accepts a connection
        return connected;
    }

    // The thread of a lookup.
    void look_up() noexcept {
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = AI_NUMERICSERV;
        addrinfo* list = nullptr;
        const int code = ::getaddrinfo(target_.host.c_str(), port_.c_str(), &hints, &list);
        socket_addresses found;
        const bool is_kept = attempt([&] {
            for (const addrinfo* each = list; each != nullptr; each = each->ai_next) {
                if (each->ai_family == AF_INET || each->ai_family == AF_INET6)
                    found.push_back(address_of(each->ai_addr, each->ai_addrlen));
            }
        });
        if (code == 0) ::freeaddrinfo(list);
        const unique_lock held(mutex_);
        is_pending_ = false;
        failure_ = !is_kept ? "out of memory" : code != 0 ? ::gai_strerror(code) : "it has no IP address";
        fresh_until_ = found.empty() ? time_point() : steady_clock::now() + lookup_max_age;
        if (!found.empty()) found_ = std::move(found);
        finished_.notify_all();
    }

    const endpoint target_;
    const std::string port_;
    mutex mutex_;  // of all below
    condition finished_;
    bool is_pending_ = false;   // a lookup is in progress; it ends by itself
    time_point began_at_;       // the latest lookup
    time_point fresh_until_;    // of `found_`
    socket_addresses found_;    // by the latest lookup that found any
    const char* failure_ = "";  // of the latest lookup
};

}  // namespace ojs::detail
