#pragma once

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include "../base/detail/array.hpp"
#include "../base/detail/atomic.hpp"
#include "../base/detail/exchange.hpp"
#include "../base/detail/text.hpp"
#include "../core/detail/wake.hpp"
#include "../net/detail/http_parser.ipp"
#include "../net/detail/socket.hpp"
#include "../net/detail/socket.ipp"
#include "../net/detail/url.hpp"
#include "detail/http_answer.ipp"
#include "detail/listener.ipp"
#include "http_server.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// What the connections share with the server.
struct http_server_context {
    http_handler handler;
    http_server_options options;
    atomic<bool> stopping{false};
    atomic<bool> crowded{false};  // somebody waits for a place: none is kept for a next request
    atomic<std::uint64_t> idle_count{0};
};

// What idle_since() is before the first byte has come, which may be about to come.
inline constexpr std::uint64_t newcomer = ~std::uint64_t{0};

// One accepted connection, served by a thread of its own.
class http_connection final : public ref_counted {
  public:
    http_connection(unique_fd socket, http_server_context& server)
        : socket_(std::move(socket)),
          server_(server),
          parser_(http_parser::role::request, server.options.limits) {}

    void serve() {
        try {
            while (serve_request()) {
            }
        } catch (...) {  // out of memory: this connection ends, the server goes on
            pass_on_thread_end();
        }
        idle_since_.store(newcomer);
        busy_.store(false);
        if (lingers_) linger();
    }

    // For the server, from another thread, while its list holds the connection.
    std::uint64_t idle_since() const noexcept { return idle_since_.load(); }  // lower: longer; 0: not idle
    time_point waits_since() const noexcept {
        return waits_since_.load();
    }  // for its client; max(): it does not
    bool leaves() const noexcept { return leaves_.load(); }
    void close_if_idle() noexcept {
        if (idle_since() == 0) return;
        leaves_.store(true);
        ::shutdown(socket_.get(), SHUT_RD);
    }
    bool cut() noexcept {
        const bool under_way = busy_.load();  // asked first: the shutdown itself ends it
        ::shutdown(socket_.get(), SHUT_RDWR);
        return under_way;
    }

    void close() noexcept { socket_.reset(); }  // once the list no longer holds it
    // 503, for want of a thread
    void turn_away() noexcept {
        const std::string_view text =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        send_all(socket_.get(), text, steady_clock::now());
    }

    thread runner;  // guarded by the server's mutex

  private:
    // Whether a connection that has sent something, and is idle, may keep its place.
    bool may_stay() noexcept {
        const std::uint64_t since = idle_since();
        if (since == 0 || since == newcomer) idle_since_.store(server_.idle_count.fetch_add(1) + 1);
        return !server_.crowded.load();
    }
    // False once the connection is to be closed.
    bool serve_request() {
        parser_.begin();
        http_parser::status reached = parser_.feed({});  // a pipelined request may be here already
        time_point deadline = deadline_after(server_.options.request_timeout);
        if (parser_.untouched() && !await_request(reached, deadline)) return false;
        busy_.store(true);
        if (idle_since_.exchange(0) != newcomer) waits_since_.store(steady_clock::now());
        const io_status read = read_request(reached, deadline);
        if (reached == http_parser::status::complete) return answer(std::move(parser_.message()));
        if (reached == http_parser::status::failed) return refuse(parser_.failure_code(), parser_.failure());
        return read == io_status::timed_out && refuse(408, "the request did not arrive in time");
    }
    // Waits for a request to begin; false if none does. Empty lines are none yet, but its time begins with them.
    bool await_request(http_parser::status& reached, time_point& deadline) {
        busy_.store(false);
        if (server_.stopping.load()) return false;
        if (read_more(deadline_after(server_.options.idle_timeout), reached) != io_status::ok) return false;
        deadline = deadline_after(server_.options.request_timeout);
        while (parser_.untouched()) {
            if (!may_stay() || read_more(deadline, reached) != io_status::ok) return false;
        }
        return true;
    }
    // The rest of the request, against one deadline however slowly the bytes come.
    io_status read_request(http_parser::status& reached, time_point deadline) {
        bool told_to_continue = false;
        io_status read = io_status::ok;
        while (reached == http_parser::status::need_more && read == io_status::ok) {
            if (!told_to_continue && parser_.head_complete() && parser_.expects_continue()) {
                told_to_continue = true;
                read = send_all(socket_.get(), continue_answer, deadline).status;
            }
            if (read == io_status::ok) read = read_more(deadline, reached);
        }
        return read;
    }
    io_status read_more(time_point deadline, http_parser::status& reached) {
        char buffer[16 * 1024];
        const io_result got = recv_some(socket_.get(), buffer, sizeof buffer, deadline);
        if (got.status == io_status::ok) reached = parser_.feed({buffer, got.bytes});
        return got.status;
    }
    bool answer(http_request&& message) {
        const served_request request{std::move(message), socket_.get()};
        waits_since_.store(time_point::max());
        const http_response made = call_handler(server_.handler, request);
        waits_since_.store(steady_clock::now());
        if (made.drop) return false;
        const bool stays = may_stay() && !server_.stopping.load() && !leaves() && parser_.keeps_alive() &&
                           !has_list_word(made.headers, "Connection", "close");
        lingers_ = !stays && parser_.has_surplus();
        return send_answer(made, request.method == "HEAD", !stays);
    }
    bool refuse(int status, std::string_view why) {
        lingers_ = true;
        return send_answer(plain_answer(status, why), false, true);
    }
    bool send_answer(const http_response& answer, bool to_head, bool closes) {
        const std::string text = compose_answer(answer, to_head, closes);
        return send_all(socket_.get(), text, deadline_after(server_.options.request_timeout)).status ==
                   io_status::ok &&
               !closes;
    }
    // Closing while the peer still sends would reset the connection, and the peer could lose the answer unread.
    void linger() noexcept {
        ::shutdown(socket_.get(), SHUT_WR);
        const time_point deadline = steady_clock::now() + linger_time;
        char discarded[16 * 1024];
        while (!server_.stopping.load() &&
               recv_some(socket_.get(), discarded, sizeof discarded, deadline).status == io_status::ok) {
        }
    }

