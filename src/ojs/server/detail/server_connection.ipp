// server_connection: one connection of a server, continued by the thread that receives its next event.
#pragma once

#include <errno.h>
#include <poll.h>

#include "../../base/detail/light.hpp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../net/detail/socket.ipp"
#include "../draining_server.hpp"
#include "http_messages.ipp"

namespace ojs::detail {
inline constexpr auto overdue_interval = std::chrono::milliseconds(250);

// A serving thread lends its memory to the connection it serves, so that a short request allocates little.
struct lent_memory {
    std::string response;
    http_headers headers;
};
inline constexpr std::size_t max_lent = 16 * 1024;  // bytes of either; more is freed

// The state that the connections share with the server.
struct draining_context {
    http_handler handler;
    draining_server_options options;
    bool thread_per_connection = false;            // an http_server: a thread per connection, no lingering
    atomic<bool> draining{false};                  // readiness fails, and connections close after their response
    atomic<bool> refusing{false};                  // no more connections are accepted; the counts below can reach 0
    atomic<bool> needs_slot{false};                // a client waits for a connection to become idle and close
    atomic<std::size_t> in_flight_connections{0};  // with a request that has begun and has no response
    atomic<std::size_t> late{0};                   // connections whose next request gets 503
    atomic<std::size_t> buffered{0};
    atomic<std::size_t> answered{0};  // since the drain began
    atomic<std::size_t> refused{0};
    function<void()> on_count_zero;                       // in_flight_connections or late
    atomic<time_point> next_sweep_at{time_point::max()};  // when the deadlines are checked
    function<void()> on_earlier_sweep;

    // True for one connection only.
    bool take_slot_request() noexcept { return needs_slot.load() && needs_slot.exchange(false); }
    // True: earlier than scheduled before.
    bool schedule_sweep(time_point when) noexcept {
        for (time_point seen = next_sweep_at.load(); when < seen;) {
            if (next_sweep_at.compare_exchange_strong(seen, when)) return true;
        }
        return false;
    }
};

class server_connection final : public ref_counted {
  public:
    // The events of poll() to wait for next; `yield`: writable at once, so that other connections come first.
    enum class next : short { close = 0, read = POLLIN, write = POLLOUT, yield = POLLIN | POLLOUT };

    server_connection(unique_fd socket, draining_context& server)
        : socket_(std::move(socket)),
          server_(server),
          parser_(server.options.limits.head, server.options.limits.body),
          idle_deadline_(deadline_after(server.options.idle_timeout)),
          deadline_(idle_deadline_) {}
    ~server_connection() override { release_buffered(); }

    // Called by the one thread that received the socket's event.
    next on_ready(lent_memory& lent) {
        while (handing_over_.load()) pause_for(std::chrono::microseconds(50));
        lent_ = &lent;
        const state now = state_.load();
        if (now == state::writing) return send_rest();
        if (now == state::lingering) return discard_input();
        return enter_reading() ? read_request() : next::close;
    }
    // Hands over to the next such thread. It may get its event before `watch` returns, and waits for that.
    template <class Watch>
    bool hand_over(Watch watch) noexcept {
        handing_over_.store(true);
        const bool watched = watch();
        handing_over_.store(false);  // the last access by this thread
        return watched;
    }
    // The last call of such a thread, after next::close or when on_ready() did not return.
    void on_closed() noexcept {
        release_buffered();
        if (state_.exchange(state::closing) >= state::reading) end_request();
        if (is_late_.exchange(false) && server_.late.fetch_sub(1) == 1) server_.on_count_zero();
    }

