// http_parser: takes HTTP/1.1 answers apart as their bytes arrive. A server reads requests by a class derived from it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../../base/detail/text.ipp"
#include "../http_message.ipp"

namespace ojs::detail {

// Null, or what is wrong with a header or trailer.
inline const char* split_field(std::string_view line, std::string_view& name,
                               std::string_view& value) noexcept {
    // A folded header starts with a blank, which no name has.
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)))
        return "a header has no valid name";
    name = line.substr(0, colon);
    value = trim_blanks(line.substr(colon + 1));
    return is_field_value(value) ? nullptr : "a header holds a control character";
}

// Takes off a mark and the blanks around it, if it is what comes next.
inline bool take_mark(std::string_view& text, char mark) noexcept {
    const std::size_t at = text.find_first_not_of(" \t");
    if (at == std::string_view::npos || text[at] != mark) return false;
    const std::size_t next = text.find_first_not_of(" \t", at + 1);
    text.remove_prefix(next == std::string_view::npos ? text.size() : next);
    return true;
}

inline bool take_token(std::string_view& text) noexcept {
    std::size_t length = 0;
    while (length < text.size() && is_token_char(text[length])) ++length;
    text.remove_prefix(length);
    return length > 0;
}

// Of a line without control characters.
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

// Strict where leniency has been exploited: lines end in CR LF, no folded headers, one unambiguous length, chunk
// framing and trailers by the letter.
class http_parser {
  public:
    enum class status { need_more, complete, failed };

    explicit http_parser(http_limits limits) noexcept : limits_(limits) {}

    // Starts on the next message; bytes already fed that belong to it stay. `is_head_response`: an answer to
    // HEAD, which has no body whatever its headers say.
    void begin(bool is_head_response = false) {
        if (!has_surplus() && input_.capacity() > 1024) {  // a connection that waits is to be small
            std::string().swap(input_);                    // assigning an empty one would keep the room
            at_ = scan_ = 0;
        }
        state_ = state::start_line;
        is_head_response_ = is_head_response;
        minor_version_ = 1;
        head_bytes_ = 0;
        body_left_ = 0;
        const http_request previous = std::move(message_);  // its room goes with it
        message_ = http_request{"", "", {}, ""};
        code_ = 0;
        keeps_alive_ = false;
    }
    // Adds bytes and goes as far as they reach. Feeding nothing goes on with the bytes that stayed.
    status feed(std::string_view bytes) {
        if (at_ > 0) {
            input_.erase(0, at_);
            scan_ -= at_;
            at_ = 0;
        }
        append(input_, {bytes});
        while (step()) {
        }
        if (state_ == state::complete) return status::complete;
        return state_ == state::failed ? status::failed : status::need_more;
    }
    // The peer closed: completes an answer whose body ends with the connection; anything else has failed.
    status finish() {
        if (state_ == state::rest_of_connection) {
            state_ = state::complete;
            return status::complete;
        }
        fail(400, "the message ends too early");
        return status::failed;
    }

    bool has_surplus() const noexcept { return at_ < input_.size(); }  // bytes beyond the complete message

    // Once the head is complete.
    int code() const noexcept { return code_; }                 // of an answer
    bool keeps_alive() const noexcept { return keeps_alive_; }  // the peer lets the connection live on
    // Once the message is complete. `message` of an answer leaves method and target empty.
    http_request& message() noexcept { return message_; }

    // Once it failed: what a server answers with, and a line for a person.
    int failure_code() const noexcept { return failure_code_; }
    const char* failure() const noexcept { return failure_; }

