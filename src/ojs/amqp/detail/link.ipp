// link: a thread with a connection by librabbitmq, frame by frame, which it opens again after a pause.
#pragma once

#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <poll.h>

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/detail/clock.ipp"
#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../core/detail/wake.hpp"
#include "../../net/detail/socket.ipp"
#include "../amqp_transport.hpp"

namespace ojs::detail {
namespace rabbitmq {
OJS_SHUTDOWN_INLINE amqp_bytes_t bytes_of(std::string_view text) {
    return {text.size(), const_cast<char*>(text.data())};
}
OJS_SHUTDOWN_INLINE std::string_view view_of(amqp_bytes_t bytes) {
    return bytes.len == 0 ? std::string_view() : std::string_view(static_cast<char*>(bytes.bytes), bytes.len);
}

// Where the broker is. The password is in no text that is made of it.
struct broker_address {
    endpoint at;
    std::string user, password, virtual_host;
};

OJS_SHUTDOWN_INLINE result<broker_address> parse_url(std::string url) {
    amqp_connection_info found{};
    amqp_default_connection_info(&found);
    if (amqp_parse_url(url.data(), &found) != AMQP_STATUS_OK || found.ssl != 0)
        return error{errc::invalid_argument, 0, "the URL is not amqp://USER:PASSWORD@HOST:PORT/VHOST"};
    endpoint at;
    at.host = found.host;
    at.port = static_cast<std::uint16_t>(found.port);
    at.name = host_port(at.host, at.port);
    const bool is_default = found.vhost == nullptr || *found.vhost == '\0';
    return broker_address{at, found.user, found.password, is_default ? "/" : found.vhost};
}

// What all links of a transport share.
struct monitor {
    monitor(broker_address at, amqp_options with) : broker(std::move(at)), options(std::move(with)) {}

    bool is_ending() {
        const unique_lock held(guard);
        return cut_at != never;
    }

    const broker_address broker;
    const amqp_options options;
    mutex guard;
    condition changed;
    time_point cut_at = never;  // guarded; else the transport ends, and cuts its connections then
};

// Each queue has its own links, as RabbitMQ may close a connection for a fault of one queue.
class link {
  public:
    explicit link(monitor& shared) : shared_(shared) {}
    virtual ~link() = default;

    // Once; again, it does nothing.
    result<void> start(const char* name) {
        if (thread_.joinable()) return {};
        result<wake> created = wake::create();
        if (!created) return created.error();
        wake_ = std::move(*created);
        // librabbitmq decodes nested headers by recursion: frame_max bytes of them take less than this.
        result<thread> started = thread::start([this] { run(); }, {std::size_t{16} << 20, false, name});
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }
    void notify() const noexcept {
        if (thread_.joinable()) wake_.notify();
    }
    // With cut_at: the thread sends what is decided, closes the connection, and ends.
    void end() {
        notify();
        unique_lock held(shared_.guard);
        while (thread_.joinable() && !has_ended_ && shared_.changed.wait_until(held, shared_.cut_at)) continue;
        if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);  // ends any call but a connect
        held.unlock();
        thread_.join();
    }

  protected:
    static constexpr int frame_max = 131072;
    static constexpr amqp_channel_t channel = 1;

    // On the thread; false: the connection is of no more use.
    virtual bool turn() = 0;  // after each login, then after each event
    virtual void lose() = 0;  // after its end; fault_ says why

