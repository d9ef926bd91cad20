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
class connection {
  public:
    connection() = default;
    connection(unique_fd socket, std::chrono::milliseconds max_age) noexcept
        : socket_(std::move(socket)), expires_at_(deadline_after(max_age)) {}
    connection(connection&& other) noexcept = default;
    connection& operator=(connection&& other) noexcept {
        detail::swap(stream_, other.stream_);
        socket_ = std::move(other.socket_);
        expires_at_ = other.expires_at_;
        responded_at_ = other.responded_at_;
        stalls_at = other.stalls_at;
        user = other.user;
        return *this;
    }
    ~connection() {
        if (stream_) stream_->end();
    }

    explicit operator bool() const noexcept { return static_cast<bool>(socket_); }

    // Creates the stream over the socket and does its handshake.
    result<void> start_stream(const stream_factory& factory, const endpoint& target, const io_limit& limit) {
        set_nonblocking(socket_.get(), true);
        result<byte_stream_ref> made = factory({socket_.get(), target.host, target.name});
        if (!made) return made.error();
        stream_ = std::move(*made);
        const io_result handshake = run([this] { return stream_->handshake(); }, limit);
        if (handshake.status == io_status::ok) return {};
        const bool interrupted = handshake.status == io_status::interrupted;
        const bool late = handshake.status == io_status::timed_out;
        return error{interrupted ? errc::cancelled : errc::unreachable,
                     late ? ETIMEDOUT : handshake.sys_errno,
                     interrupted ? "interrupted during the handshake"
                     : late      ? "the deadline passed during the handshake"
                                 : "handshake failed: " + stream_->failure()};
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
    // ok: at least one byte.
    io_result receive(char* buffer, std::size_t size, const io_limit& limit) {
        if (stream_) return run([&] { return stream_->read_some(buffer, size); }, limit);
        if (limit.interrupt_fd >= 0 && await_ready(socket_.get(), POLLIN, limit) == io_status::interrupted)
            return {io_status::interrupted, 0, 0};
        return recv_some(socket_.get(), buffer, size, limit.deadline);
    }
    bool is_expired(time_point now) const noexcept { return now >= expires_at_; }
    void note_response() noexcept { responded_at_ = steady_clock::now(); }
    time_point responded_at() const noexcept { return responded_at_; }  // the latest time
    // Whether the peer has closed it or has sent unrequested bytes.
    bool is_stale() {
        if (!stream_) return peek(socket_.get()) >= 0 || !would_block(errno);
        char byte = 0;
        return stream_->read_some(&byte, 1).status != stream_status::wants_read;
    }
    // Why the latest call failed, if the stream knows more than errno.
    std::string failure() const { return stream_ ? stream_->failure() : std::string(); }

    time_point stalls_at = time_point::max();  // of the request on it, see run(); a new connection does not
    pthread_t user{};                          // the thread of the latest request

  private:
    // Runs one operation of the stream, waiting as often as needed.
    template <class Operation>
    io_result run(const Operation& operation, const io_limit& limit) {
        for (;;) {
            const stream_result done = operation();
            if (done.status == stream_status::ok) return {io_status::ok, done.bytes, 0};
            if (done.status == stream_status::closed) return {io_status::closed, 0, 0};
            if (done.status == stream_status::failed) return {io_status::failed, 0, 0};
            const short event = done.status == stream_status::wants_read ? POLLIN : POLLOUT;
            const io_status ready = await_ready(socket_.get(), event, limit);
            if (ready != io_status::ok) return {ready, 0, ready == io_status::failed ? errno : 0};
        }
    }
    unique_fd socket_;
    byte_stream_ref stream_;
    time_point expires_at_;
    time_point responded_at_;
};

inline constexpr int max_interim_responses = 16;
// A request on a kept connection has stalled without a response for so long. Less than the second that is documented, so
// that the thread that waits for it notices in time.
inline constexpr auto stall_time = std::chrono::milliseconds(900);

inline const char* header_error(const http_header& header) noexcept {
    if (!is_token(header.name)) return "a header name is empty or holds a character HTTP does not allow";
    if (!is_field_value(header.value)) return "a header value holds CR, LF, NUL or another control character";
    return nullptr;
}

inline const char* request_error(const http_request& request) noexcept {
    if (!is_token(request.method)) return "the method is empty or holds a character HTTP does not allow";
    if (!is_target(request.target) || request.target.front() != '/')
        return "the target does not start with '/', or holds a blank or control character";
    for (const http_header& header : request.headers) {
        if (const char* fault = header_error(header)) return fault;
    }
    return nullptr;
}

struct http_attempt {
    result<http_response> response;
    bool nothing_sent = false;  // so the peer cannot have processed it
    bool broke = false;         // the connection broke before the response was complete

