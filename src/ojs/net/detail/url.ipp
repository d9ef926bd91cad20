// endpoint: the address of a server, parsed from a URL.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../../base/error.hpp"
#include "../http_message.ipp"

namespace ojs::detail {
struct endpoint {
    std::string host;         // a name or an address (IPv6 without brackets); empty for a unix socket
    std::uint16_t port = 80;  // 0 for a unix socket
    std::string unix_path;    // empty for TCP
    std::string base;         // prefix of every target; empty, or begins with '/' and does not end in it
    std::string name;         // "host:80", "[::1]:80" or "unix:/path"
    std::string url;          // before a target, for messages: "http://host:80/base" or "unix:/path "
    bool is_secure = false;   // https
};

// Without the final dot, which certificates do not have.
inline std::string dns_name(const std::string& host) { return host.substr(0, host.find_last_not_of('.') + 1); }

inline error bad_address(std::string_view text, std::string_view problem) {
    return invalid(cat({"'", printable(text, 100), "': ", problem}));
}

inline bool is_ip(int family, const std::string& text) noexcept {
    in6_addr any;
    return text.find('\0') == text.npos && ::inet_pton(family, text.c_str(), &any) == 1;
}

inline std::string host_port(std::string_view host, std::uint16_t port) {
    const bool is_ip6 = has_part(host, ":");
    return cat({is_ip6 ? "[" : "", host, is_ip6 ? "]:" : ":", port});
}

// Splits HOST, HOST:PORT or [IPV6]:PORT; `port` is empty without a colon. Null, or the error.
inline const char* split_host_port(std::string_view text, std::string& host, std::string_view& port) {
    const std::size_t begin = starts_with(text, "[") ? 1 : 0;
    const std::size_t end = min(text.find(begin == 1 ? ']' : ':'), text.size());
    host = std::string(text.substr(begin, end - begin));
    port = text.substr(min(end + begin, text.size()));
    const bool is_name = !host.empty() && host.size() <= 253 &&
                         all_of(host, [](char c) { return is_alphanumeric(c) || c == '-' || c == '.' || c == '_'; });
    if (begin == 1 ? end == text.size() || !is_ip(AF_INET6, host) : !is_name)
        return "the host is not a name, an IPv4 address, or an IPv6 address in brackets";
    if (!port.empty() && (port.front() != ':' || port.size() == 1)) return "what follows the host is no colon and port";
    port.remove_prefix(port.empty() ? 0 : 1);
    return nullptr;
}

inline const char* parse_port(std::string_view text, std::uint64_t min_port, std::uint16_t& out) noexcept {
    std::uint64_t number = 0;
    if (!parse_number(text, 65535, number) || number < min_port)
        return min_port == 0 ? "the port is not a number up to 65535" : "the port is not a number from 1 to 65535";
    out = static_cast<std::uint16_t>(number);
    return nullptr;
}

inline result<endpoint> parse_unix_url(std::string_view text) {
    constexpr std::size_t max_size = sizeof(sockaddr_un::sun_path) - 1;
    const std::string_view path = text.substr(5);
    if (!starts_with(path, "/") || path.size() > max_size || !is_field_value(path) || has_part(path, "\t"))
        return bad_address(
            text, cat({"unix: takes an absolute path of at most ", max_size, " bytes, without control characters"}));
    return endpoint{"", 0, std::string(path), "", std::string(text), cat({text, " "})};
}

// http://HOST[:PORT][/BASE], unix:/PATH, or https://. Errors: invalid_argument; unsupported: https without a stream.
inline result<endpoint> parse_url(std::string_view url, bool has_https) {
    if (starts_with(url, "unix:")) return parse_unix_url(url);
    endpoint out;
    out.is_secure = equals_ignore_case(url.substr(0, 8), "https://");
    if (out.is_secure && !has_https)
        return error{errc::unsupported, 0, "https:// needs https_stream: tls_openssl() of ojs_tls.hpp"};
    if (!out.is_secure && !equals_ignore_case(url.substr(0, 7), "http://"))
        return invalid("the URL does not start with http:// or unix:/");
    out.port = out.is_secure ? 443 : 80;
    std::string_view base = url.substr(out.is_secure ? 8 : 7);
    const std::string_view authority = base.substr(0, base.find_first_of("/?#"));
    base.remove_prefix(authority.size());
    if (has_part(authority, "@"))  // not quoted: it may be a password
        return invalid("the URL has a user name or password: use a token");
    std::string_view port;
    const char* problem = split_host_port(authority, out.host, port);
    if (problem == nullptr && !port.empty()) problem = parse_port(port, 1, out.port);
    if (problem == nullptr && !base.empty() && (!is_target(base) || base.find_first_of("?#") != base.npos))
        problem = "only a path may follow the host: no query, fragment, blank or control character";
    if (problem != nullptr) return bad_address(url, problem);
    while (!base.empty() && base.back() == '/') base.remove_suffix(1);
    out.base = std::string(base);
    out.name = host_port(out.host, out.port);
    out.url = cat({out.is_secure ? "https://" : "http://", out.name, base});
    return out;
}
}  // namespace ojs::detail
