// connection: librabbitmq with time limits, frame by frame, for one thread.
#pragma once

#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "../../base/detail/text.hpp"
#include "../../base/error.hpp"

namespace ojs::detail {
namespace rabbitmq {

OJS_SHUTDOWN_INLINE amqp_bytes_t bytes_of(std::string_view text) {
    return {text.size(), const_cast<char*>(text.data())};
}
OJS_SHUTDOWN_INLINE std::string_view view_of(amqp_bytes_t bytes) {
    return bytes.len == 0 ? std::string_view() : std::string_view(static_cast<char*>(bytes.bytes), bytes.len);
}

// Where the broker is. The password is in no text that is made of it.
struct endpoint {
    std::string host, user, password, virtual_host;
    int port = 0;
};

OJS_SHUTDOWN_INLINE result<endpoint> parse_url(std::string url) {
    amqp_connection_info found{};
    amqp_default_connection_info(&found);
    if (amqp_parse_url(url.data(), &found) != AMQP_STATUS_OK || found.ssl != 0)
        return error{errc::invalid_argument, 0, "the URL is not amqp://USER:PASSWORD@HOST:PORT/VHOST"};
    const bool is_default = found.vhost == nullptr || *found.vhost == '\0';
    return endpoint{found.host, found.user, found.password, is_default ? "/" : found.vhost, found.port};
}

// How a synchronous method ended.
enum class rpc_status { done, channel_closed, disconnected };

// A connection. Used by one thread, but for interrupt().
class connection {
  public:
    connection() = default;
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection() { close(false); }

    bool is_open() const noexcept { return state_ != nullptr; }
    amqp_connection_state_t state() const noexcept { return state_; }
    int socket() const noexcept { return socket_; }
    // Of the last failure.
    const std::string& fault() const noexcept { return fault_; }

    // Connects and logs in, within about 10 s. False: see fault().
    bool open(const endpoint& broker, std::chrono::seconds heartbeat) {
        state_ = amqp_new_connection();
        amqp_socket_t* const tcp = state_ == nullptr ? nullptr : amqp_tcp_socket_new(state_);
        if (tcp == nullptr) return fail("out of memory");
        timeval limit{time_limit, 0};
        const int status = amqp_socket_open_noblock(tcp, broker.host.c_str(), broker.port, &limit);
        if (status != AMQP_STATUS_OK)
            return fail(
                cat({"cannot connect to ", broker.host, ":", broker.port, ": ", amqp_error_string2(status)}));
        publish_socket(amqp_socket_get_sockfd(tcp));
        amqp_set_handshake_timeout(state_, &limit);
        amqp_set_rpc_timeout(state_, &limit);
        const amqp_rpc_reply_t reply = log_in(broker, static_cast<int>(heartbeat.count()));
        return reply.reply_type == AMQP_RESPONSE_NORMAL ||
               fail(cat({"cannot log in to ", broker.host, ":", broker.port, ": ", text_of(reply)}));
    }
    // `orderly`: the broker has read everything before the connection ends.
    void close(bool orderly) {
        if (state_ == nullptr) return;
        if (orderly) static_cast<void>(amqp_connection_close(state_, AMQP_REPLY_SUCCESS));
        publish_socket(-1);
        amqp_destroy_connection(state_);
        state_ = nullptr;
    }
    // Ends what the thread waits for. Thread-safe.
    void interrupt() {
        const unique_lock held(mutex_);
        if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
    }

    // After a synchronous method on that channel.
    rpc_status check(amqp_channel_t channel) {
        const amqp_rpc_reply_t reply = amqp_get_rpc_reply(state_);
        if (reply.reply_type == AMQP_RESPONSE_NORMAL) return rpc_status::done;
        fault_ = text_of(reply);
        if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION || reply.reply.id != AMQP_CHANNEL_CLOSE_METHOD)
            return rpc_status::disconnected;
        return confirm_close(channel) ? rpc_status::channel_closed : rpc_status::disconnected;
    }
    // The result of a method that has no response.
    bool check_sent(int status) { return status == AMQP_STATUS_OK || keep_fault(amqp_error_string2(status)); }
    // After the broker has closed a channel, which may then be opened again.
    bool confirm_close(amqp_channel_t channel) {
        amqp_channel_close_ok_t method{};
        return check_sent(amqp_send_method(state_, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &method));
    }

