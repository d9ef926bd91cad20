// http_server: a small HTTP/1.1 server, bounded in connections, sizes and times.
#pragma once

#include <string_view>
#include <utility>

#include "draining_server.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// draining_server_options with the defaults of a small server.
struct http_server_options : draining_server_options {
    http_server_options() {
        max_connections = 64;  // a thread each
        max_buffered = ~std::size_t{0};
    }
};

/// A draining_server with a thread per connection, so that handlers may block, and a single thread without connections.
class http_server : private draining_server {
  public:
    /// `address` is PORT or :PORT (loopback), IPV4:PORT, [IPV6]:PORT, localhost:PORT, or unix:/PATH (mode 0600; a dead
    /// socket's file is replaced; a live one, or any other file, is errc::busy). Port 0 chooses a free port. There
    /// is no implicit wildcard address. Listens when this returns. Errors: invalid_argument, busy, system.
    static result<http_server> start(std::string_view address, http_handler handler,
                                     const http_server_options& options = {}) {
        result<draining_server> started = draining_server::start(address, std::move(handler), options, true);
        if (!started) return started.error();
        return http_server(std::move(*started));
    }

    /// The address, with the chosen port: "127.0.0.1:40123", "[::1]:40123" or "unix:/path", whose port() is 0.
    using draining_server::address;
    using draining_server::port;

    /// Stops accepting, closes idle connections, lets requests in flight finish until `deadline`, then cuts them and
    /// joins every thread: it waits for a handler that never returns. Returns how many it aborted. Idempotent. Neither
    /// this nor the destructor (a stop() without time) may be called from a handler. Thread-safe.
    std::size_t stop(time_point deadline) {
        drain_options options;
        options.deadline = deadline;
        const std::size_t aborted = drain(options).aborted;
        join();
        return aborted;
    }

  private:
    friend class result<http_server>;
    http_server() = default;
    explicit http_server(draining_server&& server) noexcept : draining_server(std::move(server)) {}
};
}  // namespace v0_1_0
}  // namespace ojs
