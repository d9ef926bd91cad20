// http_parser: an incremental parser of HTTP/1.1 responses. The server derives its request parser from it.
#pragma once

#include <cstdint>

#include "../http_message.ipp"

namespace ojs::detail {
// Strict where leniency has been exploited.
class http_parser {
  public:
    enum class status { need_more, complete, failed };

    // In bytes: of the first line and the headers, and of the body without chunk framing.
    http_parser(std::size_t max_head, std::size_t max_body) noexcept : max_head_(max_head), max_body_(max_body) {}

    // Starts the next message, with the bytes already fed for it.
    void begin(bool is_head_response = false) {
        http_parser next(max_head_, max_body_);
        next.is_head_response_ = is_head_response;
        next.kept_ = kept_;
        swap(*this, next);  // frees the memory of the last message: an idle connection uses little
    }
    // No bytes: continues with those that are left.
    status feed(std::string_view bytes) {
        if (!kept_.empty()) append(kept_, {bytes});
        std::string_view left = kept_.empty() ? bytes : kept_;
        while (step(left)) continue;
        kept_ = std::string(left);
        if (state_ == state::complete) return status::complete;
        return state_ == state::failed ? status::failed : status::need_more;
    }
    // The peer has closed: completes a response whose body ends with the connection; anything else has failed.
    status finish() const noexcept { return state_ == state::rest ? status::complete : status::failed; }

    bool has_surplus() const noexcept { return !kept_.empty(); }  // bytes beyond the complete message

    // Once the head is complete.
    int code() const noexcept { return code_; }                 // of a response
    bool keeps_alive() const noexcept { return keeps_alive_; }  // the peer keeps the connection open
    // Once the message is complete. A response leaves method and target empty.
    http_request& message() noexcept { return message_; }

    // Once it has failed: what a server responds with.
    int failure_code() const noexcept { return failure_code_; }
    std::string failure() const {
        return limit_ == 0 ? failure_ : cat({failure_, " is larger than ", limit_, " bytes"});
    }

  protected:
    enum class state { start, header, body, chunk_size, chunk, chunk_end, trailer, rest, complete, failed };

    // These return false after fail().
    virtual bool on_start_line(std::string_view line) {
        std::uint64_t code = 0;
        const bool is_valid = line.size() >= 12 && line[8] == ' ' && (line.size() == 12 || line[12] == ' ') &&
                              is_field_value(line) && parse_number(line.substr(9, 3), 599, code);
        if (!is_valid || code < 100) return fail(400, "the status line is not HTTP");
        code_ = static_cast<int>(code);
        return on_version(line.substr(0, 8));
    }
    virtual bool on_head_end() {
        const bool has_body = !is_head_response_ && code_ >= 200 && code_ != 204 && code_ != 304;
        const bool is_framed = choose_framing(has_body ? state::rest : state::complete);
        if (has_body) return is_framed;
        // The peer may send the body that it announces here, and that no response to this request has.
        const bool announces_body = exchange(state_, code_ < 200 ? state::start : state::complete) != state::complete;
        if (announces_body) keeps_alive_ = false;
        if (code_ >= 200) return true;
        message_.headers.clear();  // the final response follows
        return (!announces_body && code_ != 101) || fail(400, "an interim response has a body or changes the protocol");
    }
    bool on_version(std::string_view version) {
        is_1_0_ = version == "HTTP/1.0";
        state_ = state::header;
        if (is_1_0_ || version == "HTTP/1.1") return true;
        const bool is_http = version.size() == 8 && starts_with(version, "HTTP/");
        return fail(is_http ? 505 : 400, "only HTTP/1.0 and HTTP/1.1 are supported");
    }
    // Refuses whatever two parsers could understand differently.
    bool choose_framing(state without_length) {
        bool is_chunked = false;
        bool has_length = false;
        keeps_alive_ = !is_1_0_;
        for (const http_header& header : message_.headers) {
            std::uint64_t length = 0;
            if (equals_ignore_case(header.name, "Transfer-Encoding")) {
                if (is_1_0_ || is_chunked || !equals_ignore_case(header.value, "chunked"))
                    return fail(501, "the only Transfer-Encoding understood is chunked, in HTTP/1.1");
                is_chunked = true;
            } else if (equals_ignore_case(header.name, "Content-Length")) {
                if (!parse_number(header.value, UINT64_MAX, length))
                    return fail(400, "Content-Length is not a 64-bit number");
                if (has_length && length != body_left_) return fail(400, "two values of Content-Length are given");
                if (!expect_body(length)) return false;
                has_length = true;
            } else if (equals_ignore_case(header.name, "Connection") &&
                       has_list_word(header.value, is_1_0_ ? "keep-alive" : "close")) {
                keeps_alive_ = is_1_0_;
            }
        }
        if (is_chunked && has_length) return fail(400, "both Content-Length and Transfer-Encoding are given");
        state_ = is_chunked       ? state::chunk_size
                 : !has_length    ? without_length
                 : body_left_ > 0 ? state::body
                                  : state::complete;
        if (state_ == state::rest) keeps_alive_ = false;
        return true;
    }
    bool fail(int code, const char* reason, std::size_t limit = 0) noexcept {
        state_ = state::failed;
        failure_code_ = code;
        failure_ = reason;
        limit_ = limit;
        return false;
    }

