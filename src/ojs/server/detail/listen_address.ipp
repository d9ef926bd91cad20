// listen_address: where to listen, as parsed from an address; who can connect there.
#pragma once

#include <arpa/inet.h>

#include <cstring>
#include <string_view>

#include "../../net/detail/url.ipp"

namespace ojs::detail {

// PORT, :PORT, IPV4:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH. Errors: invalid_argument.
inline result<endpoint> parse_listen_address(std::string_view address) {
    if (address.substr(0, 5) == "unix:") return parse_unix_path(address);
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
    if (same_word(out.host, "localhost")) out.host = "127.0.0.1";
    if (!is_ip(AF_INET, out.host) && !is_ip(AF_INET6, out.host)) {
        return bad_address(address,
                           "to listen takes PORT, IPV4:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH");
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

}  // namespace ojs::detail
