// http_client: HTTP/1.1 with one deadline per request and a pool of idle connections.
#pragma once

#include <string>
#include <string_view>

#include "../base/duration.hpp"
#include "byte_stream.hpp"
#include "http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Options of an http_client.
struct http_client_options {
    std::string bearer_token;                ///< sent as "Authorization: Bearer ..."; empty: not sent
    std::string bearer_token_file;           ///< with the token instead, read for each request; empty: none
    http_headers headers;                    ///< sent with every request; one replaces ours of that name
    stream_factory https_stream;             ///< for https:// URLs: tls_openssl() of ojs_tls.hpp, or another
    std::size_t max_body = 8 * 1024 * 1024;  ///< of a response, whose head has at most 64 KiB, in bytes
};

/// How to send one request.
struct http_call {
    /// Includes name resolution. A response that has arrived by then is a value even if it is read later.
    time_point deadline = time_point::max();
    /// Called right before the first byte is written; false: nothing is sent, errc::cancelled.
    function<bool()> should_send{};
    /// The request may be sent once more if its connection breaks; else only if the peer cannot have processed it.
    bool is_repeatable = false;
    /// Once readable, ends the wait for a handshake or response with errc::cancelled. -1: none.
    int interrupt_fd = -1;
};

namespace detail {
class http_exchange;
}

/// A client of one server. It keeps connections open for 30 s. A request on a kept connection that breaks, or gets no
/// response by its deadline, closes all idle ones. Copies share connections; no call may outlast the last one.
class http_client {
  public:
    /// `url` is http://HOST[:PORT][/BASE], https:// likewise, or unix:/PATH. Does not connect yet.
    /// errc::invalid_argument: not such a URL, CR, LF or NUL in a header or the token, or a header that would be sent
    /// twice, such as Content-Length; errc::unsupported: https:// without an https_stream.
    static result<http_client> create(std::string_view url, http_client_options options = {});

    /// Sends a request (BASE is prepended to its target) and reads the complete response. Skips 1xx, follows no
    /// redirects, decodes no body. A response of any status is a value. Errors: timed_out, unreachable (never sent),
    /// disconnected (perhaps processed), bad_response, invalid_argument, cancelled. Thread-safe.
    result<http_response> send(const http_request& request, const http_call& call);

    /// "POST http://HOST:PORT/BASE/TARGET" for error texts, without the query. Thread-safe.
    std::string describe(std::string_view method, std::string_view target) const;

  private:
    friend class result<http_client>;
    http_client() = default;
    explicit http_client(detail::ref<detail::http_exchange> body) noexcept : body_(std::move(body)) {}
    detail::ref<detail::http_exchange> body_;
};
}  // namespace v0_1_0
}  // namespace ojs
