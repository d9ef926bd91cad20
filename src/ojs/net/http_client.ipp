#pragma once

#include <unistd.h>

#include "detail/http_parser.ipp"
#include "detail/socket.ipp"
#include "http_client.hpp"
#include "json_view.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// A socket, and the stream over it if there is one.
struct connection final : ref_counted {
    explicit connection(unique_fd connected) noexcept : socket(std::move(connected)) {}
    ~connection() override {
        if (stream) stream->end();
    }

    stream_status read_some(char* buffer, std::size_t& size) {
        if (stream) return stream->read_some(buffer, size);
        const ssize_t count = ::recv(socket.get(), buffer, size, 0);
        if (count > 0) size = static_cast<std::size_t>(count);
        return status_of(count, stream_status::wants_read);
    }
    stream_status write_some(std::string_view& bytes) {
        if (stream) return stream->write_some(bytes);
        const ssize_t count = ::send(socket.get(), bytes.data(), bytes.size(), send_flags);
        if (count > 0) bytes.remove_prefix(static_cast<std::size_t>(count));
        return status_of(count, stream_status::wants_write);
    }
    // The peer has closed it or has sent unrequested bytes.
    bool is_stale() {
        char byte = 0;
        std::size_t size = 1;
        return read_some(&byte, size) != stream_status::wants_read;
    }
    // Why the latest operation failed.
    std::string failure() const {
        if (stream) return stream->failure();
        return sys_errno != 0 ? errno_text(sys_errno) : "closed by the peer";
    }

    unique_fd socket;
    byte_stream_ref stream;
    const pid_t owner = this_process();                                      // no other process may send on it
    const time_point expires_at = deadline_after(std::chrono::seconds(30));  // idle ones may die without a word
    time_point responded_at;                                                 // the latest time
    time_point stalls_at = time_point::max();  // of the request on it; a new connection does not
    int sys_errno = 0;                         // why the socket failed

  private:
    stream_status status_of(ssize_t count, stream_status if_it_would_block) noexcept {
        if (count >= 0) return count > 0 ? stream_status::ok : stream_status::closed;
        if (errno == EINTR || errno == EAGAIN) return if_it_would_block;
        sys_errno = errno;
        return stream_status::failed;
    }
};
using connection_ref = ref<connection>;

// Thread-safe.
class idle_connections {
  public:
    // Null: none.
    connection_ref take(time_point now) {
        drop(now, time_point::min());
        const unique_lock held(guard_);
        return kept_.empty() ? connection_ref() : kept_.remove(kept_.size() - 1);
    }
    void keep(const connection_ref& conn) {
        const unique_lock held(guard_);
        kept_.push_back(conn);
    }
    // Closes those that have expired, or had no response since then.
    void drop(time_point now, time_point since) {
        const unique_lock held(guard_);
        for (std::size_t i = kept_.size(); i-- > 0;) {
            if (now >= kept_[i]->expires_at || kept_[i]->responded_at < since) kept_.remove(i);
        }
    }

  private:
    mutex guard_;
    array<connection_ref> kept_;
};

// Reads after the deadline, of up to 16 KiB: what a socket holds.
inline constexpr int max_late_reads = 512;
// A request on a kept connection stalls. Documented as a second: its thread then notices in time.
inline constexpr auto stall_time = milliseconds(900);

// Null, or what HTTP does not allow.
inline const char* request_error(const http_request& request) noexcept {
    if (!is_token(request.method)) return "the method is not an HTTP token";
    if (request.target.empty() || request.target.front() != '/') return "the target does not start with '/'";
    if (!is_target(request.target)) return "the target contains a space or control character";
    for (const http_header& header : request.headers) {
        if (!is_token(header.name)) return "a header's name is not an HTTP token";
        if (!is_field_value(header.value)) return "a header's value contains a control character";
    }
    return nullptr;
}