    // Calls `on_frame(frame)`, which returns whether to continue, for all that has arrived. Sends heartbeats.
    // False: disconnected.
    template <class OnFrame>
    bool read_frames(const OnFrame& on_frame) {
        for (;;) {
            amqp_maybe_release_buffers(state_);
            amqp_frame_t frame;
            timeval none{0, 0};
            const int status = amqp_simple_wait_frame_noblock(state_, &frame, &none);
            if (status == AMQP_STATUS_TIMEOUT) return true;
            if (!check_sent(status)) return false;
            if (is_method(frame, AMQP_CONNECTION_CLOSE_METHOD)) {
                const auto* const closed =
                    static_cast<amqp_connection_close_t*>(frame.payload.method.decoded);
                return keep_fault(text_of(closed->reply_text, closed->reply_code));
            }
            if (!on_frame(frame)) return false;
        }
    }
    bool has_frames() const { return amqp_frames_enqueued(state_) != 0 || amqp_data_in_buffer(state_) != 0; }

    static bool is_method(const amqp_frame_t& frame, amqp_method_number_t id) {
        return frame.frame_type == AMQP_FRAME_METHOD && frame.payload.method.id == id;
    }
    // "NOT_FOUND - no queue 'x' in vhost '/' (404)"
    static std::string text_of(amqp_bytes_t text, int code) {
        return cat({printable(view_of(text)), " (", code, ")"});
    }
    bool keep_fault(std::string text) {
        fault_ = std::move(text);
        return false;
    }

  private:
    static constexpr int time_limit = 5;  // seconds, of connecting, and of each synchronous method
    static constexpr int frame_max = 131072;

    // The broker tells of a deleted queue, and of blocked publications, only those who ask for it.
    amqp_rpc_reply_t log_in(const endpoint& broker, int heartbeat) {
        amqp_table_entry_t capabilities[] = {true_entry("consumer_cancel_notify"),
                                             true_entry("connection.blocked"),
                                             true_entry("authentication_failure_close")};
        amqp_table_entry_t property = true_entry("capabilities");
        property.value.kind = AMQP_FIELD_KIND_TABLE;
        property.value.value.table = {3, capabilities};
        const amqp_table_t properties = {1, &property};
        return amqp_login_with_properties(state_, broker.virtual_host.c_str(), 0, frame_max, heartbeat,
                                          &properties, AMQP_SASL_METHOD_PLAIN, broker.user.c_str(),
                                          broker.password.c_str());
    }
    static amqp_table_entry_t true_entry(const char* name) {
        amqp_table_entry_t out{};
        out.key = amqp_cstring_bytes(name);
        out.value.kind = AMQP_FIELD_KIND_BOOLEAN;
        out.value.value.boolean = 1;
        return out;
    }
    static std::string text_of(const amqp_rpc_reply_t& reply) {
        if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION)
            return amqp_error_string2(reply.library_error);
        if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION) return "the connection was closed";
        if (reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
            const auto* const closed = static_cast<amqp_channel_close_t*>(reply.reply.decoded);
            return text_of(closed->reply_text, closed->reply_code);
        }
        const auto* const closed = static_cast<amqp_connection_close_t*>(reply.reply.decoded);
        return text_of(closed->reply_text, closed->reply_code);
    }
    bool fail(std::string text) {
        fault_ = std::move(text);
        close(false);
        return false;
    }
    void publish_socket(int socket) {
        const unique_lock held(mutex_);
        socket_ = socket;
#ifdef TCP_USER_TIMEOUT
        const int milliseconds = 30000;  // else a peer that vanished blocks a send for a quarter of an hour
        if (socket >= 0)
            ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
#endif
    }

    amqp_connection_state_t state_ = nullptr;
    std::string fault_;
    mutex mutex_;
    int socket_ = -1;
};

}  // namespace rabbitmq
}  // namespace ojs::detail