    unique_fd socket_;
    http_server_context& server_;
    http_parser parser_;
    bool lingers_ = false;  // see linger()
    atomic<bool> leaves_{false};
    atomic<bool> busy_{false};  // from the first byte of a request to the last of its answer
    // 0 until a request that is under way has its answer: whoever has read that is idle, as far as he can tell. Set here before `stopping` and `crowded` are read; the server does it the other
    // way round, so that one of the two always sees the other.
    atomic<std::uint64_t> idle_since_{newcomer};
    atomic<time_point> waits_since_{steady_clock::now()};
};

OJS_SHUTDOWN_INLINE bool is_abandoned(const http_request& request) noexcept {
    return is_left(static_cast<const served_request&>(request).socket);
}

}  // namespace detail

class http_server::impl final : public detail::ref_counted {
  public:
    impl(http_handler handler, http_server_options options) {
        context_.handler = std::move(handler);
        context_.options = options;
    }
    ~impl() override { stop(steady_clock::now()); }

    result<void> start(detail::endpoint where) {
        result<detail::listener> listener = detail::listener::open(std::move(where));
        if (!listener) return listener.error();
        listener_ = std::move(*listener);
        result<detail::wake> waker = detail::wake::create();
        if (!waker) return waker.error();
        wake_ = std::move(*waker);
        detail::thread_options options;
        options.name = "ojs-http-accept";
        result<detail::thread> acceptor = detail::thread::start([this] { accept_until_stopped(); }, options);
        if (!acceptor) return acceptor.error();
        acceptor_ = std::move(*acceptor);
        return {};
    }
    std::size_t stop(time_point deadline) {
        const detail::lock_guard alone(stop_mutex_);
        context_.stopping.store(true);
        if (acceptor_.joinable()) wake_.notify();
        acceptor_.join();
        listener_.close();

        detail::lock_guard held(mutex_);
        for (const auto& connection : connections_) connection->close_if_idle();
        while (!connections_.empty() && steady_clock::now() < deadline) emptied_.wait_until(held, deadline);
        std::size_t cut = 0;
        for (const auto& connection : connections_) cut += connection->cut() ? 1U : 0U;
        while (!connections_.empty()) emptied_.wait(held);
        detail::thread last = std::move(last_ended_);
        held.unlock();
        last.join();
        return cut;
    }
    const detail::endpoint& where() const noexcept { return listener_.where(); }

