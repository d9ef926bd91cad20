// Sockets with deadlines. Each is close-on-exec and non-blocking.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <cstring>

#include "../../base/detail/sync.ipp"
#include "../../core/detail/wake.hpp"
#include "url.ipp"

namespace ojs::detail {
struct socket_address {
    socket_address() = default;
    socket_address(const void* source, socklen_t size) noexcept : length(size) { std::memcpy(&storage, source, size); }

    sockaddr_storage storage{};
    socklen_t length = sizeof storage;

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

inline void set_option(int fd, int level, int name, int value) noexcept {
    ::setsockopt(fd, level, name, &value, sizeof value);
}

// A dead peer is noticed within 20 s: a NAT or a load balancer may have forgotten the connection.
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

inline unique_fd open_socket(int family, int type = SOCK_STREAM) noexcept {
#if defined(SOCK_CLOEXEC) && defined(SOCK_NONBLOCK)
    unique_fd out(::socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
#else
    unique_fd out(::socket(family, type, 0));
    ::fcntl(out.get(), F_SETFD, FD_CLOEXEC);
    ::fcntl(out.get(), F_SETFL, O_NONBLOCK);
#endif
    if (out) set_stream_options(out.get(), family);
    return out;
}

// Once the deadline has passed, timed_out even if the descriptor is ready. interrupted: `interrupt_fd` is readable.
inline io_status await_ready(int fd, short events, time_point deadline, int interrupt_fd = -1) noexcept {
    for (;;) {
        const int timeout = poll_timeout(deadline);
        if (timeout == 0) return io_status::timed_out;
        pollfd watched[] = {{fd, events, 0}, {interrupt_fd, POLLIN, 0}};
        const int ready = ::poll(watched, 2, timeout);
        if (ready > 0) return watched[1].revents != 0 ? io_status::interrupted : io_status::ok;
        if (ready < 0 && errno != EINTR) return io_status::failed;
    }
}

// None: see `failure`. AI_NUMERICHOST in `flags`: at once.
inline socket_addresses find_addresses(const char* host, std::uint16_t port, int flags, const char*& failure) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV | flags;
    addrinfo* list = nullptr;
    const int code = ::getaddrinfo(host, cat({port}).c_str(), &hints, &list);
    socket_addresses out;
    for (const addrinfo* each = list; each != nullptr; each = each->ai_next)
        out.push_back({each->ai_addr, each->ai_addrlen});
    if (code == 0) ::freeaddrinfo(list);
    failure = code == 0 ? nullptr : ::gai_strerror(code);
    return out;
}

// The addresses that need no lookup; none if `host` is another name than localhost.
inline socket_addresses known_addresses(const endpoint& target) {
    if (!target.unix_path.empty()) {
        sockaddr_un local{};
        local.sun_family = AF_UNIX;
        std::memcpy(local.sun_path, target.unix_path.c_str(), target.unix_path.size() + 1);  // see parse_unix_url()
        return {socket_address(&local, sizeof local)};
    }
    const bool is_localhost = equals_ignore_case(dns_name(target.host), "localhost");
    const char* unused = nullptr;
    socket_addresses out =
        find_addresses(is_localhost ? "127.0.0.1" : target.host.c_str(), target.port, AI_NUMERICHOST, unused);
    if (is_localhost) out.push_back(find_addresses("::1", target.port, AI_NUMERICHOST, unused)[0]);
    return out;
}

// TCP connects a socket to itself if the kernel picks the unused destination port as its source.
inline bool is_connected_to_itself(int fd) noexcept {
    socket_address local;
    socket_address peer;
    return ::getsockname(fd, local.get(), &local.length) == 0 && ::getpeername(fd, peer.get(), &peer.length) == 0 &&
           peer.length == local.length && std::memcmp(&peer.storage, &local.storage, peer.length) == 0;
}

// Returns 0, or why there is no connection.
inline int connect_to(int fd, const socket_address& address, time_point deadline) noexcept {
    int failed = ::connect(fd, address.get(), address.length) == 0 ? 0 : errno;
    while (failed == EAGAIN && steady_clock::now() < deadline) {  // the listen queue of a unix socket is full
        pause_for(milliseconds(5));
        failed = ::connect(fd, address.get(), address.length) == 0 ? 0 : errno;
    }
    if (failed == EINPROGRESS || failed == EINTR) {  // interrupted, it continues by itself
        const io_status ready = await_ready(fd, POLLOUT, deadline);
        if (ready != io_status::ok) return ready == io_status::timed_out ? ETIMEDOUT : errno;
        socklen_t size = sizeof failed;
        if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return errno;
    }
    return failed == 0 && is_connected_to_itself(fd) ? ECONNREFUSED : failed;
}

// Each address gets 250 ms, and then a share of the time; the one that accepts becomes the first. Errors: unreachable.
inline result<unique_fd> connect_socket(socket_addresses& addresses, time_point deadline, std::string_view name) {
    const std::size_t tries = addresses.size() == 1 ? 1 : addresses.size() * 2;
    int first_failure = 0;
    for (std::size_t i = 0; i < tries; ++i) {
        socket_address& address = addresses[i % addresses.size()];
        const time_point now = steady_clock::now();
        const auto share = (deadline - now) / static_cast<int>(tries - i);
        const auto time = i < tries / 2 ? min<steady_clock::duration>(share, milliseconds(250)) : share;
        unique_fd out = open_socket(address.storage.ss_family);
        const int failed = out ? connect_to(out.get(), address, now + time) : errno;
        if (failed == 0) set_keep_alive(out.get());
        if (failed == 0) swap(addresses[0], address);
        if (failed == 0) return out;
        if (first_failure == 0) first_failure = failed;
    }
    return error{errc::unreachable, first_failure, cat({"cannot connect to ", name, ": ", errno_text(first_failure)})};
}

// Connects to one host. The addresses of a name are used until none accepts a connection. A thread looks them
// up, so that deadlines hold however slow DNS is; a later call waits for the same lookup.
class resolver final : public ref_counted {
  public:
    explicit resolver(endpoint target)
        : target_(std::move(target)), found_(known_addresses(target_)), is_name_(found_.empty()) {}

