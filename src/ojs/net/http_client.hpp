// http_client: HTTP/1.1 with one deadline a request and a pool of kept connections.
#pragma once

#include <string>
#include <string_view>

#include "../base/duration.hpp"
#include "../base/error.hpp"
#include "../base/function.hpp"
#include "byte_stream.hpp"
#include "http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct http_client_options {
    std::string bearer_token;  // sent as "Authorization: Bearer ..."; empty: not sent
    http_headers headers;      // sent with every request
    http_limits limits;
    stream_factory https_stream;            // what an https:// URL is spoken over; none: it is refused
    std::size_t max_idle_connections = 16;  // kept open between requests
};

// When a request may be sent again on a new connection after its connection broke.
enum class resend {
    if_unsent,  // only where the peer cannot have processed it (the connection was dead before the first byte)
    always      // once more in any case: the request is harmless to repeat (ACK, FAIL)
};

struct http_call {
    time_point deadline = time_point::max();  // covers name resolution, connect, handshake, write and read
    resend policy = resend::if_unsent;
    // Asked right before the first byte is written; false ends the call with errc::cancelled, nothing sent.
    function<bool()> still_wanted;
    // Once it is readable, the wait for a handshake or the answer ends with errc::cancelled: perhaps processed. -1:
    // none.
    int interrupt_fd = -1;
};

namespace detail {
class http_exchange;
}

class http_client {
  public:
    // `url` is http://HOST[:PORT][/BASE] (HOST a name, an IPv4 address or an IPv6 address in brackets), the same with
    // https:// where there is an https_stream, or unix:/PATH. Opens nothing yet. errc::invalid_argument: not such a
    // URL, or CR, LF or NUL in a header or the token; errc::unsupported: https:// without a stream.
    static result<http_client> create(std::string_view url, http_client_options options = {});

    // Destroying it closes the kept connections; no call may be under way.
    http_client(http_client&& other) noexcept = default;
    http_client& operator=(http_client&& other) noexcept = default;

    // Sends one request (BASE goes before its target) and reads the whole answer; 1xx are skipped, redirects are
    // answers like any other. An answer of any status is a value, not an error. Errors: timed_out, unreachable
    // (never sent), disconnected (perhaps processed), bad_response, invalid_argument, cancelled. Thread-safe: each
    // call under way has a connection of its own.
    result<http_response> send(const http_request& request, const http_call& call);

  private:
    explicit http_client(detail::ref<detail::http_exchange> body) noexcept : body_(std::move(body)) {}
    detail::ref<detail::http_exchange> body_;
};

}  // namespace v0_1_0
}  // namespace ojs