    // The following are for the server, while its list holds the connection.
    int fd() const noexcept { return socket_.get(); }
    void close() noexcept { socket_.reset(); }
    void reject() noexcept {  // without a thread to serve it
        const std::string_view text =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        static_cast<void>(::send(fd(), text.data(), text.size(), send_flags));
    }
    // Unread bytes, or an unread end of the stream.
    bool has_unread_bytes() const noexcept { return has_event(POLLIN); }
    bool has_received() const noexcept { return !received_nothing_.load(); }
    bool is_idle() const noexcept { return state_.load() == state::idle; }
    // Closed or cut, and about to be removed; its handler may delay that.
    bool is_ending() const noexcept {
        const state now = state_.load();
        return now == state::closing || (is_cut_.load() && now != state::answering);
    }
    // As the client sees it: it may have the response before the sending thread continues.
    bool has_responded() const noexcept { return state_.load() == state::sending || (is_idle() && has_received()); }
    // Closes it now if it is idle, else after its response.
    void close_when_idle() noexcept {
        closes_when_idle_.store(true);
        close_if_idle();
    }
    // Since when it has been idle or has waited for its client; max(): in the handler, or being closed.
    time_point waiting_since() const noexcept {
        const state now = state_.load();
        return now == state::answering || now == state::closing ? time_point::max() : since_.load();
    }
    // Its thread will read what has arrived, or send what can be sent: this process may have been frozen.
    bool has_progress() const noexcept {
        const state now = state_.load();
        return now != state::lingering && has_event(now == state::writing ? POLLOUT : POLLIN);
    }
    // Returns when to check it next.
    time_point end_if_overdue(time_point now) noexcept {
        const time_point deadline = deadline_.load();
        if (deadline > now) return deadline;
        const state at = state_.load();
        if (has_progress()) return now + overdue_interval;
        if (at == state::idle) close_if_idle();
        if (at == state::reading) ::shutdown(socket_.get(), SHUT_RD);  // an event for its thread
        if (at == state::writing || at == state::lingering) ::shutdown(socket_.get(), SHUT_RDWR);
        return now + overdue_interval;
    }
    // True: it was idle, and is being closed.
    bool close_if_idle() noexcept {
        state now = state::idle;
        if (!state_.compare_exchange_strong(now, state::closing)) return false;
        ::shutdown(socket_.get(), SHUT_RDWR);
        return true;
    }
    // Unread bytes belong to a request sent before the drain: it counts as in flight.
    void on_drain() noexcept {
        if (!is_idle()) return;
        if (has_unread_bytes()) {
            server_.in_flight_connections.fetch_add(1);
            if (!begin_request()) server_.in_flight_connections.fetch_sub(1);
        } else if (received_nothing_.load() && !server_.thread_per_connection) {
            if (!is_late_.exchange(true)) server_.late.fetch_add(1);
        } else {
            close_if_idle();
        }
    }
    // True: a request was in flight.
    bool cut() noexcept {
        const state now = state_.load();
        is_cut_.store(true);
        ::shutdown(socket_.get(), SHUT_RDWR);
        return now >= state::reading && now != state::lingering;
    }

    std::size_t index = 0;  // in the server's list

  private:
    enum class state {
        idle,  // no byte of a request has been read
        closing,
        // From here on a request is in flight.
        reading,
        answering,  // the handler has it
        sending,
        writing,   // the rest of a response that a slow peer has not taken
        lingering  // response sent, our side shut down; the peer may still send
    };

