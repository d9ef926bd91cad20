// http_server: a small HTTP/1.1 server, bounded in connections, sizes and times.
#pragma once

#include <string_view>
#include <utility>

#include "draining_server.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct http_server_options : draining_server_options {
    http_server_options() {
        max_connections = 64;  // a thread each, for as long as it lasts
        max_buffered = ~std::size_t{0};
    }
};

// A draining_server with a thread for each connection, so that handlers may wait, and with a single thread while
// nobody is connected.
class http_server : private draining_server {
  public:
    // `address` is PORT or :PORT (loopback), IPV4:PORT, [IPV6]:PORT, localhost:PORT, or unix:/PATH (mode 0600; a dead
    // socket's file is replaced; a live one, or any other file, is errc::busy). Port 0 takes a free one. A wildcard
    // address is used only when written out. Listens when this returns. Errors: invalid_argument, busy, system.
    static result<http_server> start(std::string_view address, http_handler handler,
                                     const http_server_options& options = {}) {
        result<draining_server> started = draining_server::start(address, std::move(handler), options, true);
        if (!started) return started.error();
        return http_server(std::move(*started));
    }

    // With the real port: "127.0.0.1:40123", "[::1]:40123" or "unix:/path", whose port() is 0.
    using draining_server::address;
    using draining_server::port;

    // Stops accepting, closes idle connections, lets requests under way finish until `deadline`, then cuts them and
    // joins every thread (a handler that never returns is waited for). Returns how many were cut. Idempotent. Not
    // from a handler, and the destructor, which is stop(now), neither. Thread-safe.
    std::size_t stop(time_point deadline) {
        drain_options options;
        options.deadline = deadline;
        const std::size_t cut = drain(options).cut;
        join();
        return cut;
    }

  private:
    explicit http_server(draining_server&& server) noexcept : draining_server(std::move(server)) {}
};

}  // namespace v0_1_0
}  // namespace ojs
