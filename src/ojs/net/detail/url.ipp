// endpoint: the address of a server, parsed from a URL.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "../../base/error.hpp"
#include "../http_message.ipp"

namespace ojs::detail {

struct endpoint {
    std::string host;         // a name or an address (IPv6 without brackets); empty for a unix socket
    std::uint16_t port = 80;  // 0 for a unix socket
    std::string unix_path;    // empty for TCP
    std::string base;         // prefix of every target; empty, or begins with '/' and does not end in it
    std::string name;         // "host:80", "[::1]:80" or "unix:/path", for messages and the Host header
    bool is_secure = false;   // https
};

inline error bad_address(std::string_view text, std::string_view problem) {
    return error{errc::invalid_argument, 0, cat({"'", printable(text, 100), "': ", problem})};
}

inline bool is_ip(int family, const std::string& text) noexcept {
    in6_addr any;
    return text.find('\0') == std::string::npos && ::inet_pton(family, text.c_str(), &any) == 1;
}

inline std::string host_port(std::string_view host, std::uint16_t port) {
    const bool ipv6 = host.find(':') != std::string_view::npos;
    return cat({ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port});
}

inline bool is_host_name(std::string_view text) noexcept {
    return !text.empty() && text.size() <= 253 &&
           all_of(text, [](char c) { return is_alphanumeric(c) || c == '-' || c == '.' || c == '_'; });
}

// Splits HOST, HOST:PORT or [IPV6]:PORT; `port` is empty without a colon. Null, or the error.
inline const char* split_host_port(std::string_view text, std::string& host, std::string_view& port) {
    const bool bracketed = starts_with(text, "[");
    const std::size_t host_end = text.find(bracketed ? ']' : ':');
    if (bracketed && host_end == std::string_view::npos) return "the IPv6 address lacks its closing bracket";
    if (!bracketed && text.find(':') != text.rfind(':'))
        return "an IPv6 address is written in brackets: [::1]:80";
    host = std::string(bracketed ? text.substr(1, host_end - 1) : text.substr(0, host_end));
    if (host.empty()) return "the host is missing";
    if (bracketed && !is_ip(AF_INET6, host)) return "the text in brackets is not an IPv6 address";
    if (!bracketed && !is_host_name(host)) return "the host is not a name or an address";
    port = text.substr(host.size() + (bracketed ? 2 : 0));
    if (port.empty()) return nullptr;
    if (port == ":") return "the port is missing after the colon";
    if (port.front() != ':') return "only a colon and a port may follow the bracket";
    port.remove_prefix(1);
    return nullptr;
}

inline const char* parse_port(std::string_view text, std::uint64_t min_port, std::uint16_t& out) noexcept {
    std::uint64_t number = 0;
    if (!parse_number(text, 65535, number) || number < min_port)
        return min_port > 0 ? "the port is not a number from 1 to 65535"
                            : "the port is not a number from 0 to 65535";
    out = static_cast<std::uint16_t>(number);
    return nullptr;
}

inline result<endpoint> parse_unix_url(std::string_view text) {
    const std::string_view path = text.substr(5);
    if (path.empty() || path.front() != '/') return bad_address(text, "an absolute path must follow unix:");
    if (!is_field_value(path) || path.find('\t') != std::string_view::npos)
        return bad_address(text, "the path contains a control character");
    if (path.size() >= sizeof(sockaddr_un::sun_path))
        return bad_address(text, cat({"the path of a unix socket has at most ",
                                      sizeof(sockaddr_un::sun_path) - 1, " bytes"}));
    endpoint out;
    out.port = 0;
    out.unix_path = std::string(path);
    out.name = std::string(text);
    return out;
}

// http://HOST[:PORT][/BASE], unix:/PATH, or https://. Errors: invalid_argument; unsupported: https without a stream.
inline result<endpoint> parse_url(std::string_view url, bool has_https) {
    if (starts_with(url, "unix:")) return parse_unix_url(url);
    endpoint out;
    out.is_secure = equals_ignore_case(url.substr(0, 8), "https://");
    if (out.is_secure) out.port = 443;
    if (out.is_secure && !has_https)
        return error{errc::unsupported, 0,
                     "https:// needs a TLS library: include ojs_tls.hpp and set https_stream to "
                     "ojs::tls_openssl(), or use a local TLS proxy"};
    if (!out.is_secure && !equals_ignore_case(url.substr(0, 7), "http://"))
        return error{errc::invalid_argument, 0, "the URL does not start with http:// or unix:/"};
    const std::string_view rest = url.substr(out.is_secure ? 8 : 7);
    const std::string_view authority = rest.substr(0, rest.find_first_of("/?#"));
    std::string_view base = rest.substr(authority.size());
    if (has_part(authority, "@"))  // not quoted: it may be a password
        return error{errc::invalid_argument, 0,
                     "the URL contains a user name or password; use a bearer token instead"};
    std::string_view port;
    const char* problem = split_host_port(authority, out.host, port);
    if (problem == nullptr && !port.empty()) problem = parse_port(port, 1, out.port);
    if (problem == nullptr && !base.empty() && (!is_target(base) || base.find_first_of("?#") != base.npos))
        problem = "only a path may follow the host: no query, fragment, blank or control character";
    if (problem != nullptr) return bad_address(url, problem);
    while (!base.empty() && base.back() == '/') base.remove_suffix(1);
    out.base = std::string(base);
    out.name = host_port(out.host, out.port);
    return out;
}

}  // namespace ojs::detail
