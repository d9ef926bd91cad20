// byte_stream: the transport of https://. Derive from it to bring a TLS library; none is built in.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {

/// How an operation of a byte_stream ended.
enum class stream_status {
    ok,           ///< done, or `bytes` were transferred
    wants_read,   ///< repeat the call, with the same arguments, once the socket is readable
    wants_write,  ///< repeat it once the socket is writable
    closed,       ///< the peer has closed the stream in an orderly way
    failed        ///< for good; see failure()
};

/// What an operation returns.
struct stream_result {
    stream_status status = stream_status::ok;  ///< how it ended
    std::size_t bytes = 0;                     ///< transferred, if ok
};

/// The bytes of one connection. No function may wait (the caller does, under one deadline for all) or raise SIGPIPE.
/// One thread at a time calls them.
class byte_stream : public detail::ref_counted {
  public:
    /// Until it returns ok, only failure() is called besides.
    virtual stream_result handshake() = 0;
    /// ok: at least one byte. A connection that ends without the protocol's close message is `failed`, not `closed`.
    virtual stream_result read_some(char* buffer, std::size_t size) = 0;
    virtual stream_result write_some(std::string_view bytes) = 0;  ///< ok: at least one byte
    /// Sends the close message if that is possible at once. The socket is closed after it.
    virtual void end() noexcept = 0;
    /// Why the latest call `failed`, as an error text.
    virtual std::string failure() const = 0;
};
using byte_stream_ref = detail::ref<byte_stream>;  ///< counted; copying it is thread-safe

/// What a stream_factory makes a stream for.
struct stream_request {
    int socket = -1;   ///< connected, non-blocking; the client closes it after the stream's last use
    std::string host;  ///< of the URL: a name, or an address without brackets
    std::string name;  ///< host and port: the key of a TLS session cache
};

/// Creates a stream on a connected socket, without a handshake. An error ends the request as never sent. Thread-safe.
using stream_factory = function<result<byte_stream_ref>(const stream_request&)>;

/// Creates a byte_stream of a derived type, for a stream_factory to return.
template <class Stream, class... Args>
byte_stream_ref make_stream(Args&&... args) {
    return byte_stream_ref(new Stream(std::forward<Args>(args)...));
}

}  // namespace v0_1_0
}  // namespace ojs
