// byte_stream: the transport of https://. Derive from it to bring a TLS library; none is built in.
#pragma once

#include <string_view>

#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// `ok`: done, or at least one byte was transferred; `wants_read`, `wants_write`: repeat the call, with the same
/// arguments, once the socket is readable or writable; `closed`: by the peer, in an orderly way; `failed`: for good.
enum class stream_status { ok, wants_read, wants_write, closed, failed };

/// The bytes of one connection. No function may wait or raise SIGPIPE. One thread at a time calls them.
class byte_stream : public detail::ref_counted {
  public:
    /// Until it returns ok, only failure() is called besides.
    virtual stream_status handshake() = 0;
    /// Sets `size`, the buffer's, to the bytes read, if ok. A connection that ends without a close message is `failed`.
    virtual stream_status read_some(char* buffer, std::size_t& size) = 0;
    virtual stream_status write_some(std::string_view& bytes) = 0;  ///< removes what it has written
    /// Sends the close message if that is possible at once.
    virtual void end() noexcept = 0;
    /// Why the latest call `failed`.
    virtual std::string failure() const = 0;
};
using byte_stream_ref = detail::ref<byte_stream>;  ///< made of `new`; counted; copying it is thread-safe

/// Creates a stream on a connected, non-blocking socket, which the client closes; no handshake. `host` is a name, or an
/// address without brackets; `name` is host and port, the key of a TLS session cache. Thread-safe.
using stream_factory = function<result<byte_stream_ref>(int socket, const std::string& host, const std::string& name)>;
}  // namespace v0_1_0
}  // namespace ojs
