// http_parser: takes HTTP/1.1 messages apart as their bytes arrive. Client and server share it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "../http_message.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What is asked of the text of a message, and how it is written. All ignore case where HTTP does.
inline char lower_ascii(char c) noexcept {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c;
}
bool same_word(std::string_view a, std::string_view b) noexcept;
bool is_token(std::string_view text) noexcept;        // a method or a header name
bool is_field_value(std::string_view text) noexcept;  // no CR, LF, NUL or other control character but a tab
bool is_target(std::string_view text) noexcept;       // not empty, no blank and no control character
// Whether a comma-separated header ("Connection: keep-alive, close") holds the word.
bool has_list_word(const http_headers& headers, std::string_view name, std::string_view word) noexcept;
// Content-Length, Transfer-Encoding or Connection: ours to write, never copied from a caller.
bool is_framing_header(std::string_view name) noexcept;
void append_header(std::string& head, std::string_view name, std::string_view value);

// Strict where leniency has been exploited: lines end in CR LF, no folded headers, one unambiguous length, chunk framing
// and trailers by the letter.
class http_parser {
  public:
    enum class role { request, answer };
    enum class status { need_more, complete, failed };

    http_parser(role what, http_limits limits) noexcept : role_(what), limits_(limits) {}

    // Starts on the next message; bytes already fed that belong to it stay. `answers_head`: an answer to
    // HEAD, which has no body whatever its headers say.
    void begin(bool answers_head = false);
    // Adds bytes and goes as far as they reach. Feeding nothing goes on with the bytes that stayed.
    status feed(std::string_view bytes);
    // The peer closed: completes an answer whose body ends with the connection; anything else has failed.
    status finish();

    // Nothing of the message is here yet, but perhaps empty lines before it.
    bool untouched() const noexcept { return state_ == state::start_line && !has_surplus(); }
    bool head_complete() const noexcept { return state_ > state::header_line && state_ != state::failed; }
    bool has_surplus() const noexcept { return at_ < input_.size(); }  // bytes beyond the complete message

    // Once the head is complete.
    int code() const noexcept { return code_; }                 // of an answer
    bool keeps_alive() const noexcept { return keeps_alive_; }  // the peer lets the connection live on
    bool expects_continue() const noexcept { return expects_continue_; }
    // Once the message is complete. `message` of an answer leaves method and target empty.
    http_request& message() noexcept { return message_; }

    // Once it failed: what a server answers with, and a line for a person.
    int failure_code() const noexcept { return failure_code_; }
    const char* failure() const noexcept { return failure_; }

  private:
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

    bool in_body() const noexcept {
        return state_ == state::fixed_body || state_ == state::chunk_data ||
               state_ == state::rest_of_connection;
    }
    bool step();
    void on_line(std::string_view line);
    bool take_line(std::string_view& line);
    bool take_body_bytes();
    void on_start_line(std::string_view line);
    void on_request_line(std::string_view line);
    void on_status_line(std::string_view line);
    void on_version(std::string_view version);
    void on_header_line(std::string_view line);
    void on_trailer_line(std::string_view line);
    void on_chunk_size(std::string_view line);
    void on_head_end();
    void choose_framing();
    bool read_content_length(std::uint64_t& length);
    void fail(int code, const char* why) noexcept;

    role role_;
    http_limits limits_;
    std::string input_;
    std::size_t at_ = 0;    // what is before it has been used
    std::size_t scan_ = 0;  // no line end between at_ and here

    state state_ = state::start_line;
    bool answers_head_ = false;
    int minor_version_ = 1;
    std::string authority_;  // of a target that is a whole URL
    std::size_t head_bytes_ = 0;
    std::uint64_t body_left_ = 0;  // of the fixed body or the chunk
    http_request message_;
    int code_ = 0;
    bool keeps_alive_ = false;
    bool expects_continue_ = false;
    int failure_code_ = 0;
    const char* failure_ = "";
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