    bool was_stale() const noexcept { return nothing_sent && broke; }
    // Whether the peer may be gone without a word, or the connection forgotten on the way to it.
    bool may_be_dead() const noexcept {
        return broke || (!response && response.error().code == errc::timed_out);
    }
};

class http_exchange final : public ref_counted {
  public:
    http_exchange(endpoint target, http_client_options options)
        : target_(std::move(target)), options_(std::move(options)) {
        append_header(common_headers_, "Host", target_.unix_path.empty() ? target_.name : "localhost");
        if (!options_.bearer_token.empty())
            append_header(common_headers_, "Authorization", "Bearer " + options_.bearer_token);
        for (const http_header& header : options_.headers) {
            if (!is_framing_header(header.name)) append_header(common_headers_, header.name, header.value);
        }
    }

    ~http_exchange() override { delete in_child_.load(); }

    result<http_response> send(const http_request& request, const http_call& call) {
        if (owner_ != fork_generation()) return of_child().send(request, call);
        if (const char* fault = request_error(request))
            return error{errc::invalid_argument, 0, cat({"request to ", target_.name, ": ", fault})};
        if (steady_clock::now() >= call.deadline)
            return failure(errc::timed_out, "the deadline had passed before anything was sent");
        const std::string text = compose(request);
        const bool is_head = request.method == "HEAD";
        http_attempt first = try_idle(text, is_head, call);
        if (first.was_stale()) first = try_new(text, is_head, call);
        if (!first.broke || call.policy != resend::always) return std::move(first.response);
        http_attempt second = try_new(text, is_head, call);
        // A request that was sent once never counts as "not sent" again.
        return std::move(second.nothing_sent && !first.nothing_sent ? first.response : second.response);
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
    // A child of fork() has its own: connections, locks that may stay locked, and a lookup in progress are its parent's.
    http_exchange& of_child() {
        http_exchange* found = in_child_.load();
        if (found != nullptr) return *found;
        auto* const added = new http_exchange(target_, options_);
        if (in_child_.compare_exchange_strong(found, added)) {
            if (mutex_.try_lock()) idle_.clear();  // or the peer would not see it when the parent closes one
            return *added;
        }
        delete added;
        return *found;
    }

    error failure(errc code, std::string_view what, int sys_errno = 0) const {
        error out{code, sys_errno, cat({target_.name, ": ", what})};
        if (sys_errno != 0) append(out.text, {": ", errno_text(sys_errno)});
        return out;
    }

    http_attempt broken(const connection& conn, int sys_errno, bool nothing_sent) const {
        const errc code = nothing_sent ? errc::unreachable : errc::disconnected;
        const std::string reason = conn.failure();
        const std::string what = cat({"the connection broke before the ",
                                      nothing_sent ? "request was sent" : "response was complete",
                                      reason.empty() ? "" : ": ", reason});
        return {failure(code, what, reason.empty() ? sys_errno : 0), nothing_sent, true};
    }

    std::string compose(const http_request& request) const {
        std::string text;
        text.reserve(common_headers_.size() + request.target.size() + request.body.size() + 512);
        append(text, {request.method, " ", target_.base, request.target, " HTTP/1.1\r\n", common_headers_});
        for (const http_header& header : request.headers) {
            const bool is_ours =
                is_framing_header(header.name) || equals_ignore_case(header.name, "Host") ||
                (equals_ignore_case(header.name, "Authorization") && !options_.bearer_token.empty());
            if (!is_ours) append_header(text, header.name, header.value);
        }
        if (!request.body.empty() || (request.method != "GET" && request.method != "HEAD"))
            append_header(text, "Content-Length", cat({request.body.size()}));
        append(text, {"\r\n", request.body});
        return text;
    }

    // Headers that every worker has.
    static bool is_public_header(std::string_view name) noexcept {
        for (const char* const each : {"Content-Type", "Accept", "OJS-Version", "X-OJS-Worker-ID"}) {
            if (equals_ignore_case(name, each)) return true;
        }
        return false;
    }

    connection take_idle() {
        for (drop_idle(time_point());;) {
            connection candidate;
            {
                const unique_lock held(mutex_);
                if (idle_.empty()) return candidate;
                // The latest one of this thread, if any: its peer is likely on the same processor.
                std::size_t at = idle_.size() - 1;
                for (std::size_t i = 0; i < idle_.size(); ++i) {
                    if (pthread_equal(idle_[i].user, pthread_self()) != 0) at = i;
                }
                candidate = std::move(idle_[at]);
                idle_.remove(at);
            }
            if (!candidate.is_stale()) return candidate;
        }
    }

    // Closes those that have expired, or had no response since then.
    void drop_idle(time_point since) {
        const unique_lock held(mutex_);
        const time_point now = steady_clock::now();
        for (std::size_t i = idle_.size(); i-- > 0;) {
            const connection& each = idle_[i];
            if (each.is_expired(now) || each.responded_at() < since) idle_.remove(i);
        }
    }

    // Runs operation(deadline). If the request stalls, it closes those that were idle when it was sent: what stopped this
    // one may have stopped all.
    template <class Operation>
    io_result run(const connection& conn, time_point deadline, const Operation& operation) {
        if (deadline <= conn.stalls_at) return operation(deadline);
        const io_result out = operation(conn.stalls_at);
        if (out.status != io_status::timed_out) return out;
        drop_idle(conn.stalls_at - stall_time);
        return operation(deadline);
    }

    void keep_idle(connection conn) {
        const unique_lock held(mutex_);
        conn.user = pthread_self();
        if (idle_.size() < options_.max_idle_connections) idle_.push_back(std::move(conn));
    }

    result<connection> connect(const http_call& call) {
        result<unique_fd> socket = resolver_.connect(target_, call.deadline);
        if (!socket) return socket.error();
        connection out(std::move(*socket), options_.max_connection_age);
        if (!target_.is_secure) return out;
        const result<void> secured =
            out.start_stream(options_.https_stream, target_, {call.deadline, call.interrupt_fd});
        if (secured) return out;
        return error{secured.error().code, secured.error().sys_errno,
                     cat({target_.name, ": ", secured.error().text})};
    }

    // Tries idle connections until one accepts the request; was_stale() if none does.
    http_attempt try_idle(const std::string& text, bool is_head, const http_call& call) {
        for (;;) {
            connection conn = take_idle();
            if (!conn) return {failure(errc::unreachable, "no idle connection"), true, true};
            conn.stalls_at = steady_clock::now() + stall_time;
            http_attempt tried = try_on(std::move(conn), text, is_head, call);
            if (tried.may_be_dead()) drop_idle(time_point::max());  // what killed it may have killed all
            if (!tried.was_stale()) return tried;
        }
    }

    http_attempt try_new(const std::string& text, bool is_head, const http_call& call) {
        if (call.should_send && !call.should_send())
            return {failure(errc::cancelled, "cancelled before the request was sent"), true, false};
        result<connection> conn = connect(call);
        if (!conn) return {conn.error(), true, false};
        return try_on(std::move(*conn), text, is_head, call);
    }

    http_attempt try_on(connection conn, const std::string& text, bool is_head, const http_call& call) {
        if (call.should_send && !call.should_send()) {
            keep_idle(std::move(conn));
            return {failure(errc::cancelled, "cancelled before the request was sent"), true, false};
        }
        std::size_t done = 0;
        const io_result sent = run(conn, call.deadline, [&](time_point until) {
            io_result out = conn.send_all(std::string_view(text).substr(done), until);
            out.bytes = done += out.bytes;
            return out;
        });
        if (sent.status == io_status::timed_out)
            return {failure(errc::timed_out, "the deadline passed while the request was sent")};
        const bool all_sent = sent.status == io_status::ok;
        if (!all_sent && sent.bytes == 0) return broken(conn, sent.sys_errno, true);
        // A peer that closes in the middle of a request may have responded (413), so read in any case.
        return receive(std::move(conn), is_head, all_sent, call);
    }

    http_attempt receive(connection conn, bool is_head, bool may_keep, const http_call& call) {
        http_parser parser(options_.limits, call.cut_body != nullptr);
        http_attempt out = receive(parser, std::move(conn), is_head, may_keep, call);
        if (out.response || call.cut_body == nullptr || parser.code() / 100 != 2) return out;
        if (parser.was_cut() || out.response.error().code != errc::bad_response)
            *call.cut_body = std::move(parser.message().body);
        return out;
    }
    http_attempt receive(http_parser& parser, connection conn, bool is_head, bool may_keep,
                         const http_call& call) {
        using status = http_parser::status;
        parser.begin(is_head);
        char buffer[16 * 1024];
        for (int interim = 0;;) {
            const io_result got = run(conn, call.deadline, [&](time_point until) {
                return conn.receive(buffer, sizeof buffer, {until, call.interrupt_fd});
            });
            if (got.status == io_status::interrupted)
                return {failure(errc::cancelled, "interrupted before the response was complete")};
            if (got.status == io_status::timed_out)
                return {failure(errc::timed_out, "no complete response before the deadline")};
            if (got.status == io_status::failed) return broken(conn, got.sys_errno, false);
            const bool open = got.status == io_status::ok;
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
            if (reached == status::complete) return finish(parser, std::move(conn), may_keep && open);
        }
    }

    http_attempt finish(http_parser& parser, connection conn, bool may_keep) {
        conn.note_response();
        // Surplus bytes would be taken for the next response.
        if (may_keep && parser.keeps_alive() && !parser.has_surplus()) keep_idle(std::move(conn));
        http_request& message = parser.message();
        return {http_response{parser.code(), std::move(message.headers), std::move(message.body)}};
    }

    const endpoint target_;
    const http_client_options options_;
    std::string common_headers_;  // of every request
    resolver resolver_;
    mutex mutex_;
    const std::uint32_t owner_ = fork_generation();
    atomic<http_exchange*> in_child_{nullptr};
    array<connection> idle_;  // the most recently used is last
};

}  // namespace detail

OJS_SHUTDOWN_INLINE result<http_client> http_client::create(std::string_view url,
                                                            http_client_options options) {
    result<detail::endpoint> target = detail::parse_url(url, bool(options.https_stream));
    if (!target) return target.error();
    if (!detail::is_field_value(options.bearer_token))
        return error{errc::invalid_argument, 0,
                     "the bearer token holds CR, LF, NUL or another control character"};
    for (const http_header& header : options.headers) {
        if (const char* fault = detail::header_error(header))
            return error{errc::invalid_argument, 0,
                         detail::cat({"header '", detail::printable(header.name, 40), "': ", fault})};
    }
    return http_client(detail::make_ref<detail::http_exchange>(std::move(*target), std::move(options)));
}

OJS_SHUTDOWN_INLINE bool http_client::may_repeat_secret(std::string_view text) const noexcept {
    return body_->may_repeat_secret(text);
}

OJS_SHUTDOWN_INLINE result<http_response> http_client::send(const http_request& request,
                                                            const http_call& call) {
    try {
        return body_->send(request, call);
    } catch (...) {  // out of memory, or thrown by should_send
        return error{errc::system, 0, detail::cat({"request failed: ", detail::thrown_text()})};
    }
}

}  // namespace v0_1_0
}  // namespace ojs
