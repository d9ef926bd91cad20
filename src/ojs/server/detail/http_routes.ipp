// http_routes: the paths of a server of ours; refuses requests of foreign web pages and requests without the token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../../base/detail/text.hpp"
#include "../../net/detail/url.ipp"
#include "../../net/http_message.ipp"

namespace ojs::detail {
struct http_route {
    const char* path;
    const char* methods[2];  // the second may be null
    bool guarded;            // changes state: refused to web pages, needs the token
};

struct http_guard {
    bool on_loopback = false;   // the Host of a request must then be an address or localhost
    bool open = true;           // false: guarded routes answer 404
    std::string token;          // empty: guarded routes need none
    bool has_web_page = false;  // a page served here may send guarded requests
};

// Whether a Host header is immune to DNS rebinding: localhost, or an address other than a wildcard.
inline bool is_fixed_host(std::string_view header) {
    std::string host;
    std::string_view port;
    std::uint16_t number = 0;
    if (split_host_port(header, host, port) != nullptr) return false;
    if (!port.empty() && parse_port(port, 0, number) != nullptr) return false;
    if (equals_ignore_case(host, "localhost")) return true;
    // These reach this machine, but browsers do not treat them as loopback and omit Sec-Fetch-Site.
    if (host == "0.0.0.0" || (host.compare(0, 2, "::") == 0 && host != "::1")) return false;
    return is_ip(AF_INET, host) || is_ip(AF_INET6, host);
}

// Compares two secrets in a time that depends on their lengths only.
inline bool same_secret(std::string_view given, std::string_view expected) noexcept {
    if (given.size() != expected.size()) return false;
    volatile unsigned char differences = 0;  // volatile: the compiler must not return early
    for (std::size_t i = 0; i < given.size(); ++i) {
        differences = static_cast<unsigned char>(differences | (given[i] ^ expected[i]));
    }
    return differences == 0;
}

// The token of "Bearer TOKEN"; empty for anything else.
inline std::string_view bearer_token(std::string_view authorization) noexcept {
    const std::size_t blank = authorization.find(' ');
    if (blank == std::string_view::npos || !equals_ignore_case(authorization.substr(0, blank), "Bearer")) return {};
    return trim_blanks(authorization.substr(blank));
}

// The raw value of `name` in the query of a target; false if it is missing.
inline bool find_parameter(std::string_view target, std::string_view name, std::string_view& value) noexcept {
    std::size_t at = target.find('?');
    while (at != std::string_view::npos) {
        const std::string_view rest = target.substr(at + 1);
        const std::string_view item = rest.substr(0, rest.find('&'));
        const std::size_t equals = item.find('=');
        if (item.substr(0, equals) == name) {
            value = equals == std::string_view::npos ? std::string_view() : item.substr(equals + 1);
            return true;
        }
        at = target.find('&', at + 1);
    }
    return false;
}

inline http_response json_response(int status, std::string body) {
    http_response out;
    out.status = status;
    out.headers.push_back({"Content-Type", "application/json"});
    out.headers.push_back({"Cache-Control", "no-store"});
    out.body = std::move(body);
    out.body += '\n';
    return out;
}

// {"error":"..."}
inline http_response json_error(int status, std::string_view message) {
    return json_response(status, cat({"{\"error\":", json_quote(message), "}"}));
}

inline http_response wrong_method(const http_route& route) {
    http_response out = json_error(405, "method not allowed");
    const bool two = route.methods[1] != nullptr;
    out.headers.push_back({"Allow", cat({route.methods[0], two ? ", " : "", two ? route.methods[1] : ""})});
    return out;
}

inline bool takes_method(const http_route& route, const std::string& method) {
    return method == route.methods[0] || (route.methods[1] != nullptr && method == route.methods[1]);
}

// Against DNS rebinding: a page may point its own name at loopback. Browsers always send Host.
inline bool has_trusted_host(const http_guard& guard, const http_request& request) {
    const std::string_view host = find_header(request.headers, "Host");
    return !guard.on_loopback || host.data() == nullptr || is_fixed_host(host);
}

// Whether a page of this server sent the request. A rebound name looks the same, but lacks the token.
inline bool is_from_own_page(const http_guard& guard, const http_request& request) {
    const std::string_view host = find_header(request.headers, "Host");
    if (!guard.has_web_page || host.empty() || (guard.token.empty() && !is_fixed_host(host))) return false;
    const std::string_view origin = find_header(request.headers, "Origin");
    const std::string_view site = find_header(request.headers, "Sec-Fetch-Site");
    const bool named = origin == cat({"http://", host}) || origin == cat({"https://", host});
    return (origin.data() == nullptr || named) && (site.data() == nullptr || site == "same-origin");
}

// A foreign web page may make a browser send requests here; the browser marks them in one of these headers.
inline bool passes_guard(const http_guard& guard, const http_request& request, http_response& refused) {
    for (const char* name : {"Origin", "Sec-Fetch-Site"}) {
        if (find_header(request.headers, name).data() == nullptr || is_from_own_page(guard, request)) continue;
        refused = json_error(403, "requests from web pages are not allowed");
        return false;
    }
    const std::string_view given = bearer_token(find_header(request.headers, "Authorization"));
    if (guard.token.empty() || same_secret(given, guard.token)) return true;
    refused = json_error(401, "a bearer token is required");
    refused.headers.push_back({"WWW-Authenticate", "Bearer realm=\"ojs worker\""});
    return false;
}

// The index in `routes` of the requested route. -1: none, or refused; then `refused` is the response. Thread-safe.
template <class Route>
int choose_route(const Route* routes, std::size_t count, const http_guard& guard, const http_request& request,
                 http_response& refused) {
    if (!has_trusted_host(guard, request)) {
        refused = json_error(403, "on loopback the Host must be an address or localhost");
        return -1;
    }
    const std::string_view path = std::string_view(request.target).substr(0, request.target.find('?'));
    for (std::size_t i = 0; i < count; ++i) {
        const http_route& each = routes[i];
        if (path != each.path || (each.guarded && !guard.open)) continue;
        if (takes_method(each, request.method)) {
            return !each.guarded || passes_guard(guard, request, refused) ? static_cast<int>(i) : -1;
        }
        refused = wrong_method(each);
        return -1;
    }
    refused = json_error(404, "no such path");
    return -1;
}
}  // namespace ojs::detail