// Another program may replace the file.
inline result<std::string> read_token(const http_client_options& options) {
    const std::string& path = options.bearer_token_file;
    if (path.empty()) return options.bearer_token;
    const result<small_file> read = read_small_file(path, 16 * 1024);
    const std::string_view token = read ? trim_blanks(read->text, " \t\r\n") : "";
    if (!token.empty() && is_field_value(token)) return std::string(token);
    return error{errc::system, 0,
                 cat({"token file (OJS_AUTH_TOKEN_FILE) '", printable(path, 200), "' ",
                      read ? "has no token" : read.error().text})};
}

struct http_attempt {
    result<http_response> response;
    bool nothing_sent = false;  // so the peer cannot have processed it
    bool broke = false;         // the connection broke before the response was complete
};

// Names the request in an error.
template <class Value, class Describe>
result<Value> named(result<Value> read, const Describe& describe) {
    if (read) return read;
    error failure = read.error();
    failure.text = cat({describe(), ": ", failure.text});
    return failure;
}

// If the end of the connection ends a body, only JSON says whether it is whole.
inline bool is_cut(const http_request& message) {
    const bool is_json_type = has_part(find_header(message.headers, "Content-Type"), "json");
    return (is_json_type || starts_with(message.body, "{")) && !is_json(message.body);
}

class http_exchange final : public ref_counted {
  public:
    http_exchange(endpoint target, http_client_options options)
        : target_(std::move(target)), options_(std::move(options)), resolver_(make_ref<resolver>(target_)) {
        http_headers& headers = options_.headers;
        if (find_header(headers, "Authorization").data() != nullptr)
            options_.bearer_token = options_.bearer_token_file = "";
        add_header(headers, "Accept-Encoding", "identity");
        add_header(headers, "User-Agent", "ojs_shutdown/" OJS_SHUTDOWN_VERSION);
        add_header(headers, "Host", target_.unix_path.empty() ? target_.name : "localhost");
        for (const http_header& header : headers) append_header(common_headers_, header.name, header.value);
        if (!options_.bearer_token.empty()) headers.push_back({"Authorization", ""});  // compose() has its value
    }

    result<http_response> send(const http_request& request, const http_call& call) {
        http_attempt out = try_any(request, call);
        if (out.broke && call.is_repeatable) {
            http_attempt second = try_new(request, call);
            // A request that was sent once never counts as "not sent" again.
            if (!second.nothing_sent || out.nothing_sent) out = std::move(second);
        }
        return named(std::move(out.response), [&] { return describe(request.method, request.target); });
    }

    std::string describe(std::string_view method, std::string_view target) const {
        return cat({method, " ", target_.url, target.substr(0, target.find('?'))});
    }

    result<connection_ref> connect(const http_call& call) {
        result<unique_fd> socket = resolver_->connect(call.deadline);
        if (!socket) return socket.error();
        connection_ref out = make_ref<connection>(std::move(*socket));
        if (!target_.is_secure) return out;
        result<byte_stream_ref> made = options_.https_stream(out->socket.get(), dns_name(target_.host), target_.name);
        if (!made) return made.error();
        out->stream = std::move(*made);
        for (;;) {
            const stream_status ended = out->stream->handshake();
            if (ended == stream_status::ok) return out;
            const io_status ready = await(*out, ended, call.deadline, call.interrupt_fd);
            if (ready == io_status::ok) continue;
            if (ready == io_status::interrupted) return error{errc::cancelled, 0, "interrupted during the handshake"};
            const bool is_late = ready == io_status::timed_out;
            return error{errc::unreachable, is_late ? ETIMEDOUT : 0,
                         is_late ? "the deadline passed during the handshake"
                                 : cat({"handshake failed: ", out->stream->failure()})};
        }
    }

