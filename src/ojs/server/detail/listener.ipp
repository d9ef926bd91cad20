// listener: a listening socket and its address.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include "../../base/detail/fd.hpp"
#include "../../net/detail/socket.hpp"
#include "../../net/detail/socket.ipp"
#include "../../net/detail/url.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

class listener {
  public:
    listener() = default;
    listener(endpoint where, unique_fd socket, bool is_shared = false) noexcept
        : where_(std::move(where)), socket_(std::move(socket)), is_shared_(is_shared) {}
    listener(listener&& other) noexcept = default;
    listener& operator=(listener&& other) noexcept = default;
    ~listener() { close(); }

    // `where` with port 0 takes a free one. Errors: those of listen_socket().
    static result<listener> open(endpoint where, bool reuse_port = false) {
        result<unique_fd> socket = listen_socket(where, reuse_port);
        if (!socket) return socket.error();
        listener out(std::move(where), std::move(*socket));
        if (out.where_.unix_path.empty()) {
            out.where_.port = local_port(out.fd());
            out.where_.name = host_port(out.where_.host, out.where_.port);
        } else {
            ::lstat(out.where_.unix_path.c_str(), &out.file_);
        }
        return out;
    }

    int fd() const noexcept { return socket_.get(); }
    const endpoint& where() const noexcept { return where_; }  // with the real port, also once it is closed
    // Whoever connects from now on is refused, and who waits in its queue is reset; unless it is shared and others have it.
    void close() noexcept {
        if (!socket_) return;
        // The file goes before the socket: while that lives, nobody else takes over the path.
        struct stat found {};
        if (!where_.unix_path.empty() && ::lstat(where_.unix_path.c_str(), &found) == 0 &&
            found.st_dev == file_.st_dev && found.st_ino == file_.st_ino) {
            ::unlink(where_.unix_path.c_str());
        }
        if (!is_shared_)
            ::shutdown(socket_.get(), SHUT_RDWR);  // also where a child made by fork() still holds it
        socket_.reset();
    }
    // For others that have it as well, who go on with it.
    void leave() noexcept { socket_.reset(); }
    // One that was given stays open for its giver.
    void give_back() noexcept {
        if (is_shared_) socket_.release();
    }

  private:
    endpoint where_;
    unique_fd socket_;
    bool is_shared_ = false;
    struct stat file_ {};  // of a unix socket: to remove ours and no other
};

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
