// http_messages: the server's side of HTTP: parses requests as their bytes arrive, and writes responses.
#pragma once

#include <errno.h>

#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../net/detail/http_parser.ipp"
#include "../../net/detail/socket.ipp"
#include "../../net/http_message.ipp"
#include "../draining_server.hpp"
#include "thread_end.ipp"

namespace ojs::detail {
class request_parser final : public http_parser {
  public:
    using http_parser::http_parser;

    // No byte of the request has arrived, except empty lines before it.
    bool is_empty() const noexcept { return state_ == state::start && !has_surplus(); }
    bool head_complete() const noexcept { return state_ > state::header && state_ != state::failed; }
    // Valid once the head is complete.
    bool expects_continue() const noexcept { return expects_continue_; }

  private:
    bool on_start_line(std::string_view line) override {
        if (line.empty()) return true;  // old clients send one after a body
        const std::size_t first_blank = line.find(' ');
        const std::size_t last_blank = line.rfind(' ');
        if (first_blank == std::string_view::npos || first_blank == last_blank)
            return fail(400, "the request line is not HTTP");
        const std::string_view method = line.substr(0, first_blank);
        std::string_view target = line.substr(first_blank + 1, last_blank - first_blank - 1);
        if (!is_token(method)) return fail(400, "the method is not an HTTP token");
        if (!is_target(target)) return fail(400, "the target contains a control character");
        authority_.clear();
        if (equals_ignore_case(target.substr(0, 7), "http://")) {  // as sent to a proxy
            target.remove_prefix(7);
            const std::size_t path = target.find_first_of("/?");
            authority_ = std::string(target.substr(0, path));
            if (authority_.empty()) return fail(400, "the request line names no host");
            target.remove_prefix(path == std::string_view::npos ? target.size() : path);
        }
        message_.method = std::string(method);
        message_.target = cat({target.empty() || target.front() == '?' ? "/" : "", target});
        return on_version(line.substr(last_blank + 1));
    }
    bool on_head_end() override {
        int hosts = 0;
        for (http_header& header : message_.headers) {
            if (!equals_ignore_case(header.name, "Host")) continue;
            ++hosts;
            if (!authority_.empty()) header.value = authority_;  // overrides Host [RFC 9112 3.2.2]
        }
        if (hosts > 1 || (hosts == 0 && !is_1_0_)) return fail(400, "exactly one Host header is required");
        expects_continue_ = !is_1_0_ && has_list_word(find_header(message_.headers, "Expect"), "100-continue");
        return choose_framing(state::complete);
    }

    std::string authority_;  // of a target that is an absolute URL
    bool expects_continue_ = false;
};

inline constexpr auto linger_time = std::chrono::seconds(1);
inline constexpr auto accept_retry_time = std::chrono::milliseconds(50);

inline const char* reason_phrase(int status) noexcept {
    switch (status) {
        case 200: return "OK";
        case 201: return "Created";
        case 202: return "Accepted";
        case 204: return "No Content";
        case 304: return "Not Modified";
        case 400: return "Bad Request";
        case 401: return "Unauthorized";
        case 403: return "Forbidden";
        case 404: return "Not Found";
        case 405: return "Method Not Allowed";
        case 408: return "Request Timeout";
        case 409: return "Conflict";
        case 413: return "Content Too Large";
        case 422: return "Unprocessable Content";
        case 429: return "Too Many Requests";
        case 431: return "Request Header Fields Too Large";
        case 500: return "Internal Server Error";
        case 501: return "Not Implemented";
        case 503: return "Service Unavailable";
        case 505: return "HTTP Version Not Supported";
        default: return "";
    }
}

inline http_response plain_response(int status, std::string_view text) {
    http_response out;
    out.status = status;
    out.headers.push_back({"Content-Type", "text/plain; charset=utf-8"});
    out.body = cat({text, "\n"});
    return out;
}

inline bool can_be_sent(const http_response& response) noexcept {
    if (response.status < 200 || response.status > 599) return false;
    for (const http_header& header : response.headers) {
        if (!is_token(header.name) || !is_field_value(header.value)) return false;
    }
    return true;
}

// Details of a handler's failure are for its own log, not for the client.
inline http_response call_handler(const http_handler& handler, const http_request& request) {
    try {
        http_response response = handler(request);
        if (response.status == 0 || can_be_sent(response)) return response;
    } catch (...) {
        rethrow_thread_exit();
    }
    return plain_response(500, "internal error");
}

OJS_SHUTDOWN_INLINE bool is_abandoned(const http_request& request) noexcept {
    char byte = 0;
    const int socket = static_cast<const served_request&>(request).socket;
    const ssize_t got = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
}

// Whether accept() failed because of that client only, or was interrupted by a signal.
inline bool is_peer_error(int accept_errno) noexcept {
    return accept_errno == ECONNABORTED || accept_errno == EINTR || accept_errno == EPROTO;
}

inline constexpr std::string_view continue_response = "HTTP/1.1 100 Continue\r\n\r\n";

inline void write_response(std::string& text, const http_response& response, bool is_head, bool closes) {
    text.reserve(response.body.size() + 512);
    append(text, {"HTTP/1.1 ", response.status, " ", reason_phrase(response.status), "\r\n"});
    for (const http_header& header : response.headers) {
        if (!is_framing_header(header.name)) append_header(text, header.name, header.value);
    }
    const bool bodiless = response.status == 204 || response.status == 304;
    if (!bodiless) append(text, {"Content-Length: ", response.body.size(), "\r\n"});
    append(text, {"Connection: ", closes ? "close" : "keep-alive", "\r\n\r\n"});
    if (!bodiless && !is_head) append(text, {response.body});
}
}  // namespace ojs::detail
