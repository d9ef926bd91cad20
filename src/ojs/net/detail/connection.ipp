// connection: what a client sends a request on: a socket, and the stream over it where there is one.
#pragma once

#include <errno.h>
#include <poll.h>

#include "../../base/detail/text.hpp"
#include "../byte_stream.hpp"
#include "socket.ipp"

namespace ojs::detail {

class connection {
  public:
    connection() = default;
    explicit connection(unique_fd socket) noexcept : socket_(std::move(socket)) {}
    connection(connection&& other) noexcept = default;
    connection& operator=(connection&& other) noexcept {
        detail::swap(stream_, other.stream_);
        socket_ = std::move(other.socket_);
        return *this;
    }
    ~connection() {
        if (stream_) stream_->end();
    }

    explicit operator bool() const noexcept { return static_cast<bool>(socket_); }

    // Puts a stream over the socket, and shakes hands. What it returns says why where it is not ok.
    result<void> secure(const stream_factory& make, const endpoint& target, const io_limit& until) {
        set_nonblocking(socket_.get(), true);
        result<byte_stream_ref> made = make({socket_.get(), target.host, target.name});
        if (!made) return made.error();
        stream_ = std::move(*made);
        const io_result shaken = run([this] { return stream_->handshake(); }, until);
        if (shaken.status == io_status::ok) return {};
        if (shaken.status == io_status::interrupted)
            return error{errc::cancelled, 0, "interrupted during the handshake"};
        if (shaken.status == io_status::timed_out)
            return error{errc::unreachable, ETIMEDOUT, "the deadline passed during the handshake"};
        return error{errc::unreachable, shaken.sys_errno, "no handshake: " + stream_->failure()};
    }

    io_result send_all(std::string_view bytes, time_point deadline) {
        if (!stream_) return detail::send_all(socket_.get(), bytes, deadline);
        io_result out;
        while (out.status == io_status::ok && out.bytes < bytes.size()) {
            const std::size_t before = out.bytes;
            out = run([&] { return stream_->write_some(bytes.substr(before)); }, {deadline, -1});
            out.bytes += before;
        }
        return out;
    }
    // At least one byte, or not ok.
    io_result receive(char* buffer, std::size_t size, const io_limit& until) {
        if (stream_) return run([&] { return stream_->read_some(buffer, size); }, until);
        if (until.interrupt_fd >= 0) {
            const io_status ready = await_ready(socket_.get(), POLLIN, until);
            if (ready == io_status::interrupted) return {ready, 0, 0};
        }
        return await_some(socket_.get(), buffer, size, until.deadline);
    }
    // Whether it has been closed, or holds bytes nobody asked for.
    bool is_stale() {
        if (!stream_) return detail::is_stale(socket_.get());
        char byte = 0;
        const stream_status now = stream_->read_some(&byte, 1).status;
        return now != stream_status::wants_read;
    }
    // Why the last call has failed, where the stream knows more than errno.
    std::string failure() const { return stream_ ? stream_->failure() : std::string(); }

  private:
    // One operation of the stream, however often it has to wait.
    template <class Operation>
    io_result run(const Operation& operation, const io_limit& until) {
        for (;;) {
            const stream_result done = operation();
            switch (done.status) {
                case stream_status::ok: return {io_status::ok, done.bytes, 0};
                case stream_status::closed: return {io_status::closed, 0, 0};
                case stream_status::failed: return {io_status::failed, 0, 0};
                case stream_status::wants_read:
                case stream_status::wants_write: break;
            }
            const short event = done.status == stream_status::wants_read ? POLLIN : POLLOUT;
            const io_status ready = await_ready(socket_.get(), event, until);
            if (ready != io_status::ok) return {ready, 0, ready == io_status::failed ? errno : 0};
        }
    }
    unique_fd socket_;
    byte_stream_ref stream_;
};

}  // namespace ojs::detail
