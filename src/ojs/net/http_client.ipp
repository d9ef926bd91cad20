#pragma once

#include <errno.h>
#include <poll.h>

#include "../base/detail/light.hpp"
#include "../base/detail/text.hpp"
#include "byte_stream.hpp"
#include "detail/http_parser.ipp"
#include "detail/socket.ipp"
#include "detail/url.ipp"
#include "http_client.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// A socket, and the stream over it if there is one.
struct connection final : ref_counted {
    connection(unique_fd connected, std::chrono::milliseconds max_age) noexcept
        : socket(std::move(connected)), expires_at(deadline_after(max_age)) {}
    ~connection() override {
        if (stream) stream->end();
    }

    // `may_block`: if there is no stream and no byte yet, waits for up to receive_limit in this one system call.
    stream_result read_some(char* buffer, std::size_t size, bool may_block) {
        if (stream) return stream->read_some(buffer, size);
        return done(::recv(socket.get(), buffer, size, may_block ? 0 : MSG_DONTWAIT),
                    stream_status::wants_read);
    }
    stream_result write_some(std::string_view bytes) {
        if (stream) return stream->write_some(bytes);
        return done(::send(socket.get(), bytes.data(), bytes.size(), send_flags), stream_status::wants_write);
    }
    // Whether the peer has closed it or has sent unrequested bytes.
    bool is_stale() {
        char byte = 0;
        return read_some(&byte, 1, false).status != stream_status::wants_read;
    }

    unique_fd socket;  // blocking, unless there is a stream
    byte_stream_ref stream;
    time_point expires_at;
    time_point now = steady_clock::now();      // the latest look at the clock
    time_point responded_at;                   // the latest time
    time_point stalls_at = time_point::max();  // of the request on it, see run(); a new connection does not
    int sys_errno = 0;                         // why the socket failed
    std::string text;      // of the request; this and the next keep their memory for the next one
    http_headers headers;  // of a response whose headers are not kept

  private:
    // The result of a system call that returned `bytes`.
    stream_result done(ssize_t bytes, stream_status if_it_would_block) noexcept {
        if (bytes > 0) return {stream_status::ok, static_cast<std::size_t>(bytes)};
        if (bytes == 0) return {stream_status::closed, 0};
        if (errno == EINTR || would_block(errno)) return {if_it_would_block, 0};
        sys_errno = errno;
        return {stream_status::failed, 0};
    }
};
using connection_ref = ref<connection>;

// The connections that no request uses. Lock-free, as every request takes one and gives it back.
class idle_connections {
  public:
    explicit idle_connections(std::size_t max) : slots_(detail::min<std::size_t>(max, 1024)) {}
    ~idle_connections() { drop(time_point::max(), {}); }

    // Preferably the one that this thread used last: its peer is likely on the same processor. Null: none is left.
    connection_ref take(time_point now) noexcept {
        for (;;) {
            slot* found = nullptr;
            for (slot& each : slots_) {
                if (each.held != nullptr && now >= each.expires_at.load()) drop(each, now, {});
                const bool is_preferred = found == nullptr || each.user.load() == thread_id();
                if (each.held != nullptr && is_preferred) found = &each;
            }
            if (found == nullptr) return {};
            if (connection_ref out = take(*found)) return out;  // else another thread was faster
        }
    }
    // Closes it if there is no room.
    void keep(const connection_ref& conn) noexcept {
        const time_point expires_at = conn->expires_at;
        conn->retain();  // for the slot
        for (slot& each : slots_) {
            connection* none = nullptr;
            if (each.held != nullptr || !each.held.compare_exchange_strong(none, conn.get())) continue;
            each.user = thread_id();
            each.expires_at = expires_at;
            return;
        }
        conn->release();
    }
    // Closes those that have expired, or had no response since then.
    void drop(time_point now, time_point since) noexcept {
        for (slot& each : slots_) drop(each, now, since);
    }

  private:
    struct slot {
        atomic<connection*> held{nullptr};  // counted
        atomic<std::uintptr_t> user{0};  // this and the next are hints, as another thread may have taken it
        atomic<time_point> expires_at{time_point()};
    };