    std::string compose(const http_request& request) const {
        const std::string token = read_token(options_).value_or(options_.bearer_token);
        std::string text;
        text.reserve(common_headers_.size() + request.target.size() + request.body.size() + 512);
        append(text, {request.method, " ", target_.base, request.target, " HTTP/1.1\r\n", common_headers_});
        if (!token.empty()) append(text, {"Authorization: Bearer ", token, "\r\n"});
        for (const http_header& header : request.headers) {
            const bool is_ours = find_header(options_.headers, header.name).data() != nullptr;
            if (!is_ours && !is_framing_header(header.name)) append_header(text, header.name, header.value);
        }
        if (!request.body.empty() || (request.method != "GET" && request.method != "HEAD"))
            append(text, {"Content-Length: ", request.body.size(), "\r\n"});
        append(text, {"\r\n", request.body});
        return text;
    }

    // Removes what was written from `left`.
    io_status write(connection& conn, std::string_view& left, time_point deadline) {
        io_status ended = io_status::ok;
        while (ended == io_status::ok && !left.empty()) ended = await(conn, conn.write_some(left), deadline);
        return ended;
    }

  private:
    static http_attempt cancelled() {
        return {error{errc::cancelled, 0, "cancelled before the request was sent"}, true, false};
    }

    static http_attempt broken(const connection& conn, bool nothing_sent) {
        const std::string reason = conn.failure();
        std::string text =
            cat({"the connection broke before the ", nothing_sent ? "request was sent" : "response was complete",
                 reason.empty() ? "" : ": ", reason});
        return {error{nothing_sent ? errc::unreachable : errc::disconnected, conn.sys_errno, std::move(text)},
                nothing_sent, true};
    }

    // Waits if an operation that ended like this asks for it. ok: it was done, or is to be repeated. A request that
    // stalls also closes the connections that were idle when it was sent.
    io_status await(connection& conn, stream_status ended, time_point deadline, int interrupt_fd = -1) {
        if (ended == stream_status::ok) return io_status::ok;
        if (ended == stream_status::closed) return io_status::closed;
        if (ended == stream_status::failed) return io_status::failed;
        const short event = ended == stream_status::wants_read ? POLLIN : POLLOUT;
        const time_point until = min(deadline, conn.stalls_at);
        const io_status ready = await_ready(conn.socket.get(), event, until, interrupt_fd);
        if (ready != io_status::timed_out || until == deadline) return ready;
        idle_.drop(until, exchange(conn.stalls_at, time_point::max()) - stall_time);
        return io_status::ok;
    }

    http_attempt try_any(const http_request& request, const http_call& call) {
        time_point now = steady_clock::now();
        if (now >= call.deadline)
            return {error{errc::timed_out, 0, "the deadline had passed before anything was sent"}, true};
        for (; const connection_ref conn = idle_.take(now); now = steady_clock::now()) {
            if (conn->owner != this_process() || conn->is_stale()) continue;
            conn->stalls_at = now + stall_time;
            http_attempt tried = try_on(conn, request, call);
            const bool was_silent = !tried.response && tried.response.error().code == errc::timed_out;
            if (tried.broke || was_silent) idle_.drop(time_point::max(), {});  // what killed it may have killed all
            if (!tried.broke || !tried.nothing_sent) return tried;
        }
        return try_new(request, call);
    }

    http_attempt try_new(const http_request& request, const http_call& call) {
        if (call.should_send && !call.should_send()) return cancelled();
        const result<connection_ref> conn = connect(call);
        if (!conn) return {conn.error(), true, false};
        return try_on(*conn, request, call);
    }

    http_attempt try_on(const connection_ref& conn, const http_request& request, const http_call& call) {
        if (call.should_send && !call.should_send()) {
            idle_.keep(conn);
            return cancelled();
        }
        const std::string text = compose(request);
        std::string_view left = text;
        if (write(*conn, left, call.deadline) == io_status::timed_out)
            return {error{errc::timed_out, 0, "the deadline passed while the request was sent"}};
        if (left.size() == text.size()) return broken(*conn, true);
        // A peer that closes during a request may have responded (413).
        return receive(conn, request.method == "HEAD", left.empty(), call);
    }

