// http_request and http_response, with the limits of client and server.
#pragma once

#include <cstddef>
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

using http_headers = std::vector<http_header>;  ///< in the order of the message

/// The value of the first header of that name, ignoring case; empty if there is none. Thread-safe.
std::string_view find_header(const http_headers& headers, std::string_view name) noexcept;

/// A request, to send or received.
struct http_request {
    std::string method = "GET";  ///< case matters
    std::string target = "/";    ///< path and query
    http_headers headers;        ///< Host, Content-Length, Connection and Authorization are added when sent
    std::string body;            ///< complete
};

/// A response, to send or received.
struct http_response {
    int status = 200;      ///< 100 to 599
    http_headers headers;  ///< Content-Length and Connection are added when sent
    std::string body;      ///< complete
    bool drop = false;     ///< server only: close the connection without a response
};

/// Size limits of a message, in bytes. A client fails above them with errc::bad_response, a server responds 413 or 431.
struct http_limits {
    std::size_t head = 64 * 1024;        ///< first line and headers
    std::size_t body = 8 * 1024 * 1024;  ///< without chunk framing
};

}  // namespace v0_1_0
}  // namespace ojs