    static std::uintptr_t thread_id() noexcept { return reinterpret_cast<std::uintptr_t>(&errno); }
    static connection_ref take(slot& from) noexcept {
        connection_ref out(from.held.exchange(nullptr));
        if (out) out->release();
        return out;
    }
    void drop(slot& from, time_point now, time_point since) noexcept {
        const connection_ref conn = take(from);
        if (conn && now < conn->expires_at && conn->responded_at >= since) keep(conn);
    }

    array<slot> slots_;
};

inline constexpr int max_interim_responses = 16;
// After the deadline, of up to 16 KiB each: enough for what a socket holds. A peer may send bytes one by one.
inline constexpr int max_late_reads = 512;
// A request on a kept connection has stalled without a response for so long. Less than the second that is documented, so
// that the thread that waits for it notices in time.
inline constexpr auto stall_time = std::chrono::milliseconds(900);

inline const char* header_error(const http_header& header) noexcept {
    if (!is_token(header.name)) return "a header name is empty or contains a character HTTP does not allow";
    if (!is_field_value(header.value))
        return "a header value contains CR, LF, NUL or another control character";
    return nullptr;
}

inline const char* request_error(const http_request& request) noexcept {
    if (!is_token(request.method)) return "the method is empty or contains a character HTTP does not allow";
    const auto is_path = [](std::string_view text) { return is_target(text) && text.front() == '/'; };
    if (!is_path(request.target) || !(request.prefix.empty() || is_path(request.prefix)))
        return "the target does not start with '/', or contains a space or control character";
    for (const http_header& header : request.headers) {
        if (const char* fault = header_error(header)) return fault;
    }
    return nullptr;
}

struct http_attempt {
    result<http_response> response;
    bool nothing_sent = false;  // so the peer cannot have processed it
    bool broke = false;         // the connection broke before the response was complete
};

// Names the request, by `describe`, if its response could not be read.
template <class Value, class Describe>
result<Value> named(result<Value> read, const Describe& describe) {
    if (read) return read;
    error failure = read.error();
    failure.text = cat({describe(), ": ", failure.text});
    return failure;
}

class http_exchange final : public ref_counted {
  public:
    http_exchange(endpoint target, http_client_options options)
        : target_(std::move(target)),
          options_(std::move(options)),
          resolver_(make_ref<resolver>(target_)),
          idle_(options_.max_idle_connections) {
        append_header(common_headers_, "Host", target_.unix_path.empty() ? target_.name : "localhost");
        if (!options_.bearer_token.empty())
            append_header(common_headers_, "Authorization", "Bearer " + options_.bearer_token);
        for (const http_header& header : options_.headers) {
            if (!is_framing_header(header.name)) append_header(common_headers_, header.name, header.value);
        }
    }

    ~http_exchange() override { delete in_child_.load(); }

    result<http_response> send(const http_request& request, const http_call& call) {
        if (owner_ != ::getpid()) return of_child().send(request, call);
        if (const char* fault = request_error(request))
            return error{errc::invalid_argument, 0, cat({"request to ", target_.name, ": ", fault})};
        const time_point now = steady_clock::now();
        if (now >= call.deadline)
            return failure(errc::timed_out, "the deadline had passed before anything was sent");
        http_attempt first = try_any(request, call, now);
        if (!first.broke || call.policy != resend::always) return std::move(first.response);
        http_attempt second = try_new(request, call);
        // A request that was sent once never counts as "not sent" again.
        return std::move(second.nothing_sent && !first.nothing_sent ? first.response : second.response);
    }

    // Sends a request on a connection of its own. The caller reads the response, and is not in a child of fork().
    result<connection_ref> open_and_send(const http_request& request, const http_call& call) {
        result<connection_ref> opened = connect(call);
        std::string text;
        compose(request, text);
        std::string_view left = text;
        if (opened && write(**opened, left, call.deadline) == io_status::ok) return opened;
        return name_request(
            request, opened ? failure(errc::unreachable, "the connection broke before the request was sent")
                            : opened.error());
    }