  protected:
    // In the order in which a message passes through them.
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
        const bool is_well_formed =
            line.size() >= 12 && line[8] == ' ' && (line.size() == 12 || line[12] == ' ');
        if (!is_well_formed || !parse_number(line.substr(9, 3), 599, code) || code < 100 ||
            !is_field_value(line)) {
            return fail(400, "the status line is not HTTP");
        }
        code_ = static_cast<int>(code);
        on_version(line.substr(0, 8));
    }
    virtual void on_head_end() {
        note_keep_alive();
        if (is_head_response_ || code_ < 200 || code_ == 204 || code_ == 304) {
            state_ = state::complete;
        } else {
            choose_framing(state::rest_of_connection);
        }
    }
    void on_version(std::string_view version) {
        const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
        const bool is_well_formed = version.size() == 8 && version.substr(0, 5) == "HTTP/" &&
                                    is_digit(version[5]) && version[6] == '.' && is_digit(version[7]);
        if (!is_well_formed) return fail(400, "the first line names no HTTP version");
        if (version[5] != '1') return fail(505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
        minor_version_ = version[7] - '0';
        state_ = state::header_line;
    }
    void note_keep_alive() noexcept {
        keeps_alive_ = minor_version_ > 0 ? !has_list_word(message_.headers, "Connection", "close")
                                          : has_list_word(message_.headers, "Connection", "keep-alive");
    }
    // How the end of the body is found. Whatever two readers could understand differently is refused.
    void choose_framing(state without_length) {
        std::string_view encoding;
        int encodings = 0;
        int lengths = 0;
        for (const http_header& header : message_.headers) {
            if (same_word(header.name, "Transfer-Encoding")) {
                encoding = header.value;
                ++encodings;
            } else if (same_word(header.name, "Content-Length")) {
                if (!take_content_length(header.value, lengths++ == 0)) return;
            }
        }
        if (encodings > 0) {
            if (lengths > 0) return fail(400, "both Content-Length and Transfer-Encoding are given");
            if (minor_version_ == 0) return fail(400, "HTTP/1.0 has no Transfer-Encoding");
            if (encodings > 1 || !same_word(encoding, "chunked")) {
                return fail(501, "the only Transfer-Encoding understood is chunked");
            }
            state_ = state::chunk_size;
        } else if (lengths > 0) {
            state_ = body_left_ > 0 ? state::fixed_body : state::complete;
        } else {
            state_ = without_length;
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
    http_request message_;

  private:
    // Handles one line or one run of body bytes; false when more bytes are needed or the message is at its end.
    bool step() {
        const state now = state_;
        if (now == state::complete || now == state::failed) return false;
        if (now == state::fixed_body || now == state::chunk_data || now == state::rest_of_connection)
            return take_body_bytes();
        std::string_view line;
        if (!take_line(line)) return false;
        if (now == state::start_line) on_start_line(line);
        if (now == state::header_line) on_header_line(line);
        if (now == state::chunk_size) on_chunk_size(line);
        if (now == state::chunk_end) on_chunk_end(line);
        if (now == state::trailer_line) on_trailer_line(line);
        return true;
    }
    void on_chunk_end(std::string_view line) {
        if (!line.empty()) return fail(400, "a chunk is longer than its size");
        state_ = state::chunk_size;
    }
    // The next line without its CR LF. The head, each chunk's framing and the trailers all keep the head's limit.
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
        line = std::string_view(input_).substr(at_, length - 2);
        head_bytes_ += length;
        at_ = scan_ = end + 1;
        return true;
    }
    bool take_body_bytes() {
        const bool is_unbounded = state_ == state::rest_of_connection;
        std::string_view part = std::string_view(input_).substr(at_);
        if (part.empty()) return false;
        if (!is_unbounded && part.size() > body_left_)
            part = part.substr(0, static_cast<std::size_t>(body_left_));
        if (is_unbounded && part.size() > limits_.body - message_.body.size()) {
            fail(413, "the body is too large");
            return false;
        }
        append(message_.body, {part});
        at_ += part.size();
        scan_ = at_;
        if (is_unbounded) return false;
        body_left_ -= part.size();
        if (body_left_ == 0) state_ = state_ == state::chunk_data ? state::chunk_end : state::complete;
        return true;
    }
    void on_header_line(std::string_view line) {
        if (line.empty()) return on_head_end();
        std::string_view name;
        std::string_view value;
        if (const char* problem = split_field(line, name, value)) return fail(400, problem);
        message_.headers.push_back({std::string(name), std::string(value)});
    }
    // Nothing is made of a trailer, but what is none may be the next request to another reader.
    void on_trailer_line(std::string_view line) {
        std::string_view name;
        std::string_view value;
        if (line.empty()) {
            state_ = state::complete;
        } else if (const char* problem = split_field(line, name, value)) {
            fail(400, problem);
        }
    }
    void on_chunk_size(std::string_view line) {
        const std::size_t end = line.find_first_not_of("0123456789abcdefABCDEF");
        const std::string_view digits = line.substr(0, end);
        const std::string_view extension = line.substr(digits.size());
        if (digits.empty() || !is_chunk_extension(extension))
            return fail(400, "a chunk size is not a number");
        if (!parse_hex(digits, limits_.body - message_.body.size(), body_left_)) {
            return fail(413, "the body is too large");
        }
        head_bytes_ = 0;
        state_ = body_left_ > 0 ? state::chunk_data : state::trailer_line;
    }
    // False after fail().
    bool take_content_length(std::string_view value, bool is_first) {
        std::uint64_t length = 0;
        if (value.empty() || value.find_first_not_of("0123456789") != std::string_view::npos) {
            fail(400, "Content-Length is not a number");
        } else if (!parse_number(value, limits_.body, length)) {
            fail(413, "the body is too large");
        } else if (!is_first && length != body_left_) {
            fail(400, "two values of Content-Length are given");
        }
        body_left_ = length;
        return state_ != state::failed;
    }
    http_limits limits_;
    std::string input_;
    std::size_t at_ = 0;    // what is before it has been used
    std::size_t scan_ = 0;  // no line end between at_ and here

    bool is_head_response_ = false;
    std::size_t head_bytes_ = 0;
    std::uint64_t body_left_ = 0;  // of the fixed body or the chunk
    int code_ = 0;
    bool keeps_alive_ = false;
    int failure_code_ = 0;
    const char* failure_ = "";
};

}  // namespace ojs::detail
