// http_request and http_response, to send or received.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ojs {
inline namespace v0_1_0 {
/// One header line.
struct http_header {
    std::string name;   ///< case does not matter
    std::string value;  ///< when received: trimmed
};

using http_headers = std::vector<http_header>;  ///< headers in the message's order

/// The value of the first header of that name; empty if there is none. Thread-safe.
std::string_view find_header(const http_headers& headers, std::string_view name) noexcept;

/// A request, to send or received.
struct http_request {
    std::string method = "GET";  ///< case matters
    std::string target = "/";    ///< path and query
    http_headers headers;        ///< Host, Content-Length and others are added when sent
    std::string body;            ///< complete
};

/// A response, to send or received.
struct http_response {
    int status = 200;      ///< 100 to 599
    http_headers headers;  ///< Content-Length and Connection are added when sent
    std::string body;      ///< complete
};
}  // namespace v0_1_0
}  // namespace ojs