    std::string describe(std::string_view method, std::string_view target) const {
        const char* const scheme = target_.is_secure ? "https://" : target_.port != 0 ? "http://" : "";
        return cat({method, " ", scheme, target_.name, target_.port != 0 ? "" : " ", target_.base,
                    target.substr(0, target.find('?'))});
    }
    // Puts the request into the error's text, in place of the host.
    error name_request(const http_request& request, error failure) const {
        attempt([&] {
            std::string_view reason = failure.text;
            const std::string host = target_.name + ": ";
            if (starts_with(reason, host)) reason.remove_prefix(host.size());
            failure.text =
                cat({describe(request.method, cat({request.prefix, request.target})), ": ", reason});
        });
        return failure;
    }
    bool sends_authorization() const noexcept {
        return !options_.bearer_token.empty() || !find_header(options_.headers, "Authorization").empty();
    }
    bool may_repeat_secret(std::string_view text) const noexcept {
        bool has_secret = false;
        const auto repeats = [&](std::string_view secret) {
            has_secret = has_secret || !secret.empty();
            secret.remove_prefix(secret.rfind(' ') + 1);  // "Basic ...": without the scheme
            return secret.size() >= 4 && text.find(secret) != std::string_view::npos;
        };
        if (repeats(options_.bearer_token)) return true;
        for (const http_header& header : options_.headers) {
            if (!is_public_header(header.name) && repeats(header.value)) return true;
        }
        // An escaped form begins so in JSON, URLs and HTML; or is in another character set.
        return has_secret && !all_of(text, [](char c) {
                   return static_cast<unsigned char>(c) < 0x80 && c != '\\' && c != '%' && c != '&';
               });
    }

  private:
    // For a child of fork(): the parent's connections, locks and lookup in progress must not be used.
    http_exchange& of_child() {
        http_exchange* found = in_child_.load();
        if (found != nullptr) return *found;
        auto* const added = new http_exchange(target_, options_);
        if (in_child_.compare_exchange_strong(found, added)) {
            idle_.drop(time_point::max(), {});  // or the peer would not see it when the parent closes one
            return *added;
        }
        delete added;
        return *found;
    }

    error failure(errc code, std::string_view what, int sys_errno = 0) const {
        return {code, sys_errno, cat({target_.name, ": ", what})};
    }
    http_attempt cancelled() const {
        return {failure(errc::cancelled, "cancelled before the request was sent"), true, false};
    }

    http_attempt broken(const connection& conn, bool nothing_sent) const {
        const errc code = nothing_sent ? errc::unreachable : errc::disconnected;
        const std::string reason = conn.stream           ? conn.stream->failure()
                                   : conn.sys_errno != 0 ? errno_text(conn.sys_errno)
                                                         : "";
        const std::string what = cat({"the connection broke before the ",
                                      nothing_sent ? "request was sent" : "response was complete",
                                      reason.empty() ? "" : ": ", reason});
        return {failure(code, what, conn.sys_errno), nothing_sent, true};
    }

    void compose(const http_request& request, std::string& text) const {
        text.clear();
        text.reserve(common_headers_.size() + request.target.size() + request.body.size() + 512);
        append(text, {request.method, " ", target_.base, request.prefix, request.target, " HTTP/1.1\r\n",
                      common_headers_});
        for (const http_header& header : request.headers) {
            const bool is_ours =
                is_framing_header(header.name) || equals_ignore_case(header.name, "Host") ||
                (equals_ignore_case(header.name, "Authorization") && !options_.bearer_token.empty());
            if (!is_ours) append_header(text, header.name, header.value);
        }
        if (!request.body.empty() || (request.method != "GET" && request.method != "HEAD"))
            append_header(text, "Content-Length", cat({request.body.size()}));
        append(text, {"\r\n", request.body});
    }

    // Headers that every worker has.
    static bool is_public_header(std::string_view name) noexcept {
        for (const char* const each : {"Content-Type", "Accept", "OJS-Version", "X-OJS-Worker-ID"}) {
            if (equals_ignore_case(name, each)) return true;
        }
        return false;
    }

    // What may be sent again need not look whether the peer has closed a connection of a moment ago.
    connection_ref take_idle(time_point now, resend policy) {
        for (;;) {
            connection_ref found = idle_.take(now);
            if (!found) return found;
            found->now = now;
            const bool is_recent = now - found->responded_at < std::chrono::milliseconds(100);
            if (now < found->expires_at && ((policy == resend::always && is_recent) || !found->is_stale()))
                return found;
        }
    }

