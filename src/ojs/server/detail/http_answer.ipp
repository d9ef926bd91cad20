// http_answer: what a server writes.
#pragma once

#include <errno.h>

#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../net/detail/socket.ipp"
#include "../../net/http_message.ipp"
#include "../draining_server.hpp"

namespace ojs::detail {

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

inline http_response plain_answer(int status, std::string_view text) {
    http_response out;
    out.status = status;
    out.headers.push_back({"Content-Type", "text/plain; charset=utf-8"});
    out.body = cat({text, "\n"});
    return out;
}

inline bool can_be_sent(const http_response& answer) noexcept {
    if (answer.status < 200 || answer.status > 599) return false;
    for (const http_header& header : answer.headers) {
        if (!is_token(header.name) || !is_field_value(header.value)) return false;
    }
    return true;
}

// What the handler makes of a request. What goes wrong there is the handler's to log, not a stranger's to read.
inline http_response call_handler(const http_handler& handler, const http_request& request) {
    try {
        http_response made = handler(request);
        if (made.drop || can_be_sent(made)) return made;
    } catch (...) {
        pass_on_thread_end();
    }
    return plain_answer(500, "internal error");
}

OJS_SHUTDOWN_INLINE bool is_abandoned(const http_request& request) noexcept {
    const ssize_t got = peek(static_cast<const served_request&>(request).socket);
    return got == 0 || (got < 0 && !would_block(errno));
}

// Whether accept() failed for a reason that concerns that peer alone, or for a signal.
inline bool peer_gave_up(int accept_errno) noexcept {
    return accept_errno == ECONNABORTED || accept_errno == EINTR || accept_errno == EPROTO;
}

inline constexpr std::string_view continue_answer = "HTTP/1.1 100 Continue\r\n\r\n";

inline std::string compose_answer(const http_response& answer, bool to_head, bool closes) {
    std::string text;
    text.reserve(answer.body.size() + 512);
    append(text, {cat({"HTTP/1.1 ", answer.status, " ", reason_phrase(answer.status), "\r\n"})});
    for (const http_header& header : answer.headers) {
        if (!is_framing_header(header.name)) append_header(text, header.name, header.value);
    }
    const bool bodiless = answer.status == 204 || answer.status == 304;
    if (!bodiless) append_header(text, "Content-Length", cat({answer.body.size()}));
    append_header(text, "Connection", closes ? "close" : "keep-alive");
    append(text, {"\r\n"});
    if (!bodiless && !to_head) append(text, {answer.body});
    return text;
}

}  // namespace ojs::detail
