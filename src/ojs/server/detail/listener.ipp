// listener: sockets to listen on, opened or inherited, from their addresses.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../net/detail/socket.ipp"
#include "../../net/detail/url.ipp"

namespace ojs::detail {
// PORT, :PORT, IPV4:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH. Errors: invalid_argument.
inline result<endpoint> parse_listen_address(std::string_view address) {
    if (address.substr(0, 5) == "unix:") return parse_unix_url(address);
    endpoint out;
    std::string_view port = address;
    if (address.find(':') == std::string_view::npos) {
        out.host = "127.0.0.1";
    } else if (address.front() == ':') {
        out.host = "127.0.0.1";
        port.remove_prefix(1);
    } else if (const char* wrong = split_host_port(address, out.host, port)) {
        return bad_address(address, wrong);
    }
    if (equals_ignore_case(out.host, "localhost")) out.host = "127.0.0.1";
    if (!is_ip(AF_INET, out.host) && !is_ip(AF_INET6, out.host)) {
        return bad_address(address, "to listen takes PORT, IPV4:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH");
    }
    if (const char* wrong = parse_port(port, 0, out.port)) return bad_address(address, wrong);
    out.name = host_port(out.host, out.port);
    return out;
}

// Whether only processes of this machine can connect.
inline bool is_local(const endpoint& where) noexcept {
    if (!where.unix_path.empty()) return true;
    in6_addr ip6{};
    if (::inet_pton(AF_INET6, where.host.c_str(), &ip6) != 1) return where.host.compare(0, 4, "127.") == 0;
    static constexpr unsigned char mapped_127[] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127};
    return std::memcmp(&ip6, &in6addr_loopback, sizeof ip6) == 0 ||
           std::memcmp(&ip6, mapped_127, sizeof mapped_127) == 0;
}

