// draining_server: an HTTP/1.1 server that finishes accepted requests before it stops.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "../core/cancel_token.hpp"
#include "../net/http_message.hpp"

#ifndef OJS_SHUTDOWN_USE_EPOLL
#ifdef __linux__
/// 0: a server waits for its connections with poll(), as it does on every system but Linux.
#define OJS_SHUTDOWN_USE_EPOLL 1
#else
#define OJS_SHUTDOWN_USE_EPOLL 0
#endif
#endif

namespace ojs {
inline namespace v0_1_0 {
/// Returns the response to one request. Called from several threads at once. An exception becomes a 500; if the handler
/// ends its thread, or the response has status 0, the connection is closed without one.
using http_handler = function<http_response(const http_request&)>;

/// Size limits of a message, in bytes. Above them the response is 413 or 431.
struct http_limits {
    std::size_t head = 64 * 1024;        ///< first line and headers
    std::size_t body = 8 * 1024 * 1024;  ///< without chunk framing
};

/// How a draining_server is set up.
struct draining_server_options {
    http_limits limits;  ///< of one request
    /// Handlers that run at the same time, a thread each, at most 1024. 0: two per processor, at least 8. Threads
    /// beyond one per processor start while handlers wait: twice as many each millisecond.
    std::size_t threads = 0;
    /// Further clients wait in the listen queue. For each of them the connection that has been idle longest is closed;
    /// if none is idle, busy connections close after their response.
    std::size_t max_connections = 16384;
    /// Bytes of incomplete requests and unsent responses, of all connections together. Above it, requests get 503 and
    /// no handler is called; each running handler may still add one response. Pipelined bytes, at most 16 KiB per
    /// connection, are not counted.
    std::size_t max_buffered = 64 * 1024 * 1024;
    /// A connection without a request. Longer than a proxy's (60 s by AWS ALB and nginx): the proxy must close first.
    std::chrono::milliseconds idle_timeout{75000};
    /// From a request's first byte (or that of empty lines before it) to its last; again, to write the response. What
    /// has arrived or can be sent by then still is, even if this process was frozen.
    std::chrono::milliseconds request_timeout{10000};
    /// While clients wait and no connection is idle, the slowest client is disconnected after this time.
    std::chrono::milliseconds overload_timeout{10000};
    /// The first part of drain(): everything is accepted and answered, but readiness fails and each connection closes
    /// after its response, so that probes and load balancers send new clients elsewhere.
    std::chrono::milliseconds lame_duck{0};
    std::chrono::seconds retry_after{1};  ///< the Retry-After of a 503
    /// A path the server answers itself, such as "/readyz": 200, and 503 once drain() has begun. Empty: none.
    std::string readiness_path;
    bool reuse_port = false;                     ///< SO_REUSEPORT: other processes may listen on the same port
    std::size_t thread_stack_size = 256 * 1024;  ///< bytes
};

/// How draining_server::drain() ends the server.
struct drain_options {
    time_point deadline = time_point::max();  ///< connections without a response by then are aborted
    cancel_token abort;                       ///< cancelled: they are aborted now
    /// Another process already accepts on the same address. It takes over the queue of a shared socket; with reuse_port
    /// this process accepts from its own queue once more. The lame duck lasts at least 100 ms, so that a busy
    /// connection is closed by a response.
    bool has_successor = false;
};

/// How a drain went, in requests.
struct drain_result {
    std::size_t answered = 0;  ///< since drain(); with readiness probes, and responses that were aborted
    std::size_t refused = 0;   ///< too late: 503
    std::size_t aborted = 0;   ///< begun, but without a complete response at the deadline
};

/// OJS_SERVER_SHUTDOWN_TIMEOUT as a duration, for sequence_options::timeout; 30 s if unset. An empty `lookup` reads the
/// process environment. Errors: invalid_argument. Thread-safe while no thread calls setenv(). [GS 9.2]
result<std::chrono::milliseconds> server_shutdown_timeout(const environment_lookup& lookup = nullptr);

namespace detail {
class server_body;
}

/// An HTTP/1.1 server. An idle connection costs a descriptor and about a kilobyte; only requests in flight take a
/// thread.
///
/// drain(), step by step: [GS 9.1]
/// - lame duck: readiness_path answers 503; every response says "Connection: close"
/// - queue: is accepted a last time, then the listening socket is closed: new clients are refused
/// - idle: connections are closed; unread bytes on them are read first
/// - in flight: a request of which a byte has arrived is answered, with "Connection: close"; pipelined ones are not
/// - too late: a client that connected but has sent nothing gets 503 with Retry-After, if it sends within 100 ms
/// - deadline: the rest is aborted, and counted
class draining_server {
  public:
    /// Listens when this returns. `address` is a comma-separated list of addresses as http_server takes them, of "fd:N"
    /// (a listening socket that this process inherited), and of "systemd:" (the sockets of LISTEN_FDS). Inherited
    /// sockets are closed at the end, in this process only; after an error they still belong to the caller. `handler`
    /// is called from several threads at once. Errors: invalid_argument, busy, system.
    static result<draining_server> start(std::string_view address, http_handler handler,
                                         draining_server_options options = {});

    draining_server(draining_server&& other) noexcept;             ///< `other` must not be used then
    draining_server& operator=(draining_server&& other) noexcept;  ///< ends this server; `other` must not be used then
    /// Drains with a deadline that has passed, and waits for the handlers. In a child made by fork(), which has no copy
    /// of the threads, it only closes the child's sockets, and drain() does nothing.
    ~draining_server();

    /// The addresses it listens on, comma-separated, each in the form of http_server::address().
    const std::string& address() const noexcept;
    std::uint16_t port() const noexcept;  ///< that of the first address; 0 of a Unix socket
    /// The listening sockets, to hand to a successor; -1 once closed.
    std::vector<int> listeners() const;
    bool draining() const noexcept;   ///< drain() has begun: not ready. Thread-safe
    std::size_t connections() const;  ///< open ones. Thread-safe
    /// Ends the server. Returns once no request is in flight, or at the deadline even while handlers run. A second call
    /// ignores its options, waits for the first and returns the same result. Neither this nor the destructor may be
    /// called from a handler. Thread-safe.
    drain_result drain(const drain_options& options = {});

  private:
    friend class http_server;
    friend class result<draining_server>;
    draining_server() = default;
    explicit draining_server(detail::ref<detail::server_body> body) noexcept;
    static result<draining_server> start(std::string_view address, http_handler handler,
                                         draining_server_options options, bool thread_per_connection);
    void join() noexcept;  // after drain(): every thread ends
    detail::ref<detail::server_body> impl_;
};

namespace detail {
// The request as handlers receive it.
struct served_request : http_request {
    int socket = -1;
};

// Whether the client of a request has disconnected, for a handler that waits. Thread-safe.
bool is_abandoned(const http_request& request) noexcept;
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
