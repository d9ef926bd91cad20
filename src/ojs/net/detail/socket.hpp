// Sockets with deadlines: resolve, connect, send, receive. Every socket is non-blocking and close-on-exec.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "../../base/detail/array.hpp"
#include "../../base/detail/fd.hpp"
#include "../../base/detail/ref.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/duration.hpp"
#include "../../base/error.hpp"
#include "url.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

struct socket_address {
    sockaddr_storage storage{};
    socklen_t length = 0;

    sockaddr* get() noexcept { return reinterpret_cast<sockaddr*>(&storage); }
    const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&storage); }
};

using socket_addresses = array<socket_address>;

class address_lookup;

// Finds the addresses of an endpoint and connects to it. Numeric addresses, localhost and unix paths need no lookup, so no
// file. Other names are looked up in a thread of their own, so that the deadline holds however long DNS takes; there is at
// most one such thread a resolver. Addresses are used for 30 s. Older ones are the fallback when a lookup fails or takes
// longer than 200 ms: name servers may stop before the backend does.
class resolver {
  public:
    resolver() noexcept;
    ~resolver();  // a lookup under way ends by itself

    // As connect_socket(). Errors: unreachable (also when the deadline passed). Thread-safe.
    result<unique_fd> connect(const endpoint& target, time_point deadline);

  private:
    ref<address_lookup> current_lookup(const endpoint& target);

    mutex mutex_;
    ref<address_lookup> lookup_;
    ref<address_lookup> last_good_;  // an earlier one that found addresses
};

// Tries each address in turn, with a fair share of the time left. Receiving from the socket blocks, for a second at most:
// see await_some(). Errors: unreachable.
result<unique_fd> connect_socket(const socket_addresses& addresses, time_point deadline,
                                 std::string_view name);


enum class io_status { ok, closed, timed_out, interrupted, failed };

struct io_result {
    io_status status = io_status::ok;
    std::size_t bytes = 0;  // moved, also where the status is not ok
    int sys_errno = 0;      // for failed
};

io_result send_all(int fd, std::string_view bytes, time_point deadline) noexcept;
// At least one byte, or not ok.
io_result recv_some(int fd, char* buffer, std::size_t size, time_point deadline) noexcept;
// The same from a connect_socket(), in one call where there is time for it: waiting for it to be readable takes another.
io_result await_some(int fd, char* buffer, std::size_t size, time_point deadline) noexcept;

// Whether a connection nobody is using has been closed, or holds bytes nobody asked for.
bool is_stale(int fd) noexcept;
// Whether the peer has closed its side, or the connection broke.
bool is_left(int fd) noexcept;

}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