    // Runs operation(may_block), waiting as often as needed. If the request stalls, it closes the connections that were
    // idle when it was sent: what stopped this one may have stopped all.
    template <class Operation>
    io_status run(connection& conn, time_point deadline, int interrupt_fd, const Operation& operation) {
        for (;;) {
            if (conn.now >= deadline) return io_status::timed_out;
            const time_point until = detail::min(deadline, conn.stalls_at);
            const stream_status done =
                operation(interrupt_fd < 0 && until - conn.now >= receive_limit).status;
            if (done == stream_status::ok) return io_status::ok;
            if (done == stream_status::closed) return io_status::closed;
            if (done == stream_status::failed) return io_status::failed;
            const short event = done == stream_status::wants_read ? POLLIN : POLLOUT;
            const io_status ready = await_ready(conn.socket.get(), event, until, interrupt_fd);
            conn.now = steady_clock::now();
            if (ready == io_status::interrupted || ready == io_status::failed) return ready;
            if (ready == io_status::ok || until == deadline) continue;
            idle_.drop(conn.now, conn.stalls_at - stall_time);
            conn.stalls_at = time_point::max();
        }
    }

    result<connection_ref> connect(const http_call& call) {
        result<unique_fd> socket = resolver_->connect(call.deadline);
        if (!socket) return socket.error();
        connection_ref out = make_ref<connection>(std::move(*socket), options_.max_connection_age);
        if (!target_.is_secure) return out;
        set_nonblocking(out->socket.get(), true);
        result<byte_stream_ref> made = options_.https_stream({out->socket.get(), target_.host, target_.name});
        if (!made) return failure(made.error().code, made.error().text, made.error().sys_errno);
        out->stream = std::move(*made);
        const io_status secured = run(*out, call.deadline, call.interrupt_fd,
                                      [&](bool /*may_block*/) { return out->stream->handshake(); });
        if (secured == io_status::ok) return out;
        if (secured == io_status::interrupted)
            return failure(errc::cancelled, "interrupted during the handshake");
        if (secured == io_status::timed_out)
            return failure(errc::unreachable, "the deadline passed during the handshake", ETIMEDOUT);
        return failure(errc::unreachable, "handshake failed: " + out->stream->failure());
    }

