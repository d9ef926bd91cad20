// listeners: sockets to listen on, opened or taken over, from the addresses that name them.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "../../base/detail/light.hpp"
#include "../../base/detail/text.hpp"
#include "listener.ipp"

namespace ojs::detail {

inline constexpr int first_activated = 3;  // where socket activation begins [sd_listen_fds(3)]

inline std::string name_of_socket(int fd) {
    const socket_address local = local_address(fd);
    char text[INET6_ADDRSTRLEN] = "";
    if (local.storage.ss_family == AF_INET) {
        sockaddr_in in{};
        std::memcpy(&in, &local.storage, sizeof in);
        ::inet_ntop(AF_INET, &in.sin_addr, text, sizeof text);
    } else if (local.storage.ss_family == AF_INET6) {
        sockaddr_in6 in{};
        std::memcpy(&in, &local.storage, sizeof in);
        ::inet_ntop(AF_INET6, &in.sin6_addr, text, sizeof text);
    } else {
        sockaddr_un un{};
        std::memcpy(&un, &local.storage, sizeof un);
        return cat({"unix:", std::string_view(un.sun_path, ::strnlen(un.sun_path, sizeof un.sun_path))});
    }
    return host_port(text, local_port(fd));
}

// One that somebody else made, and may have as well: its file is his to remove.
inline result<void> adopt_socket(int fd, array<listener>& out) {
    for (const listener& each : out) {
        if (each.fd() == fd)
            return error{errc::invalid_argument, 0, cat({"descriptor ", fd, " is named twice"})};
    }
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0)
        return error{errc::invalid_argument, 0, cat({"descriptor ", fd, " is no listening socket"})};
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    set_nonblocking(fd, true);
    endpoint where;
    where.port = local_port(fd);
    where.name = name_of_socket(fd);
    out.push_back(listener(std::move(where), unique_fd(fd), true));
    return {};
}

// How many sockets an init system has passed to this very process.
inline int activated_count() noexcept {
    const char* const pid = std::getenv("LISTEN_PID");
    const char* const count = std::getenv("LISTEN_FDS");
    std::uint64_t whose = 0;
    std::uint64_t out = 0;
    if (pid == nullptr || !parse_number(pid, 0x7fffffff, whose) ||
        whose != static_cast<std::uint64_t>(::getpid()))
        return 0;
    if (count == nullptr || !parse_number(count, 1024, out)) return 0;
    return static_cast<int>(out);
}

inline result<void> open_address(std::string_view address, bool reuse_port, array<listener>& out) {
    result<endpoint> where = parse_listen_address(address);
    if (!where) return where.error();
    result<listener> opened = listener::open(std::move(*where), reuse_port);
    if (!opened) return opened.error();
    out.push_back(std::move(*opened));
    return {};
}

inline result<void> open_one(std::string_view address, bool reuse_port, array<listener>& out) {
    if (address == "systemd:") {
        const int count = activated_count();
        if (count == 0)
            return error{errc::invalid_argument, 0, "systemd: this process was passed no sockets"};
        for (int i = 0; i < count; ++i) {
            const result<void> adopted = adopt_socket(first_activated + i, out);
            if (!adopted) return adopted;
        }
        return {};
    }
    std::uint64_t fd = 0;
    if (address.substr(0, 3) == "fd:") {
        if (!parse_number(address.substr(3), 0x7fffffff, fd))
            return error{errc::invalid_argument, 0, cat({"'", address, "' is no descriptor"})};
        return adopt_socket(static_cast<int>(fd), out);
    }
    return open_address(address, reuse_port, out);
}

inline result<void> open_listeners(std::string_view addresses, bool reuse_port, array<listener>& out) {
    for (;;) {
        const std::size_t comma = addresses.find(',');
        const result<void> opened = open_one(addresses.substr(0, comma), reuse_port, out);
        if (!opened || comma == std::string_view::npos) return opened;
        addresses.remove_prefix(comma + 1);
    }
}

}  // namespace ojs::detail