    bool fail(std::string text, bool is_rejected = false) {
        fault_ = {is_rejected ? errc::rejected : errc::unreachable, 0, std::move(text)};
        return false;
    }
    // After a synchronous method.
    bool check() { return check(amqp_get_rpc_reply(state_)); }
    bool check(const amqp_rpc_reply_t& reply) {
        if (reply.reply_type == AMQP_RESPONSE_NORMAL) return true;
        if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) return check_sent(reply.library_error);
        if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && is_close(reply.reply)) return false;
        return fail("the broker closed the connection");
    }
    // The result of a method that has no response. What does not fit into a frame is not sent.
    bool check_sent(int status) {
        return status == AMQP_STATUS_OK || fail(amqp_error_string2(status), status == AMQP_STATUS_TABLE_TOO_BIG);
    }
    // Calls on_frame(frame) for each one that has come; the frame is valid during the call. Sends heartbeats.
    template <class OnFrame>
    bool read(const OnFrame& on_frame) {
        for (;;) {
            amqp_maybe_release_buffers(state_);
            amqp_frame_t frame;
            const timeval none{0, 0};
            const int status = amqp_simple_wait_frame_noblock(state_, &frame, &none);
            if (status == AMQP_STATUS_TIMEOUT) return true;
            if (!check_sent(status)) return false;
            const bool is_method = frame.frame_type == AMQP_FRAME_METHOD;
            if ((is_method && is_close(frame.payload.method)) || !on_frame(frame)) return false;
        }
    }

    monitor& shared_;
    // Used only by the thread.
    amqp_connection_state_t state_ = nullptr;
    error fault_;              // rejected: the broker closed the channel
    bool has_worked_ = false;  // the next pause is short

  private:
    static constexpr std::chrono::seconds connect_timeout{1};  // a thread's end waits for it
    static constexpr timeval login_timeout{5, 0}, rpc_timeout{30, 0};

    void run() {
        backoff pause(std::chrono::milliseconds(100), std::chrono::milliseconds(5000));
        for (time_point at = steady_clock::now(); await(at); at = deadline_after(pause.next())) {
            if (open()) serve();
            close();
            lose();
            if (exchange(has_worked_, false)) pause.reset();
        }
        const unique_lock held(shared_.guard);
        has_ended_ = true;
        shared_.changed.notify_all();
    }
    // False: it ends.
    bool await(time_point at) {
        unique_lock held(shared_.guard);
        while (shared_.cut_at == never && shared_.changed.wait_until(held, at)) continue;
        return shared_.cut_at == never;
    }
    void serve() {
        for (bool ends = false; !ends;) {
            ends = shared_.is_ending();
            if (!turn()) return;
            if (ends || amqp_frames_enqueued(state_) != 0 || amqp_data_in_buffer(state_) != 0) continue;
            pollfd polled[] = {{wake_.fd(), POLLIN, 0}, {amqp_get_sockfd(state_), POLLIN, 0}};
            ::poll(polled, 2, 1000);  // for heartbeats
            wake_.clear();
        }
    }

    // Connects, logs in, and opens the channel.
    bool open() {
        result<unique_fd> connected = host_->connect(deadline_after(connect_timeout));
        if (!connected) return fail(connected.error().text);
        state_ = amqp_new_connection();
        amqp_socket_t* const tcp = state_ == nullptr ? nullptr : amqp_tcp_socket_new(state_);
        if (tcp == nullptr) return fail("no memory for a connection");
        set_socket(connected->get());
        amqp_tcp_socket_set_sockfd(tcp, connected->release());
        amqp_set_handshake_timeout(state_, &login_timeout);
        amqp_set_rpc_timeout(state_, &rpc_timeout);
        const bool is_served = check(log_in());
        if (!is_served) host_ = make_ref<resolver>(shared_.broker.at);  // a name may have another address now
        if (!is_served) return fail(cat({"cannot log in to ", shared_.broker.at.name, ": ", fault_.text}));
        amqp_channel_open(state_, channel);
        return check();
    }
    // The broker tells of a deleted queue only those who ask for it.
    amqp_rpc_reply_t log_in() {
        amqp_table_entry_t capability{amqp_cstring_bytes("consumer_cancel_notify"), {AMQP_FIELD_KIND_BOOLEAN, {1}}};
        amqp_table_entry_t property{amqp_cstring_bytes("capabilities"), {AMQP_FIELD_KIND_TABLE, {}}};
        property.value.value.table = {1, &capability};
        const amqp_table_t properties = {1, &property};
        const broker_address& broker = shared_.broker;
        return amqp_login_with_properties(state_, broker.virtual_host.c_str(), 0, frame_max,
                                          static_cast<int>(shared_.options.heartbeat.count()), &properties,
                                          AMQP_SASL_METHOD_PLAIN, broker.user.c_str(), broker.password.c_str());
    }
    // At the end it waits for Close-Ok, so that the broker has read everything.
    void close() {
        if (state_ == nullptr) return;
        if (shared_.is_ending()) static_cast<void>(amqp_connection_close(state_, AMQP_REPLY_SUCCESS));
        set_socket(-1);
        amqp_destroy_connection(state_);
        state_ = nullptr;
    }
    void set_socket(int fd) {
        const unique_lock held(shared_.guard);
        socket_ = fd;
        if (fd >= 0 && steady_clock::now() >= shared_.cut_at) ::shutdown(fd, SHUT_RDWR);
    }
    // The broker closes the channel or the connection: "NOT_FOUND - no queue 'x' in vhost '/' (404)".
    bool is_close(const amqp_method_t& method) {
        const auto fail_by = [&](const auto* closed) {
            fail(cat({printable(view_of(closed->reply_text)), " (", closed->reply_code, ")"}),
                 method.id == AMQP_CHANNEL_CLOSE_METHOD);
            return true;
        };
        if (method.id == AMQP_CHANNEL_CLOSE_METHOD) return fail_by(static_cast<amqp_channel_close_t*>(method.decoded));
        return method.id == AMQP_CONNECTION_CLOSE_METHOD &&
               fail_by(static_cast<amqp_connection_close_t*>(method.decoded));
    }

    wake wake_;
    thread thread_;
    ref<resolver> host_ = make_ref<resolver>(shared_.broker.at);  // of the thread
    // Guarded.
    int socket_ = -1;
    bool has_ended_ = false;
};
}  // namespace rabbitmq
}  // namespace ojs::detail
