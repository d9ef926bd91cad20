// http_request and http_response, and the limits both sides keep.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace ojs {
inline namespace v0_1_0 {

struct http_header {
    std::string name;
    std::string value;
};

using http_headers = std::vector<http_header>;

// The first header of that name, whatever its case; empty if there is none. Thread-safe.
std::string_view find_header(const http_headers& headers, std::string_view name) noexcept;

struct http_request {
    std::string method = "GET";
    std::string target = "/";  // path and query
    http_headers headers;      // Host, Content-Length, Connection and Authorization are added when sent
    std::string body;
};

struct http_response {
    int status = 200;
    http_headers headers;  // Content-Length and Connection are added when sent
    std::string body;
    bool drop = false;  // server only: close the connection without answering
};

// What one message may weigh, in bytes. A larger one is errc::bad_response for a client, 413 or 431 for a server.
struct http_limits {
    std::size_t head = 64 * 1024;
    std::size_t body = 8 * 1024 * 1024;
};

}  // namespace v0_1_0
}  // namespace ojs
