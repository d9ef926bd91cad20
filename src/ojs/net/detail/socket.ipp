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

struct io_result {
    io_status status = io_status::ok;
    std::size_t bytes = 0;  // transferred, even if the status is not ok
    int sys_errno = 0;      // if failed
};

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

// The end of a wait: a deadline, or a descriptor (-1: none) that is readable.
struct io_limit {
    time_point deadline;
    int interrupt_fd = -1;
};

// Once the deadline has passed, timed_out even if the descriptor is ready. failed: see errno.
inline io_status await_ready(int fd, short events, const io_limit& limit) noexcept {
    for (;;) {
        const int timeout = poll_timeout(limit.deadline);
        if (timeout == 0) return io_status::timed_out;
        pollfd watched[] = {{fd, events, 0}, {limit.interrupt_fd, POLLIN, 0}};
        const int ready = ::poll(watched, limit.interrupt_fd < 0 ? 1 : 2, timeout);
        if (ready > 0) return watched[1].revents != 0 ? io_status::interrupted : io_status::ok;
        if (ready < 0 && errno != EINTR) return io_status::failed;
    }
}

inline bool would_block(int error_number) noexcept {
    return error_number == EAGAIN || error_number == EWOULDBLOCK;
}

inline io_result send_all(int fd, std::string_view bytes, time_point deadline) noexcept {
    io_result out;
    while (out.bytes < bytes.size() && out.status == io_status::ok) {
        const ssize_t sent = ::send(fd, bytes.data() + out.bytes, bytes.size() - out.bytes, send_flags);
        if (sent >= 0) {
            out.bytes += static_cast<std::size_t>(sent);
        } else if (errno != EINTR) {
            out.sys_errno = errno;
            out.status = would_block(errno) ? await_ready(fd, POLLOUT, {deadline, -1}) : io_status::failed;
        }
    }
    return out;
}

// ok: at least one byte. On a connect_socket() with time left, it blocks in one system call instead of polling first.
inline io_result recv_some(int fd, char* buffer, std::size_t size, time_point deadline) noexcept {
    for (bool blocks = deadline - steady_clock::now() >= receive_limit;; blocks = false) {
        const io_status ready = blocks ? io_status::ok : await_ready(fd, POLLIN, {deadline, -1});
        if (ready != io_status::ok) return {ready, 0, errno};
        const ssize_t received = ::recv(fd, buffer, size, blocks ? 0 : MSG_DONTWAIT);
        if (received > 0) return {io_status::ok, static_cast<std::size_t>(received), 0};
        if (received == 0) return {io_status::closed, 0, 0};
        // A socket reports a failure once; a second call would return "closed", which may end a response.
        if (errno != EINTR && !would_block(errno)) return {io_status::failed, 0, errno};
    }
}

// The result of recv() for the next byte, without consuming it.
inline ssize_t peek(int fd) noexcept {
    for (;;) {
        char byte = 0;
        const ssize_t received = ::recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        if (received >= 0 || errno != EINTR) return received;
    }
}

template <class Address>
socket_address address_of(const Address& source) noexcept {
    socket_address out;
    std::memcpy(&out.storage, &source, sizeof source);
    out.length = sizeof source;
    return out;
}

// The addresses that need no lookup; none if `host` is another name than localhost.
inline socket_addresses known_addresses(const endpoint& target) {
    if (!target.unix_path.empty()) {
        sockaddr_un local{};
        local.sun_family = AF_UNIX;
        std::memcpy(local.sun_path, target.unix_path.c_str(),
                    target.unix_path.size() + 1);  // see parse_unix_path()
        return {address_of(local)};
    }
    sockaddr_in ip4{};
    ip4.sin_family = AF_INET;
    ip4.sin_port = htons(target.port);
    sockaddr_in6 ip6{};
    ip6.sin6_family = AF_INET6;
    ip6.sin6_port = ip4.sin_port;
    if (::inet_pton(AF_INET, target.host.c_str(), &ip4.sin_addr) == 1) return {address_of(ip4)};
    if (::inet_pton(AF_INET6, target.host.c_str(), &ip6.sin6_addr) == 1) return {address_of(ip6)};
    if (!equals_ignore_case(target.host, "localhost")) return {};
    ip4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ip6.sin6_addr = in6addr_loopback;
    return {address_of(ip4), address_of(ip6)};
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

// Only a blocking connect() waits for space in the listen queue, so this one has a time limit.
inline int connect_unix(int fd, const socket_address& address, time_point deadline) noexcept {
    set_nonblocking(fd, false);
    int failed = EINTR;
    while (failed == EINTR) {
        const int left = poll_timeout(deadline);
        if (left == 0) return ETIMEDOUT;
        const timeval limit = left < 0 ? timeval{} : timeval{left / 1000, left % 1000 * 1000};  // 0: no limit
        ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        failed = ::connect(fd, address.get(), address.length) == 0 ? 0 : errno;
    }
    return would_block(failed) ? ETIMEDOUT : failed;
}

inline int connect_tcp(int fd, const socket_address& address, time_point deadline) noexcept {
    if (::connect(fd, address.get(), address.length) != 0) {
        if (errno != EINPROGRESS && errno != EINTR) return errno;  // interrupted, it continues by itself
        const io_status ready = await_ready(fd, POLLOUT, {deadline, -1});
        if (ready != io_status::ok) return ready == io_status::timed_out ? ETIMEDOUT : errno;
        int failed = 0;
        socklen_t size = sizeof failed;
        if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &failed, &size) != 0) return errno;
        if (failed != 0) return failed;
    }
    return is_connected_to_itself(fd) ? ECONNREFUSED : 0;
}