inline void set_nonblocking(int fd) noexcept { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

// Accepts a connection, non-blocking and close-on-exec; empty with errno set if there is none.
inline unique_fd accept_socket(int listener) noexcept {
    socket_address peer;
    peer.length = sizeof peer.storage;
#if defined(SOCK_CLOEXEC) && defined(SOCK_NONBLOCK)
    unique_fd out(::accept4(listener, peer.get(), &peer.length, SOCK_CLOEXEC | SOCK_NONBLOCK));
#else
    unique_fd out(::accept(listener, peer.get(), &peer.length));
    if (out) {
        ::fcntl(out.get(), F_SETFD, FD_CLOEXEC);
        set_nonblocking(out.get());
    }
#endif
    if (out) set_stream_options(out.get(), peer.storage.ss_family);
    return out;
}

inline socket_address local_address(int fd) noexcept {
    socket_address out;
    ::getsockname(fd, out.get(), &out.length);
    return out;
}

inline std::uint16_t local_port(int fd) noexcept {
    const socket_address local = local_address(fd);
    sockaddr_in in{};  // sockaddr_in6 has the port in the same place
    if (local.storage.ss_family != AF_UNIX) std::memcpy(&in, &local.storage, sizeof in);
    return ntohs(in.sin_port);
}

inline error cannot_listen(const endpoint& where, int failed) {
    const errc code = failed == EADDRINUSE ? errc::busy : errc::system;
    return error{code, failed, cat({"cannot listen on ", where.name, ": ", errno_text(failed)})};
}

// A user who can write to the folder could replace our socket. A sticky folder protects it, once it exists.
inline result<void> check_folder(const std::string& folder, bool may_be_sticky) {
    struct stat found {};
    struct stat link {};  // another user's link may lead elsewhere later
    if (::stat(folder.c_str(), &found) != 0 || ::lstat(folder.c_str(), &link) != 0)
        return error{errc::system, errno, cat({"cannot inspect ", folder, ": ", errno_text(errno)})};
    const auto is_trusted = [](uid_t owner) { return owner == ::geteuid() || owner == 0; };
    const bool kept = (found.st_mode & (S_IWGRP | S_IWOTH)) == 0;
    const bool sticky = may_be_sticky && (found.st_mode & S_ISVTX) != 0;
    const bool is_ours = is_trusted(found.st_uid) && is_trusted(link.st_uid);
    if (is_ours && (kept || sticky)) return {};
    return error{errc::invalid_argument, 0,
                 cat({folder, is_ours ? " can be written to by other users: run chmod go-w"
                                      : " belongs to another user: run chown, or choose another folder"})};
}
inline result<void> check_folder_of(const std::string& socket_path) {
    if (socket_path.empty()) return {};  // a TCP address
    const std::size_t slash = socket_path.rfind('/');
    return check_folder(slash == 0 ? "/" : socket_path.substr(0, slash), true);
}

// Removes the socket file of a dead process. 0, or errno: EADDRINUSE for any other file.
inline int remove_dead_socket(const socket_address& address, const std::string& path) noexcept {
    struct stat found {};
    if (::lstat(path.c_str(), &found) != 0) return errno == ENOENT ? 0 : errno;
    if (!S_ISSOCK(found.st_mode)) return EADDRINUSE;  // someone's file: not ours to remove
    // ECONNREFUSED only without a live socket: a live stream socket gives EPROTOTYPE, undisturbed.
    const unique_fd probe = open_socket(AF_UNIX, SOCK_DGRAM);
    if (!probe) return errno;
    if (::connect(probe.get(), address.get(), address.length) == 0 || errno != ECONNREFUSED) return EADDRINUSE;
    return ::unlink(path.c_str()) == 0 || errno == ENOENT ? 0 : errno;
}

// Binds, if need be in place of a dead process's socket. Only the holder of the lock does so: bind() makes the file a
// moment before the kernel connects it to the socket, which looks dead until then.
inline int bind_locked(int fd, const socket_address& address, const std::string& path) {
    const std::string lock_path = path + ".ojs-lock";
    const unique_fd lock(::open(lock_path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
    if (!lock) return errno;
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK ? EADDRINUSE : errno;
    struct stat held {};
    const bool ours = ::fstat(lock.get(), &held) == 0 && S_ISREG(held.st_mode) && held.st_size == 0;
    if (!ours || held.st_nlink == 0) return EADDRINUSE;  // another file; or the lock was released in between
    int failed = ::bind(fd, address.get(), address.length) == 0 ? 0 : errno;
    if (failed == EADDRINUSE) {
        failed = remove_dead_socket(address, path);
        if (failed == 0 && ::bind(fd, address.get(), address.length) != 0) failed = errno;
    }
    ::unlink(lock_path.c_str());
    return failed;
}

// No client can connect between bind() and listen(), so the mode is set in time. On Linux bind() gives the file that of
// the socket, less the umask; elsewhere it is changed afterwards, without following a link.
inline int bind_unix(int fd, const socket_address& address, const std::string& path) {
    ::fchmod(fd, 0600);
    const int failed = bind_locked(fd, address, path);
    if (failed != 0) return failed;
    struct stat made {};
    if (::lstat(path.c_str(), &made) == 0 && (made.st_mode & 0777) == 0600) return 0;
    return ::fchmodat(AT_FDCWD, path.c_str(), 0600, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
}

inline int bind_tcp(int fd, const socket_address& address, bool reuse_port) noexcept {
    set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    if (reuse_port) set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (address.storage.ss_family == AF_INET6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);  // and IPv4
    return ::bind(fd, address.get(), address.length) == 0 ? 0 : errno;
}

// Replaces the file of a dead unix socket, and no other file. `reuse_port`: SO_REUSEPORT. Errors: busy, system;
// invalid_argument for a folder of other users.
inline result<unique_fd> listen_socket(const endpoint& where, bool reuse_port = false) {
    const result<void> safe = check_folder_of(where.unix_path);
    if (!safe)
        return error{safe.error().code, safe.error().sys_errno,
                     cat({"cannot listen on ", where.name, ": ", safe.error().text})};
    const socket_address address = known_addresses(where)[0];  // parse_listen_address() refuses names
    unique_fd out = open_socket(address.storage.ss_family);
    if (!out && errno == EAFNOSUPPORT && where.host == "::") {  // the kernel has no IPv6
        endpoint any = where;
        any.host = "0.0.0.0";
        return listen_socket(any, reuse_port);
    }
    if (!out) return cannot_listen(where, errno);
    const bool is_unix = !where.unix_path.empty();
    int failed = is_unix ? bind_unix(out.get(), address, where.unix_path) : bind_tcp(out.get(), address, reuse_port);
    if (failed == 0 && ::listen(out.get(), SOMAXCONN) != 0) failed = errno;
    if (failed != 0) return cannot_listen(where, failed);
    return out;
}

class listener {
  public:
    listener() = default;
    listener(endpoint where, unique_fd socket, bool is_shared = false) noexcept
        : where_(std::move(where)), socket_(std::move(socket)), is_shared_(is_shared) {}
    listener(listener&& other) noexcept = default;
    listener& operator=(listener&& other) noexcept = default;
    ~listener() { close(); }

    // Port 0 chooses a free port. Errors: those of listen_socket().
    static result<listener> open(endpoint where, bool reuse_port = false) {
        result<unique_fd> socket = listen_socket(where, reuse_port);
        if (!socket) return socket.error();
        listener out(std::move(where), std::move(*socket));
        if (out.where_.unix_path.empty()) {
            out.where_.port = local_port(out.fd());
            out.where_.name = host_port(out.where_.host, out.where_.port);
        } else {
            ::lstat(out.where_.unix_path.c_str(), &out.file_);
        }
        return out;
    }

    int fd() const noexcept { return socket_.get(); }
    const endpoint& where() const noexcept { return where_; }  // with the chosen port, also once closed
    // New connections are refused, and queued ones reset, unless another process shares the socket.
    void close() noexcept {
        if (!socket_) return;
        // The file is removed before the socket closes: a live socket keeps others from the path.
        struct stat found {};
        if (!where_.unix_path.empty() && ::lstat(where_.unix_path.c_str(), &found) == 0 &&
            found.st_dev == file_.st_dev && found.st_ino == file_.st_ino) {
            ::unlink(where_.unix_path.c_str());
        }
        if (!is_shared_) ::shutdown(socket_.get(), SHUT_RDWR);  // also where a forked child still holds it
        socket_.reset();
    }
    // Closes this copy; other processes continue to accept from the socket.
    void close_copy() noexcept { socket_.reset(); }
    // After a failed start: an inherited socket stays open for the caller.
    void release_given() noexcept {
        if (is_shared_) socket_.release();
    }

  private:
    endpoint where_;
    unique_fd socket_;
    bool is_shared_ = false;
    struct stat file_ {};  // of our unix socket: no other file is removed
};

inline constexpr int first_passed_fd = 3;  // by socket activation [sd_listen_fds(3)]

inline std::string socket_name(int fd) {
    const socket_address local = local_address(fd);
    const int family = local.storage.ss_family;
    sockaddr_in in{};
    sockaddr_in6 in6{};
    sockaddr_un un{};
    std::memcpy(&in, &local.storage, sizeof in);
    std::memcpy(&in6, &local.storage, sizeof in6);
    std::memcpy(&un, &local.storage, sizeof un);
    if (family != AF_INET && family != AF_INET6)
        return cat({"unix:", std::string_view(un.sun_path, ::strnlen(un.sun_path, sizeof un.sun_path))});
    const void* const ip = family == AF_INET ? static_cast<const void*>(&in.sin_addr) : &in6.sin6_addr;
    char text[INET6_ADDRSTRLEN] = "";
    return host_port(::inet_ntop(family, ip, text, sizeof text), local_port(fd));
}

// Takes over an inherited socket. Its creator may still use it, and removes its file.
inline result<void> adopt_socket(int fd, array<listener>& out) {
    for (const listener& each : out) {
        if (each.fd() == fd) return error{errc::invalid_argument, 0, cat({"duplicate descriptor ", fd})};
    }
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0)
        return error{errc::invalid_argument, 0, cat({"descriptor ", fd, " is not a listening socket"})};
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    set_nonblocking(fd);
    endpoint where;
    where.port = local_port(fd);
    where.name = socket_name(fd);
    out.push_back(listener(std::move(where), unique_fd(fd), true));
    return {};
}

inline int passed_socket_count() noexcept {
    const char* const pid = std::getenv("LISTEN_PID");
    const char* const count = std::getenv("LISTEN_FDS");
    std::uint64_t out = 0;
    const bool is_ours = pid != nullptr && pid == std::to_string(::getpid());
    return is_ours && count != nullptr && parse_number(count, 1024, out) ? static_cast<int>(out) : 0;
}

inline result<void> open_address(std::string_view address, bool reuse_port, array<listener>& out) {
    result<endpoint> where = parse_listen_address(address);
    if (!where) return where.error();
    result<listener> opened = listener::open(std::move(*where), reuse_port);
    if (!opened) return opened.error();
    out.push_back(std::move(*opened));
    return {};
}

inline result<void> open_listener(std::string_view address, bool reuse_port, array<listener>& out) {
    if (address == "systemd:") {
        const int count = passed_socket_count();
        if (count == 0)
            return error{errc::invalid_argument, 0,
                         "systemd: passed no sockets to this process; start it by a .socket unit"};
        for (int i = 0; i < count; ++i) {
            result<void> adopted = adopt_socket(first_passed_fd + i, out);
            if (!adopted) return adopted;
        }
        return {};
    }
    std::uint64_t fd = 0;
    if (address.substr(0, 3) == "fd:") {
        if (!parse_number(address.substr(3), 0x7fffffff, fd))
            return error{errc::invalid_argument, 0, cat({"'", address, "' is not a descriptor"})};
        return adopt_socket(static_cast<int>(fd), out);
    }
    return open_address(address, reuse_port, out);
}

inline result<void> open_listeners(std::string_view addresses, bool reuse_port, array<listener>& out) {
    for (;;) {
        const std::size_t comma = addresses.find(',');
        result<void> opened = open_listener(addresses.substr(0, comma), reuse_port, out);
        if (!opened || comma == std::string_view::npos) return opened;
        addresses.remove_prefix(comma + 1);
    }
}
}  // namespace ojs::detail