    // Before a byte is read, so that a connection with a request never looks idle.
    bool enter_reading() noexcept {
        server_.in_flight_connections.fetch_add(1);
        if (begin_request()) return true;
        end_request();
        return state_.load() == state::reading;
    }
    bool begin_request() noexcept {
        state now = state::idle;
        if (!is_idle()) return false;
        // Before the state changes, else the old deadline could make it overdue.
        if (has_received()) since_.store(steady_clock::now());
        set_deadline(deadline_after(server_.options.request_timeout));
        return state_.compare_exchange_strong(now, state::reading);
    }
    next read_request() {
        if (parser_.has_surplus()) {  // received together with the previous request
            const http_parser::status reached = parser_.feed({});
            if (reached != http_parser::status::need_more) return on_parsed(reached);
            send_100_continue();
        }
        char bytes[16 * 1024];
        for (;;) {
            const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0 && errno == EAGAIN) return expect_bytes();
            if (got <= 0) {
                const bool begun = !parser_.is_empty();
                return begun && is_overdue() ? refuse_late() : next::close;
            }
            if (!has_received()) received_nothing_.store(false);
            if (parser_.message().headers.empty()) parser_.message().headers.swap(lent_->headers);
            const http_parser::status reached = parser_.feed({bytes, static_cast<std::size_t>(got)});
            if (reached != http_parser::status::need_more) return on_parsed(reached);
            count_buffered(static_cast<std::size_t>(got));
            if (parser_.is_empty() && deadline_.load() < idle_deadline_) idle_deadline_ = deadline_.load();
            if (is_full()) return refuse(busy_response(full_text()));
            send_100_continue();
        }
    }
    void send_100_continue() noexcept {
        if (continue_sent_ || !parser_.head_complete() || !parser_.expects_continue()) return;
        continue_sent_ = true;
        ::send(socket_.get(), continue_response.data(), continue_response.size(), send_flags);
    }
    next expect_bytes() {
        if (!parser_.is_empty()) return is_overdue() ? refuse_late() : next::read;
        set_deadline(idle_deadline_);  // empty lines do not extend it
        state_.store(state::idle);
        // A drain may have seen it busy. Before end_request(), else the drain could end in between.
        if (has_received() && (server_.refusing.load() || take_slot_request())) on_drain();
        end_request();
        return next::read;
    }
    next on_parsed(http_parser::status reached) {
        if (reached == http_parser::status::complete) return answer();
        return refuse(plain_response(parser_.failure_code(), parser_.failure()));
    }

    next answer() {
        set_deadline(time_point::max());
        state_.store(state::answering);
        const bool is_head = parser_.message().method == "HEAD";
        const bool keeps_alive = parser_.keeps_alive();
        const bool is_late = is_late_.load();
        const http_response response =
            is_late ? busy_response("this server is shutting down") : response_to(std::move(parser_.message()));
        if (response.status == 0) return next::close;
        if (server_.draining.load()) (is_late ? server_.refused : server_.answered).fetch_add(1);
        const bool makes_room = take_slot_request();
        const bool stays = keeps_alive && !server_.draining.load() && !makes_room &&
                           !has_list_word(find_header(response.headers, "Connection"), "close");
        lingers_ = parser_.has_surplus() || !(server_.thread_per_connection || makes_room);
        return send(response, is_head, !stays);
    }
    next refuse_late() { return refuse(plain_response(408, "the request did not arrive in time")); }
    next refuse(const http_response& response) {
        lingers_ = true;
        return send(response, false, true);
    }

