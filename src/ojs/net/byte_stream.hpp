// byte_stream: what https:// is spoken over. Derive from it to bring a TLS library; none is built in.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "../base/error.hpp"
#include "../base/function.hpp"

namespace ojs {
inline namespace v0_1_0 {

enum class stream_status {
    ok,           // done, or `bytes` were moved
    wants_read,   // call again, with the same arguments, once the socket is readable
    wants_write,  // the same, once it is writable
    closed,       // the peer has ended the stream as the protocol ends one
    failed        // for good; failure() says why
};

struct stream_result {
    stream_status status = stream_status::ok;
    std::size_t bytes = 0;
};

// The bytes of one connection. No function waits: who calls does the waiting, so that one deadline holds for all. None
// may raise SIGPIPE. They are called by one thread at a time.
class byte_stream : public detail::ref_counted {
  public:
    // Until it is ok nothing else is called but failure().
    virtual stream_result handshake() = 0;
    // One byte at least where ok. `failed`, not `closed`, where the connection ended without the protocol's farewell.
    virtual stream_result read_some(char* buffer, std::size_t size) = 0;
    virtual stream_result write_some(std::string_view bytes) = 0;
    // Says farewell if that is possible at once. The socket is closed after it.
    virtual void end() noexcept = 0;
    // Why the last call has `failed`, for an error text.
    virtual std::string failure() const = 0;
};
using byte_stream_ref = detail::ref<byte_stream>;

struct stream_request {
    int socket = -1;   // connected and non-blocking; the client's own, open for as long as the stream is used
    std::string host;  // as the URL has it: a name, or an address without brackets
    std::string name;  // host and port: what a session belongs to
};

// Makes a stream on a connected socket, without a handshake yet. Thread-safe. An error ends the request as one that was
// never sent.
using stream_factory = function<result<byte_stream_ref>(const stream_request&)>;

// A byte_stream of a type of one's own, for a stream_factory to return.
template <class Stream, class... Args>
byte_stream_ref make_stream(Args&&... args) {
    return byte_stream_ref(new Stream(std::forward<Args>(args)...));
}

}  // namespace v0_1_0
}  // namespace ojs
