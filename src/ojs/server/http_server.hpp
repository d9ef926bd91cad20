// http_server: a small HTTP/1.1 server, bounded in connections, sizes and times.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../net/http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct http_server_options {
    http_limits limits;
    // One thread each. More wait in the listen queue; for them the connection that has been idle longest is closed.
    std::size_t max_connections = 64;
    std::chrono::milliseconds idle_timeout{60000};  // a kept connection without a request
    // From a request's first byte, or that of empty lines before it, to its last; and to write the answer.
    std::chrono::milliseconds request_timeout{10000};
    // While others wait: with no connection idle, the client that has kept its thread waiting longest, and so long, is cut.
    std::chrono::milliseconds crowded_timeout{10000};
    std::size_t thread_stack_size = 256 * 1024;  // bytes
};

// Answers one request. Called from several threads at once. What it throws becomes a 500; where it ends its thread, the
// connection is closed.
using http_handler = function<http_response(const http_request&)>;

class http_server {
  public:
    // `address` is PORT or :PORT (loopback), IPV4:PORT, [IPV6]:PORT, localhost:PORT, or unix:/PATH (mode 0600; a
    // dead socket's file is replaced; a live one, or any other file, is errc::busy). Port 0 takes a free one. A wildcard address is
    // used only when written out. Listens when this returns. Errors: invalid_argument, busy, system.
    static result<http_server> start(std::string_view address, http_handler handler,
                                     http_server_options options = {});

    http_server(http_server&& other) noexcept;
    http_server& operator=(http_server&& other) noexcept;
    ~http_server();  // stop(now)

    // Where it listens, with the real port: "127.0.0.1:40123", "[::1]:40123" or "unix:/path".
    const std::string& address() const noexcept;
    std::uint16_t port() const noexcept;  // 0 for unix:

    // Stops accepting, closes idle connections, lets requests under way finish until `deadline`, then cuts them
    // and joins every thread (a handler that never returns is waited for). Returns how many were cut. Idempotent.
    std::size_t stop(time_point deadline);

  private:
    class impl;
    explicit http_server(detail::ref<impl> body) noexcept;
    detail::ref<impl> impl_;
};

namespace detail {

// What the handlers of an http_server are given.
struct served_request : http_request {
    int socket = -1;
};

// For a handler that waits: whether who sent the request it was given has gone away. Thread-safe.
bool is_abandoned(const http_request& request) noexcept;

}  // namespace detail

}  // namespace v0_1_0
}  // namespace ojs