// Each address gets a fair share of the time. recv() blocks for up to receive_limit: see recv_some(). Errors: unreachable.
inline result<unique_fd> connect_socket(const socket_addresses& addresses, time_point deadline,
                                        std::string_view name) {
    int first_failure = 0;
    for (std::size_t i = 0; i < addresses.size(); ++i) {
        const int family = addresses[i].storage.ss_family;
        const time_point until = divided_deadline(deadline, addresses.size() - i);
        unique_fd out = open_socket(family);
        const int failed = !out                ? errno
                           : family == AF_UNIX ? connect_unix(out.get(), addresses[i], until)
                                               : connect_tcp(out.get(), addresses[i], until);
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

// One getaddrinfo() and its result. Runs in a thread that nothing waits for and that touches nothing else.
class address_lookup final : public ref_counted {
  public:
    address_lookup(std::string host, std::uint16_t port) : host_(std::move(host)), port_(cat({port})) {}

    void run() noexcept {
        addrinfo hints{};
        hints.ai_socktype = SOCK_STREAM;
        hints.ai_flags = AI_NUMERICSERV;
        addrinfo* list = nullptr;
        const int code = ::getaddrinfo(host_.c_str(), port_.c_str(), &hints, &list);
        finish(list, code != 0 ? ::gai_strerror(code) : "it has no IP address");
        if (code == 0) ::freeaddrinfo(list);
    }

    void finish(const addrinfo* list, const char* failure) noexcept {
        const unique_lock held(mutex_);
        failure_ = failure;
        if (!attempt([&] { keep(list); })) failure_ = "out of memory";
        done_ = true;
        fresh_until_ = found_.empty() ? time_point() : steady_clock::now() + lookup_max_age;
        finished_.notify_all();
    }

    // Whether a caller should use this lookup: it is in progress, or recent and successful.
    bool is_usable() const noexcept { return steady_clock::now() < fresh_until_.load(); }
    void expire() noexcept { fresh_until_ = time_point(); }
    time_point began_at() const noexcept { return began_at_; }

    result<socket_addresses> wait_until(time_point deadline) {
        unique_lock held(mutex_);
        while (!done_ && finished_.wait_until(held, deadline)) continue;
        if (!done_)
            return error{errc::unreachable, ETIMEDOUT, cat({"looking up '", host_, "' took too long"})};
        if (found_.empty())
            return error{errc::unreachable, 0, cat({"cannot look up '", host_, "': ", failure_})};
        return found_;
    }

  private:
    void keep(const addrinfo* list) {
        for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
            if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
            socket_address address;
            std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
            address.length = entry->ai_addrlen;
            found_.push_back(address);
        }
    }

    const std::string host_;
    const std::string port_;
    const time_point began_at_ = steady_clock::now();
    mutex mutex_;
    condition finished_;
    bool done_ = false;
    const char* failure_ = "";                           // why there are no addresses
    atomic<time_point> fresh_until_{time_point::max()};  // while in progress
    socket_addresses found_;
};

// Resolves and connects. Numeric addresses, localhost and unix paths need no lookup, and so no file. Other names are
// looked up in one thread, so that the deadline holds however slow DNS is. Addresses are used for 30 s, older ones if
// a lookup fails or takes longer than 200 ms: name servers may stop before the backend does.
class resolver {
  public:
    // Errors: unreachable (also when the deadline passed). Thread-safe.
    result<unique_fd> connect(const endpoint& target, time_point deadline) {
        const socket_addresses known = known_addresses(target);
        if (!known.empty()) return connect_socket(known, deadline, target.name);
        unique_lock held(mutex_);
        const ref<address_lookup> lookup = current_lookup(target);
        const ref<address_lookup> older = last_good_;
        held.unlock();
        const time_point fall_back_at = lookup->began_at() + lookup_fallback_delay;
        result<socket_addresses> found =
            lookup->wait_until(older && fall_back_at < deadline ? fall_back_at : deadline);
        if (!found && older) {
            const bool pending = found.error().sys_errno == ETIMEDOUT;
            const time_point until = pending ? divided_deadline(deadline, 2) : deadline;
            result<unique_fd> connected = connect_socket(*older->wait_until(until), until, target.name);
            if (connected || !pending) return connected;
            found = lookup->wait_until(deadline);
        }
        if (!found) return found.error();
        result<unique_fd> connected = connect_socket(*found, deadline, target.name);
        if (!connected) lookup->expire();  // none of these addresses accepts a connection
        return connected;
    }

  private:
    // With the mutex held. A lookup in progress ends by itself.
    ref<address_lookup> current_lookup(const endpoint& target) {
        if (lookup_ && lookup_->is_usable()) return lookup_;
        const ref<address_lookup> lookup = make_ref<address_lookup>(target.host, target.port);
        result<thread> started = thread::start([lookup] { lookup->run(); }, {0, 0, false, "ojs-lookup"});
        if (started) started->detach();
        if (!started) lookup->finish(nullptr, "cannot create a thread");
        if (lookup_ && lookup_->wait_until(time_point())) last_good_ = lookup_;
        return lookup_ = lookup;
    }

    mutex mutex_;
    ref<address_lookup> lookup_;
    ref<address_lookup> last_good_;  // an earlier one that found addresses
};

}  // namespace ojs::detail
