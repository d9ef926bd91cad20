// http_server: a small HTTP/1.1 server, bounded in connections, sizes and times.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../net/http_message.hpp"
#include "draining_server.hpp"

namespace ojs {
inline namespace v0_1_0 {

// Each as in draining_server_options.
struct http_server_options {
    http_limits limits;
    std::size_t max_connections = 64;  // a thread each, for as long as it lasts
    std::chrono::milliseconds idle_timeout{60000};
    std::chrono::milliseconds request_timeout{10000};
    std::chrono::milliseconds crowded_timeout{10000};
    std::size_t thread_stack_size = 256 * 1024;  // bytes
};

// A draining_server with a thread for each connection, so that handlers may wait, and with a single thread while nobody is
// connected.
class http_server {
  public:
    // `address` is PORT or :PORT (loopback), IPV4:PORT, [IPV6]:PORT, localhost:PORT, or unix:/PATH (mode 0600; a
    // dead socket's file is replaced; a live one, or any other file, is errc::busy). Port 0 takes a free one. A wildcard
    // address is used only when written out. Listens when this returns. Errors: invalid_argument, busy, system.
    static result<http_server> start(std::string_view address, http_handler handler,
                                     const http_server_options& options = {});

    http_server(http_server&& other) noexcept = default;
    http_server& operator=(http_server&& other) noexcept = default;
    ~http_server() = default;  // stop(now)

    // Where it listens, with the real port: "127.0.0.1:40123", "[::1]:40123" or "unix:/path".
    const std::string& address() const noexcept { return server_.address(); }
    std::uint16_t port() const noexcept { return server_.port(); }  // 0 for unix:

    // Stops accepting, closes idle connections, lets requests under way finish until `deadline`, then cuts them
    // and joins every thread (a handler that never returns is waited for). Returns how many were cut. Idempotent. Not from a
    // handler. Thread-safe.
    std::size_t stop(time_point deadline);

  private:
    explicit http_server(draining_server server) noexcept : server_(std::move(server)) {}
    draining_server server_;
};

}  // namespace v0_1_0
}  // namespace ojs