    state state_ = state::start;
    bool is_1_0_ = false;
    http_request message_{"", "", {}, ""};

  private:
    // One line or one run of body bytes; false when it needs more bytes or the message is complete.
    bool step(std::string_view& left) {
        if (state_ == state::complete || state_ == state::failed) return false;
        if (state_ == state::body || state_ == state::chunk || state_ == state::rest) return take_body(left);
        std::string_view line;
        if (!take_line(left, line)) return false;
        if (state_ == state::start) return on_start_line(line);
        if (state_ == state::chunk_size) return on_chunk_size(line);
        if (state_ != state::chunk_end) return on_field_line(line);
        state_ = state::chunk_size;
        return line.empty() || fail(400, "a chunk is longer than its size");
    }
    // Takes the next line without its CR LF. A head, a chunk's framing and trailers each have the limit of a head.
    bool take_line(std::string_view& left, std::string_view& line) {
        const std::size_t end = left.find('\n');
        const std::size_t length = end == left.npos ? left.size() : end + 1;
        if (head_bytes_ + length > max_head_)
            return state_ <= state::header ? fail(431, "the head", max_head_)
                                           : fail(400, "a chunk's framing", max_head_);
        if (end == left.npos) return false;
        if (length < 2 || left[end - 1] != '\r') return fail(400, "a line does not end in CR LF");
        line = left.substr(0, length - 2);
        left.remove_prefix(length);
        head_bytes_ += length;
        return true;
    }
    bool take_body(std::string_view& left) {
        const bool is_unbounded = state_ == state::rest;
        if (is_unbounded && !expect_body(left.size())) return false;
        const std::string_view part = left.substr(0, static_cast<std::size_t>(body_left_));
        append(message_.body, {part});
        left.remove_prefix(part.size());
        body_left_ -= part.size();
        if (is_unbounded || body_left_ > 0) return false;
        state_ = state_ == state::chunk ? state::chunk_end : state::complete;
        return true;
    }
    // Trailers are ignored, but checked: to another parser, an invalid one may be the next request.
    bool on_field_line(std::string_view line) {
        const bool in_head = state_ == state::header;
        if (line.empty() && in_head) return on_head_end();
        if (line.empty()) return state_ = state::complete, true;
        // A folded header begins with a blank, which no name does.
        const std::string_view name = line.substr(0, line.find(':'));
        if (name.size() == line.size() || !is_token(name)) return fail(400, "a header line has no valid name");
        const std::string_view value = trim_blanks(line.substr(name.size() + 1));
        if (!is_field_value(value)) return fail(400, "a header contains a control character");
        if (message_.headers.empty()) message_.headers.reserve(8);
        if (in_head) message_.headers.push_back({std::string(name), std::string(value)});
        return true;
    }
    // What may follow the size, an extension, is ignored.
    bool on_chunk_size(std::string_view line) {
        const std::string_view digits = line.substr(0, line.find_first_not_of("0123456789abcdefABCDEF"));
        const std::string_view rest = trim_blanks(line.substr(digits.size()));
        if (digits.empty() || !is_field_value(rest) || (!rest.empty() && rest.front() != ';'))
            return fail(400, "a chunk size is not a number");
        std::uint64_t size = 0;
        if (!parse_number(digits, UINT64_MAX, size, 16)) return fail(413, "the body", max_body_);
        head_bytes_ = 0;
        state_ = size > 0 ? state::chunk : state::trailer;
        return expect_body(size);
    }
    bool expect_body(std::uint64_t size) noexcept {
        body_left_ = size;
        return size <= max_body_ - message_.body.size() || fail(413, "the body", max_body_);
    }

    std::size_t max_head_;
    std::size_t max_body_;
    std::string kept_;  // bytes that are not consumed
    bool is_head_response_ = false;
    std::size_t head_bytes_ = 0;
    std::uint64_t body_left_ = 0;  // of the body or chunk
    int code_ = 0;
    bool keeps_alive_ = false;
    int failure_code_ = 0;
    const char* failure_ = "";
    std::size_t limit_ = 0;
};
}  // namespace ojs::detail