    next send(const http_response& response, bool is_head, bool closes) {
        // Before sending, which the peer can delay. A closing connection is no longer read.
        if (closes) parser_ = request_parser(server_.options.limits.head, server_.options.limits.body);
        parser_.begin();
        release_buffered();
        out_.swap(lent_->response);
        write_response(out_, response, is_head, closes);
        closes_ = closes;
        since_.store(steady_clock::now());
        state_.store(state::sending);
        return send_rest();
    }
    next send_rest() {
        while (sent_ < out_.size()) {
            const ssize_t sent =
                ::send(socket_.get(), out_.data() + sent_, out_.size() - sent_, send_flags | MSG_DONTWAIT);
            if (sent >= 0) {
                sent_ += static_cast<std::size_t>(sent);
            } else if (errno == EAGAIN) {
                if (buffered_ > 0) return is_overdue() ? next::close : next::write;
                move_to(state::writing, server_.options.request_timeout);
                count_buffered(out_.size());
                return next::write;
            } else if (errno != EINTR) {
                return next::close;
            }
        }
        release_buffered();
        sent_ = 0;
        out_.clear();
        if (out_.capacity() <= max_lent) out_.swap(lent_->response);
        std::string().swap(out_);  // an assignment would keep the memory
        return on_response_sent();
    }
    // A pipelined request waits for its turn: the socket is writable at once.
    next on_response_sent() {
        if (closes_) {
            if (!lingers_) return next::close;
            // Closing while the peer still sends would reset the connection: it could lose the response.
            ::shutdown(socket_.get(), SHUT_WR);
            move_to(state::lingering, linger_time);
            return discard_input();
        }
        continue_sent_ = false;
        idle_deadline_ = deadline_after(server_.options.idle_timeout);
        if (!parser_.has_surplus()) return expect_bytes();
        move_to(state::reading, server_.options.request_timeout);
        return next::yield;
    }
    next discard_input() noexcept {
        char discarded[16 * 1024];
        for (int i = 0; i < 64; ++i) {
            const ssize_t got = ::recv(socket_.get(), discarded, sizeof discarded, MSG_DONTWAIT);
            if (got < 0 && errno == EAGAIN) return next::read;
            if (got == 0 || (got < 0 && errno != EINTR)) return next::close;
        }
        return next::read;
    }
    http_response response_to(http_request&& message) {
        if (is_readiness(message.target)) {
            return server_.draining.load() ? busy_response("this server is shutting down")
                                           : plain_response(200, "ready");
        }
        if (is_full()) return busy_response(full_text());
        served_request request{std::move(message), socket_.get()};
        http_response out = detail::call_handler(server_.handler, request);
        request.headers.clear();
        if (request.headers.capacity() * sizeof(http_header) <= max_lent) request.headers.swap(lent_->headers);
        return out;
    }
    http_response busy_response(std::string_view why) const {
        http_response out = plain_response(503, why);
        out.headers.push_back({"Retry-After", cat({server_.options.retry_after.count()})});
        return out;
    }
    bool take_slot_request() noexcept { return closes_when_idle_.load() || server_.take_slot_request(); }
    std::string full_text() const {
        return cat({"the requests in flight have more than ", server_.options.max_buffered, " bytes: retry later"});
    }
    bool is_full() const noexcept { return server_.buffered.load() > server_.options.max_buffered; }
    bool is_readiness(std::string_view target) const noexcept {
        const std::string& path = server_.options.readiness_path;
        return !path.empty() && target.substr(0, target.find('?')) == path;
    }
    void move_to(state now, std::chrono::milliseconds limit) noexcept {
        since_.store(steady_clock::now());
        set_deadline(deadline_after(limit));
        state_.store(now);
    }
    bool is_overdue() const noexcept { return deadline_.load() <= steady_clock::now(); }
    bool has_event(short events) const noexcept {
        pollfd here{socket_.get(), events, 0};
        return ::poll(&here, 1, 0) != 0;
    }
    void set_deadline(time_point when) noexcept {
        deadline_.store(when);
        if (server_.schedule_sweep(when)) server_.on_earlier_sweep();
    }
    void end_request() noexcept {
        if (server_.in_flight_connections.fetch_sub(1) == 1 && server_.refusing.load()) server_.on_count_zero();
    }
    void count_buffered(std::size_t more) noexcept {
        buffered_ += more;
        server_.buffered.fetch_add(more);
    }
    void release_buffered() noexcept {
        if (buffered_ > 0) server_.buffered.fetch_sub(exchange(buffered_, std::size_t{0}));
    }

    unique_fd socket_;
    draining_context& server_;
    request_parser parser_;
    lent_memory* lent_ = nullptr;  // of the thread in on_ready()
    std::string out_;
    std::size_t sent_ = 0;
    std::size_t buffered_ = 0;
    time_point idle_deadline_;
    bool continue_sent_ = false;
    bool closes_ = false;
    bool lingers_ = false;
    atomic<bool> handing_over_{false};
    atomic<state> state_{state::idle};
    atomic<bool> received_nothing_{true};
    atomic<bool> is_late_{false};  // its request will get 503
    atomic<bool> closes_when_idle_{false};
    atomic<bool> is_cut_{false};
    atomic<time_point> since_{steady_clock::now()};
    atomic<time_point> deadline_;
};
}  // namespace ojs::detail
