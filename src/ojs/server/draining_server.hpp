// draining_server: an HTTP/1.1 server for many connections that fails none as it ends.
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

// 0: a server waits for its connections with poll(), as everywhere but on Linux.
#ifndef OJS_SHUTDOWN_USE_EPOLL
#define OJS_SHUTDOWN_USE_EPOLL OJS_SHUTDOWN_ON_LINUX
#endif

namespace ojs {
inline namespace v0_1_0 {

// Answers one request. Called from several threads at once. What it throws becomes a 500; where it ends its thread, the
// connection is closed.
using http_handler = function<http_response(const http_request&)>;

struct draining_server_options {
    http_limits limits;
    // Requests answered at the same time, a thread each, 1024 at most. 0: two for each processor, and 8 at least.
    // Beyond one for each processor they join while handlers wait: twice as many each millisecond.
    std::size_t threads = 0;
    // More wait in the listen queue; for them the connection that has been idle longest is closed, and those that are
    // busy close with their answers.
    std::size_t max_connections = 16384;
    // Bytes of requests that are not complete and of answers that are not sent, in all connections together. While
    // there are more, requests are refused with 503 and no handler is called; handlers that run already add an answer
    // each at most. What follows a request on the same connection, 16 KiB at most, is not counted.
    std::size_t max_buffered = 64 * 1024 * 1024;
    std::chrono::milliseconds idle_timeout{60000};  // a connection without a request
    // From a request's first byte, or that of empty lines before it, to its last; and to write the answer.
    std::chrono::milliseconds request_timeout{10000};
    // While others wait and no connection is idle, the slowest client is cut after this time.
    std::chrono::milliseconds overload_timeout{10000};
    // drain() begins with so long a time in which everything is still accepted and answered, but readiness fails and
    // each connection closes with its answer, so that who looks at readiness, or balances the load, has gone
    // elsewhere.
    std::chrono::milliseconds lame_duck{0};
    std::chrono::seconds retry_after{1};  // what a 503 of the drain says
    // A path that is answered here, with 200 and, from the begin of drain() on, 503: "/readyz". Empty: there is none.
    std::string readiness_path;
    bool reuse_port = false;                     // SO_REUSEPORT: other processes may listen on the same port
    std::size_t thread_stack_size = 256 * 1024;  // bytes
};

struct drain_options {
    time_point deadline = time_point::max();  // what is not answered by then is cut
    cancel_token abort;                       // cancelled: it is cut now
    // Another process accepts on the same address by now. What waits in the queue of a shared socket is left to it;
    // with reuse_port the queue is this process's own, and accepted a last time. The lame duck is 100 ms at least, so
    // that a connection with request upon request is closed by an answer.
    bool has_successor = false;
};

// How a drain went, in requests.
struct drain_result {
    std::size_t answered = 0;  // since it began, also those at readiness_path, and those whose answer was cut
    std::size_t refused = 0;   // with 503, as they came too late
    std::size_t cut = 0;       // begun, and without a whole answer at the deadline
};

namespace detail {
class server_body;
}

// A waiting connection costs a descriptor and about a kilobyte; only requests in flight take a thread.
//
// drain(), step by step: [GS 9.1]
//   lame duck     readiness_path answers 503, each answer says "Connection: close"
//   the queue     is accepted a last time, and the listening socket closed: who comes now is refused
//   idle          connections are closed, those on which bytes wait are read
//   in flight     requests of which a byte has come are answered, with "Connection: close"; those pipelined behind
//                 are not
//   too late      who had connected but sent nothing yet is answered 503, with Retry-After, if it sends within 100 ms
//   deadline      the rest is cut, and counted
class draining_server {
  public:
    // Listens when this returns. `address`: one or several, with commas between them, of those http_server takes, of
    // "fd:N", a listening socket that this process was given, and of "systemd:", those of LISTEN_FDS. These are
    // closed at the end, in this process only; after an error they still belong to the caller. `handler` is called
    // from several threads at once. Errors: invalid_argument, busy, system.
    static result<draining_server> start(std::string_view address, http_handler handler,
                                         draining_server_options options = {});

    draining_server(draining_server&& other) noexcept;
    draining_server& operator=(draining_server&& other) noexcept;
    // As drain() with a deadline that has passed; and waits for the handlers. In a child made by fork(), which has
    // the memory but not the threads, it closes the child's sockets and nothing else, and drain() does nothing.
    ~draining_server();

    // Where it listens, as http_server::address() says it; several with commas between them.
    const std::string& address() const noexcept;
    std::uint16_t port() const noexcept;  // of the first; 0 for unix:
    // The listening sockets, to be given to a successor; -1 once they are closed.
    std::vector<int> listeners() const;
    bool draining() const noexcept;   // readiness: not ready. Thread-safe
    std::size_t connections() const;  // Thread-safe
    // Ends the server. Returns once nothing is in hand, or at the deadline, whatever handlers do. Called again, or
    // meanwhile: waits for the first call, whose options hold, and returns its result. Not from a handler, and the
    // destructor neither. Thread-safe.
    drain_result drain(const drain_options& options = {});

  private:
    friend class http_server;
    explicit draining_server(detail::ref<detail::server_body> body) noexcept;
    static result<draining_server> start(std::string_view address, http_handler handler,
                                         draining_server_options options, bool is_small);
    void join() noexcept;  // after drain(): every thread ends
    detail::ref<detail::server_body> impl_;
};

namespace detail {

// What handlers are given.
struct served_request : http_request {
    int socket = -1;
};

// For a handler that waits: whether who sent the request it was given has gone away. Thread-safe.
bool is_abandoned(const http_request& request) noexcept;

}  // namespace detail

}  // namespace v0_1_0
}  // namespace ojs