  private:
    void accept_until_stopped() noexcept {
        while (!context_.stopping.load()) {
            if (!await_peer()) continue;
            if (make_room()) {
                accept_one();
            } else {  // who waits stays in the listen queue meanwhile
                wake_.wait_until(deadline_after(context_.options.crowded_timeout));
            }
        }
    }
    bool await_peer() noexcept {
        pollfd waiting[2] = {{listener_.fd(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
        if (::poll(waiting, 2, -1) <= 0) return false;
        if (waiting[1].revents != 0) wake_.clear();
        return waiting[0].revents != 0;
    }
    // For a peer that waits. False: there is no place yet; the connection that has been idle longest is told to go, or the
    // slowest is cut, and those that are busy go with their answers.
    bool make_room() noexcept {
        const detail::lock_guard held(mutex_);
        const bool full = connections_.size() >= context_.options.max_connections;
        context_.crowded.store(full);
        if (!full) return true;
        detail::http_connection* oldest = nullptr;
        detail::http_connection* slowest = connections_[0].get();
        std::uint64_t least = detail::newcomer;
        for (const auto& each : connections_) {
            if (each->waits_since() < slowest->waits_since()) slowest = each.get();
            const std::uint64_t since = each->idle_since();
            if (since == 0 || since >= least) continue;
            oldest = each.get();
            least = since;
        }
        if (oldest != nullptr && !oldest->leaves()) {
            oldest->close_if_idle();
        } else if (detail::milliseconds_since(slowest->waits_since()) >=
                   context_.options.crowded_timeout.count()) {
            static_cast<void>(slowest->cut());
        }
        return false;
    }
    void accept_one() noexcept {
        detail::unique_fd socket = detail::accept_socket(listener_.fd());
        const int failed = socket ? 0 : errno;
        if (detail::peer_gave_up(failed) || detail::would_block(failed)) return;
        try {
            if (socket) return admit(std::move(socket));
        } catch (...) {  // out of memory: treated like being out of descriptors
        }
        // Out of something (EMFILE, ENFILE, ENOBUFS, ENOMEM): the listener stays readable, so poll would spin.
        wake_.wait_until(steady_clock::now() + detail::accept_retry_time);
    }
    void admit(detail::unique_fd socket) {
        detail::ref<detail::http_connection> connection =
            detail::make_ref<detail::http_connection>(std::move(socket), context_);
        const auto body = [this, connection] {
            const auto ended = [&] { retire(*connection); };
            detail::call_guarded([&] { connection->serve(); }, ended);
            ended();
        };
        detail::thread_options options;
        options.name = "ojs-http";
        options.stack_size = context_.options.thread_stack_size;
        // The thread cannot retire before it is listed and its handle is stored.
        detail::lock_guard held(mutex_);
        connections_.reserve(connections_.size() + 1);
        result<detail::thread> started = detail::thread::start(body, options);
        if (!started) {
            held.unlock();
            return connection->turn_away();
        }
        connection->runner = std::move(*started);
        connections_.push_back(std::move(connection));
    }
    // The last thing a connection's thread does.
    void retire(detail::http_connection& connection) {
        detail::thread ended_before;
        {
            const detail::lock_guard held(mutex_);
            if (connections_.size() == context_.options.max_connections) wake_.notify();
            for (detail::ref<detail::http_connection>& listed : connections_) {
                if (listed.get() != &connection) continue;
                detail::swap(listed, connections_.back());
                connections_.pop_back();
                break;
            }
            ended_before = std::move(last_ended_);
            last_ended_ = std::move(connection.runner);
            if (connections_.empty()) emptied_.notify_all();
        }
        connection.close();
        ended_before.join();
    }

    detail::http_server_context context_;
    detail::listener listener_;
    detail::wake wake_;  // wakes the acceptor: stop, or room for a connection
    detail::thread acceptor_;

    detail::mutex stop_mutex_;  // one stop() at a time
    detail::mutex mutex_;       // guards what follows
    detail::condition emptied_;
    detail::array<detail::ref<detail::http_connection>> connections_;
    detail::thread last_ended_;  // each connection's thread, as it ends, joins the one that ended before
};

OJS_SHUTDOWN_INLINE http_server::http_server(detail::ref<impl> body) noexcept : impl_(std::move(body)) {}
OJS_SHUTDOWN_INLINE http_server::http_server(http_server&& other) noexcept = default;
OJS_SHUTDOWN_INLINE http_server& http_server::operator=(http_server&& other) noexcept = default;
OJS_SHUTDOWN_INLINE http_server::~http_server() = default;  // impl stops when its last owner goes

OJS_SHUTDOWN_INLINE result<http_server> http_server::start(std::string_view address, http_handler handler,
                                                           http_server_options options) {
    if (!handler || options.max_connections == 0) {
        return error{errc::invalid_argument, 0, "an HTTP server needs a handler and at least one connection"};
    }
    result<detail::endpoint> where = detail::parse_listen_address(address);
    if (!where) return where.error();
    detail::ref<impl> body = detail::make_ref<impl>(std::move(handler), options);
    const result<void> started = body->start(std::move(*where));
    if (!started) return started.error();
    return http_server(std::move(body));
}

OJS_SHUTDOWN_INLINE const std::string& http_server::address() const noexcept {
    return impl_->where().name;
}
OJS_SHUTDOWN_INLINE std::uint16_t http_server::port() const noexcept {
    return impl_->where().port;
}
OJS_SHUTDOWN_INLINE std::size_t http_server::stop(time_point deadline) {
    return impl_->stop(deadline);
}

}  // namespace v0_1_0
}  // namespace ojs
