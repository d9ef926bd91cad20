// connection: what a client sends a request on: a socket, and the stream over it where there is one.
#pragma once

#include "../byte_stream.hpp"
#include "socket.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// How long something may wait: until the deadline, or until a descriptor (-1: none) is readable.
struct io_limit {
    time_point deadline;
    int interrupt_fd = -1;
};

class connection {
  public:
    connection() = default;
    explicit connection(unique_fd socket) noexcept : socket_(std::move(socket)) {}
    connection(connection&& other) noexcept = default;
    connection& operator=(connection&& other) noexcept;
    ~connection() { end(); }

    explicit operator bool() const noexcept { return static_cast<bool>(socket_); }

    // Puts a stream over the socket, and shakes hands. What it returns says why where it is not ok.
    result<void> secure(const stream_factory& make, const endpoint& target, const io_limit& until);

    io_result send_all(std::string_view bytes, time_point deadline);
    // At least one byte, or not ok.
    io_result receive(char* buffer, std::size_t size, const io_limit& until);
    // Whether it has been closed, or holds bytes nobody asked for.
    bool is_stale();
    // Why the last call has failed, where the stream knows more than errno.
    std::string failure() const { return stream_ ? stream_->failure() : std::string(); }

  private:
    template <class Operation>
    io_result run(const Operation& operation, const io_limit& until);
    void end() noexcept {
        if (stream_) stream_->end();
    }

    unique_fd socket_;
    byte_stream_ref stream_;
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