    // Errors: unreachable (also when the deadline passed). Thread-safe.
    result<unique_fd> connect(time_point deadline) {
        unique_lock held(mutex_);
        if (!found_.empty()) {
            const auto spared = is_name_ ? (deadline - steady_clock::now()) / 2 : time_point::duration();
            result<unique_fd> connected = connect_to_found(held, deadline - spared);
            if (connected || !is_name_) return connected;
        }
        if (!is_pending_) begin_lookup();
        while (is_pending_ && finished_.wait_until(held, deadline)) continue;
        const char* const problem = is_pending_ ? "no response before the deadline" : failure_;
        if (problem == nullptr) return connect_to_found(held, deadline);
        return error{errc::unreachable, is_pending_ ? ETIMEDOUT : 0,
                     cat({"cannot look up '", target_.host, "': ", problem})};
    }

  private:
    result<unique_fd> connect_to_found(unique_lock& held, time_point deadline) {
        socket_addresses addresses = found_;
        held.unlock();
        result<unique_fd> connected = connect_socket(addresses, deadline, target_.name);
        held.lock();
        if (connected) found_ = std::move(addresses);
        return connected;
    }

    void begin_lookup() {
        const ref<resolver> self(this);
        result<thread> started = thread::start([self] { self->look_up(); }, {0, false, "ojs-lookup"});
        is_pending_ = started.has_value();
        if (started) started->detach();
        if (!started) failure_ = "cannot create a thread";
    }

    void look_up() {
        const char* failure = nullptr;
        socket_addresses found = find_addresses(target_.host.c_str(), target_.port, 0, failure);
        const unique_lock held(mutex_);
        is_pending_ = false;
        failure_ = failure;
        if (failure == nullptr) found_ = std::move(found);
        finished_.notify_all();
    }

    const endpoint target_;
    mutex mutex_;  // of what is below, but for is_name_
    condition finished_;
    socket_addresses found_;         // known, or by the latest lookup that found any; the latest to accept first
    const bool is_name_;             // addresses need a lookup
    bool is_pending_ = false;        // a lookup is in progress
    const char* failure_ = nullptr;  // of the latest lookup
};
}  // namespace ojs::detail
