// endpoint: where to connect to or listen, as parsed from a URL or an address.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../base/error.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct endpoint {
    std::string host;         // a name or an address (IPv6 without brackets); empty for a unix socket
    std::uint16_t port = 80;  // 0 for a unix socket
    std::string unix_path;    // empty for TCP
    std::string base;         // goes before every target; empty, or starts with '/' and does not end in one
    std::string name;         // "host:80", "[::1]:80" or "unix:/path": for texts and the Host header
    bool is_secure = false;   // https
};

// http://HOST[:PORT][/BASE] or unix:/PATH, and https:// where there is a stream for it. Errors: invalid_argument;
// unsupported for https without one.
result<endpoint> parse_url(std::string_view url, bool has_https);

// PORT, :PORT, IPV4:PORT, [IPV6]:PORT, localhost:PORT or unix:/PATH. Errors: invalid_argument.
result<endpoint> parse_listen_address(std::string_view address);

// Whether only processes of this machine can connect.
bool is_local(const endpoint& where) noexcept;

// Whether a Host header holds an address or localhost, with or without a port: what nobody's DNS can point elsewhere. A
// wildcard address, and one that hides an IPv4 address, does not count.
bool is_fixed_host(std::string_view header);

// "host:80", or "[::1]:80" for an IPv6 address.
std::string host_port(std::string_view host, std::uint16_t port);

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