    http_attempt receive(const connection_ref& conn, bool is_head, bool is_sent, const http_call& call) {
        using status = http_parser::status;
        http_parser parser(64 * 1024, options_.max_body);
        parser.begin(is_head);
        char buffer[16 * 1024];
        bool is_first = !conn->stream;  // a response takes its time
        for (int late_reads = 0;;) {
            // What has arrived counts: this process may have been frozen.
            const bool is_late = steady_clock::now() >= call.deadline;
            std::size_t size = sizeof buffer;
            const stream_status got =
                exchange(is_first, false) && !is_late ? stream_status::wants_read : conn->read_some(buffer, size);
            const bool waits = got == stream_status::wants_read || got == stream_status::wants_write;
            if (is_late && (waits || ++late_reads > max_late_reads))
                return {error{errc::timed_out, 0, "no complete response before the deadline"}};
            const io_status ended = await(*conn, got, call.deadline, call.interrupt_fd);
            if (ended == io_status::interrupted)
                return {error{errc::cancelled, 0, "interrupted before the response was complete"}};
            if (ended == io_status::failed) return broken(*conn, false);
            if (waits) continue;
            const bool is_open = ended == io_status::ok;
            const status reached = is_open ? parser.feed({buffer, size}) : parser.finish();
            if (reached == status::failed && is_open)
                return {error{errc::bad_response, 0, cat({"bad response: ", parser.failure()})}};
            if (!is_open && (reached != status::complete || is_cut(parser.message()))) return broken(*conn, false);
            if (reached != status::complete) continue;
            const bool is_reused = exchange(conn->responded_at, steady_clock::now()) != time_point();
            // A success before the whole request was sent, or one of two, may belong to another request.
            if ((!is_sent && parser.code() < 300) || (is_reused && parser.has_surplus()))
                return {error{errc::disconnected, 0, "bytes arrived that belong to no request"}, false, true};
            // Surplus bytes would be taken for the next response.
            if (is_sent && is_open && parser.keeps_alive() && !parser.has_surplus()) idle_.keep(conn);
            http_request& message = parser.message();
            const std::string_view coding = find_header(message.headers, "Content-Encoding");
            if (parser.code() < 300 && !coding.empty() && !equals_ignore_case(coding, "identity"))
                return {error{errc::bad_response, 0, cat({"the body has the encoding ", printable(coding, 40)})}};
            return {http_response{parser.code(), std::move(message.headers), std::move(message.body)}};
        }
    }

    const endpoint target_;
    http_client_options options_;  // with the headers that the client adds
    std::string common_headers_;   // of every request
    const ref<resolver> resolver_;
    idle_connections idle_;
};
}  // namespace detail

OJS_SHUTDOWN_INLINE result<http_client> http_client::create(std::string_view url, http_client_options options) {
    result<detail::endpoint> target = detail::parse_url(url, bool(options.https_stream));
    if (!target) return target.error();
    result<std::string> token = detail::read_token(options);
    if (!token) return token.error();
    options.bearer_token = std::move(*token);  // while the file cannot be read
    http_request any{"GET", "/", options.headers, ""};
    any.headers.push_back({"Authorization", options.bearer_token});
    if (const char* fault = detail::request_error(any))
        return detail::invalid(detail::cat({"headers of the HTTP client: ", fault}));
    for (const http_header& header : options.headers) {
        const bool is_first = find_header(options.headers, header.name).data() == header.value.data();
        if (!is_first || detail::is_framing_header(header.name))
            return detail::invalid(detail::cat(
                {"headers of the HTTP client: ", header.name, is_first ? " is set by the client" : " is given twice"}));
    }
    return http_client(detail::make_ref<detail::http_exchange>(std::move(*target), std::move(options)));
}

OJS_SHUTDOWN_INLINE std::string http_client::describe(std::string_view method, std::string_view target) const {
    return body_->describe(method, target);
}

OJS_SHUTDOWN_INLINE result<http_response> http_client::send(const http_request& request, const http_call& call) {
    if (const char* fault = detail::request_error(request))
        return detail::invalid(detail::cat({"bad request: ", fault}));
    return body_->send(request, call);
}
}  // namespace v0_1_0
}  // namespace ojs
