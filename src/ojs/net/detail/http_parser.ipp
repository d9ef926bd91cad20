// http_parser: an incremental parser of HTTP/1.1 responses. The server derives its request parser from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../base/detail/text.hpp"
#include "../http_message.ipp"

namespace ojs::detail {

// Removes `mark` and the blanks around it, if it is next.
inline bool take_mark(std::string_view& text, char mark) noexcept {
    const std::size_t at = text.find_first_not_of(" \t");
    if (at == std::string_view::npos || text[at] != mark) return false;
    text.remove_prefix(min(text.find_first_not_of(" \t", at + 1), text.size()));
    return true;
}

inline bool take_token(std::string_view& text) noexcept {
    std::size_t length = 0;
    while (length < text.size() && is_token_char(text[length])) ++length;
    text.remove_prefix(length);
    return length > 0;
}

// For a line without control characters.
inline bool take_quoted(std::string_view& text) noexcept {
    if (text.empty() || text.front() != '"') return false;
    std::size_t at = 1;
    while (at < text.size() && text[at] != '"') at += text[at] == '\\' ? 2U : 1U;
    if (at >= text.size()) return false;
    text.remove_prefix(at + 1);
    return true;
}

// *( BWS ";" BWS token [ BWS "=" BWS ( token / quoted-string ) ] )   [RFC 9112 7.1.1]
inline bool is_chunk_extension(std::string_view text) noexcept {
    if (!is_field_value(text)) return false;
    while (!text.empty()) {
        if (!take_mark(text, ';') || !take_token(text)) return false;
        if (take_mark(text, '=') && !take_token(text) && !take_quoted(text)) return false;
    }
    return true;
}

// Strict where leniency has been exploited: CR LF, unfolded headers, an unambiguous length, exact chunks and trailers.
class http_parser {
  public:
    enum class status { need_more, complete, failed };

    explicit http_parser(http_limits limits) noexcept : limits_(limits) {}

    // Starts the next message, with the bytes already fed for it. A response to HEAD has no body.
    void begin(bool is_head_response = false) {
        http_parser next(limits_);
        next.is_head_response_ = is_head_response;
        next.kept_ = kept_;
        detail::swap(*this, next);  // frees the memory of the last message: an idle connection uses little
    }
    // Adds bytes and parses as far as possible. No bytes: continues with those that are left.
    status feed(std::string_view bytes) {
        if (!kept_.empty()) append(kept_, {bytes});
        input_ = kept_.empty() ? bytes : kept_;
        while (step()) {
        }
        if (kept_.empty())
            kept_ = input_.substr(at_);
        else
            kept_.erase(0, at_);
        scan_ -= at_;
        at_ = 0;
        if (state_ == state::complete) return status::complete;
        return state_ == state::failed ? status::failed : status::need_more;
    }
    // The peer has closed: completes a response whose body ends with the connection; anything else has failed.
    status finish() {
        if (state_ != state::rest_of_connection) fail(400, "the message ends too early");
        if (state_ == state::failed) return status::failed;
        state_ = state::complete;
        return status::complete;
    }

    bool has_surplus() const noexcept { return !kept_.empty(); }  // bytes beyond the complete message

    // Once the head is complete.
    int code() const noexcept { return code_; }                 // of a response
    bool keeps_alive() const noexcept { return keeps_alive_; }  // the peer keeps the connection open
    // Once the message is complete. A response leaves method and target empty.
    http_request& message() noexcept { return message_; }

    // Once it has failed: the status that a server responds with, and the error text.
    int failure_code() const noexcept { return failure_code_; }
    const char* failure() const noexcept { return failure_; }

  protected:
    enum class state {
        start_line,
        header_line,
        fixed_body,
        chunk_size,
        chunk_data,
        chunk_end,
        trailer_line,
        rest_of_connection,
        complete,
        failed
    };

    virtual void on_start_line(std::string_view line) {
        std::uint64_t code = 0;
        const bool is_valid = line.size() >= 12 && line[8] == ' ' && (line.size() == 12 || line[12] == ' ');
        if (!is_valid || !parse_number(line.substr(9, 3), 599, code) || code < 100 || !is_field_value(line))
            return fail(400, "the status line is not HTTP");
        code_ = static_cast<int>(code);
        on_version(line.substr(0, 8));
    }
    virtual void on_head_end() {
        set_keep_alive();
        state_ = state::complete;
        const bool has_body = !is_head_response_ && code_ >= 200 && code_ != 204 && code_ != 304;
        if (has_body) choose_framing(state::rest_of_connection);
    }
    void on_version(std::string_view version) {
        const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
        const bool is_valid = version.size() == 8 && version.substr(0, 5) == "HTTP/" &&
                              is_digit(version[5]) && version[6] == '.' && is_digit(version[7]);
        if (!is_valid) return fail(400, "the first line names no HTTP version");
        if (version[5] != '1') return fail(505, "only HTTP/1.0 and HTTP/1.1 are supported");
        minor_version_ = version[7] - '0';
        state_ = state::header_line;
    }
    void set_keep_alive() noexcept {
        keeps_alive_ = minor_version_ > 0 ? !has_list_word(message_.headers, "Connection", "close")
                                          : has_list_word(message_.headers, "Connection", "keep-alive");
    }
    // Decides how the body ends. Refuses whatever two parsers could understand differently.
    void choose_framing(state without_length) {
        std::string_view encoding;
        int encodings = 0;
        int lengths = 0;
        for (const http_header& header : message_.headers) {
            if (equals_ignore_case(header.name, "Transfer-Encoding")) {
                encoding = header.value;
                ++encodings;
            } else if (equals_ignore_case(header.name, "Content-Length")) {
                if (!take_content_length(header.value, lengths++ == 0)) return;
            }
        }
        if (encodings > 0) {
            if (lengths > 0) return fail(400, "both Content-Length and Transfer-Encoding are given");
            if (minor_version_ == 0) return fail(400, "HTTP/1.0 has no Transfer-Encoding");
            if (encodings > 1 || !equals_ignore_case(encoding, "chunked"))
                return fail(501, "the only Transfer-Encoding understood is chunked");
            state_ = state::chunk_size;
        } else {
            state_ = lengths == 0 ? without_length : body_left_ > 0 ? state::fixed_body : state::complete;
        }
        if (state_ == state::rest_of_connection) keeps_alive_ = false;
    }
    void fail(int code, const char* reason) noexcept {
        state_ = state::failed;
        failure_code_ = code;
        failure_ = reason;
    }