    // Tries idle connections until one accepts the request, then a new one.
    http_attempt try_any(const http_request& request, const http_call& call, time_point now) {
        for (; const connection_ref conn = take_idle(now, call.policy); now = steady_clock::now()) {
            conn->stalls_at = now + stall_time;
            http_attempt tried = try_on(conn, request, call);
            const bool was_silent = !tried.response && tried.response.error().code == errc::timed_out;
            if (tried.broke || was_silent)
                idle_.drop(time_point::max(), {});  // what killed it may have killed all
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

    io_status write(connection& conn, std::string_view& left, time_point deadline) {
        io_status sent = io_status::ok;
        while (sent == io_status::ok && !left.empty()) {
            sent = run(conn, deadline, -1, [&](bool /*may_block*/) {
                const stream_result written = conn.write_some(left);
                left.remove_prefix(written.bytes);
                return written;
            });
        }
        return sent;
    }

    http_attempt try_on(const connection_ref& conn, const http_request& request, const http_call& call) {
        if (call.should_send && !call.should_send()) {
            idle_.keep(conn);
            return cancelled();
        }
        compose(request, conn->text);
        std::string_view left = conn->text;
        if (write(*conn, left, call.deadline) == io_status::timed_out)
            return {failure(errc::timed_out, "the deadline passed while the request was sent")};
        if (left.size() == conn->text.size()) return broken(*conn, true);
        // A peer that closes in the middle of a request may have responded (413), so read in any case.
        http_parser parser(options_.limits, call.cut_body != nullptr, call.keeps_headers);
        http_attempt out = receive(parser, conn, request.method == "HEAD", left.empty(), call);
        const bool has_cut_body = !out.response && parser.code() / 100 == 2 &&
                                  (parser.was_cut() || out.response.error().code != errc::bad_response);
        if (call.cut_body != nullptr && has_cut_body) *call.cut_body = std::move(parser.message().body);
        return out;
    }

    http_attempt receive(http_parser& parser, const connection_ref& conn, bool is_head, bool may_keep,
                         const http_call& call) {
        using status = http_parser::status;
        parser.begin(is_head);
        parser.message().headers.swap(conn->headers);
        char buffer[16 * 1024];
        int late_reads = 0;
        for (int interim = 0;;) {
            stream_result got;
            const auto read = [&](bool may_block) {
                return got = conn->read_some(buffer, sizeof buffer, may_block);
            };
            io_status ended = run(*conn, call.deadline, call.interrupt_fd, read);
            conn->now = steady_clock::now();
            // It may have arrived while this process was frozen.
            if (ended == io_status::timed_out && ++late_reads <= max_late_reads) {
                const stream_status late = read(false).status;
                if (late == stream_status::ok) ended = io_status::ok;
                if (late == stream_status::closed) ended = io_status::closed;
            }
            if (ended == io_status::interrupted)
                return {failure(errc::cancelled, "interrupted before the response was complete")};
            if (ended == io_status::timed_out)
                return {failure(errc::timed_out, "no complete response before the deadline")};
            if (ended == io_status::failed) return broken(*conn, false);
            const bool open = ended == io_status::ok;
            status reached = open ? parser.feed({buffer, got.bytes}) : parser.finish();
            if (!open && reached != status::complete)
                return {failure(errc::disconnected, "the peer closed before the response was complete"),
                        false, true};
            while (reached == status::complete && parser.code() < 200) {
                if (parser.code() == 101 || ++interim > max_interim_responses)
                    return {failure(errc::bad_response, "bad response: a 101, or too many other 1xx")};
                parser.begin(is_head);
                reached = parser.feed({});
            }
            if (reached == status::failed)
                return {failure(errc::bad_response, cat({"bad response: ", parser.failure()}))};
            if (reached == status::complete) return finish(parser, conn, may_keep && open, call);
        }
    }

    http_attempt finish(http_parser& parser, const connection_ref& conn, bool may_keep,
                        const http_call& call) {
        http_request& message = parser.message();
        if (!call.keeps_headers && parser.code() / 100 == 2) {
            message.headers.clear();
            message.headers.swap(conn->headers);
        }
        if (conn->text.capacity() > 16 * 1024) std::string().swap(conn->text);
        conn->responded_at = conn->now;
        // Surplus bytes would be taken for the next response.
        if (may_keep && parser.keeps_alive() && !parser.has_surplus()) idle_.keep(conn);
        return {http_response{parser.code(), std::move(message.headers), std::move(message.body)}};
    }

    const endpoint target_;
    const http_client_options options_;
    std::string common_headers_;  // of every request
    const ref<resolver> resolver_;
    const pid_t owner_ = ::getpid();
    atomic<http_exchange*> in_child_{nullptr};
    idle_connections idle_;
};

}  // namespace detail

OJS_SHUTDOWN_INLINE result<http_client> http_client::create(std::string_view url,
                                                            http_client_options options) {
    result<detail::endpoint> target = detail::parse_url(url, bool(options.https_stream));
    if (!target) return target.error();
    if (!detail::is_field_value(options.bearer_token))
        return error{errc::invalid_argument, 0,
                     "the bearer token contains CR, LF, NUL or another control character"};
    for (const http_header& header : options.headers) {
        if (const char* fault = detail::header_error(header))
            return error{errc::invalid_argument, 0,
                         detail::cat({"header '", detail::printable(header.name, 40), "': ", fault})};
    }
    return http_client(detail::make_ref<detail::http_exchange>(std::move(*target), std::move(options)));
}

OJS_SHUTDOWN_INLINE std::string http_client::describe(std::string_view method,
                                                      std::string_view target) const {
    return body_->describe(method, target);
}

OJS_SHUTDOWN_INLINE bool http_client::sends_authorization() const noexcept {
    return body_->sends_authorization();
}

OJS_SHUTDOWN_INLINE bool http_client::may_repeat_secret(std::string_view text) const noexcept {
    return body_->may_repeat_secret(text);
}

OJS_SHUTDOWN_INLINE result<http_response> http_client::send(const http_request& request,
                                                            const http_call& call) {
    try {
        result<http_response> response = body_->send(request, call);
        if (response || detail::starts_with(response.error().text, "request to ")) return response;
        return body_->name_request(request, response.error());
    } catch (...) {  // out of memory, or thrown by should_send
        return error{errc::system, 0, detail::cat({"request failed: ", detail::thrown_text()})};
    }
}

}  // namespace v0_1_0
}  // namespace ojs