    state state_ = state::start_line;
    int minor_version_ = 1;
    http_request message_{"", "", {}, ""};

  private:
    // Parses one line or one run of body bytes; false when it needs more bytes or the message is complete.
    bool step() {
        const state now = state_;
        if (now == state::complete || now == state::failed) return false;
        if (now == state::fixed_body || now == state::chunk_data || now == state::rest_of_connection)
            return take_body_bytes();
        std::string_view line;
        if (!take_line(line)) return false;
        if (now == state::start_line) on_start_line(line);
        if (now == state::header_line || now == state::trailer_line) on_field_line(line);
        if (now == state::chunk_size) on_chunk_size(line);
        if (now == state::chunk_end) state_ = state::chunk_size;
        if (now == state::chunk_end && !line.empty()) fail(400, "a chunk is longer than its size");
        return true;
    }
    // Takes the next line without its CR LF. Head, framing of a chunk, and trailers each have the limit of a head.
    bool take_line(std::string_view& line) {
        const bool in_head = state_ <= state::header_line;
        const std::size_t end = input_.find('\n', scan_);
        const std::size_t length = (end == std::string::npos ? input_.size() : end + 1) - at_;
        if (head_bytes_ + length > limits_.head) {
            fail(in_head ? 431 : 400, in_head ? "the head is too large" : "the chunk framing is too large");
            return false;
        }
        if (end == std::string::npos) {
            scan_ = input_.size();
            return false;
        }
        if (length < 2 || input_[end - 1] != '\r') {
            fail(400, "a line does not end in CR LF");
            return false;
        }
        line = input_.substr(at_, length - 2);
        head_bytes_ += length;
        at_ = scan_ = end + 1;
        return true;
    }
    bool take_body_bytes() {
        const bool is_unbounded = state_ == state::rest_of_connection;
        std::string_view part = input_.substr(at_);
        if (part.empty()) return false;
        if (is_unbounded && !limit_body(part.size())) return false;
        if (!is_unbounded) part = part.substr(0, static_cast<std::size_t>(body_left_));
        append(message_.body, {part});
        at_ += part.size();
        scan_ = at_;
        if (is_unbounded) return false;
        body_left_ -= part.size();
        if (body_left_ == 0) state_ = state_ == state::chunk_data ? state::chunk_end : state::complete;
        return true;
    }
    // Trailers are ignored, but checked: to another parser, an invalid one may be the next request.
    void on_field_line(std::string_view line) {
        const bool in_head = state_ == state::header_line;
        if (line.empty() && in_head) return on_head_end();
        if (line.empty()) return void(state_ = state::complete);
        // A folded header begins with a blank, which no name does.
        const std::string_view name = line.substr(0, line.find(':'));
        if (name.size() == line.size() || !is_token(name)) return fail(400, "a header has no valid name");
        const std::string_view value = trim_blanks(line.substr(name.size() + 1));
        if (!is_field_value(value)) return fail(400, "a header contains a control character");
        if (!in_head) return;
        if (message_.headers.empty()) message_.headers.reserve(8);
        message_.headers.push_back({std::string(name), std::string(value)});
    }
    void on_chunk_size(std::string_view line) {
        const std::size_t end = line.find_first_not_of("0123456789abcdefABCDEF");
        const std::string_view digits = line.substr(0, end);
        const std::string_view extension = line.substr(digits.size());
        if (digits.empty() || !is_chunk_extension(extension))
            return fail(400, "a chunk size is not a number");
        std::uint64_t size = 0;
        if (!parse_hex(digits, UINT64_MAX, size)) return fail(413, "the body is too large");
        if (!limit_body(size)) return;
        head_bytes_ = 0;
        state_ = body_left_ > 0 ? state::chunk_data : state::trailer_line;
    }
    // False after fail().
    bool take_content_length(std::string_view value, bool is_first) {
        std::uint64_t length = 0;
        if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) {
            fail(400, "Content-Length is not a number");
        } else if (!parse_number(value, UINT64_MAX, length)) {
            fail(413, "the body is too large");
        } else if (!is_first && length != body_left_) {
            fail(400, "two values of Content-Length are given");
        }
        return state_ != state::failed && limit_body(length);
    }
    // Expects `size` more bytes of the body. False after fail(): too many.
    bool limit_body(std::uint64_t size) noexcept {
        body_left_ = size;
        if (size > limits_.body - message_.body.size()) fail(413, "the body is too large");
        return state_ != state::failed;
    }
    http_limits limits_;
    std::string kept_;        // bytes that are not consumed
    std::string_view input_;  // these, or those just fed
    std::size_t at_ = 0;      // the bytes before it are consumed
    std::size_t scan_ = 0;    // no line end between at_ and this

    bool is_head_response_ = false;
    std::size_t head_bytes_ = 0;
    std::uint64_t body_left_ = 0;  // of the body or chunk
    int code_ = 0;
    bool keeps_alive_ = false;
    int failure_code_ = 0;
    const char* failure_ = "";
};

}  // namespace ojs::detail
