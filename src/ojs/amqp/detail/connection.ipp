// connection: librabbitmq, frame by frame.
#pragma once

#include <amqp.h>
#include <amqp_framing.h>
#include <amqp_tcp_socket.h>

#include <string>
#include <string_view>
#include <utility>

#include "../../base/detail/text.hpp"
#include "../../base/error.hpp"
#include "../../net/detail/socket.ipp"

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
    std::string name, user, password, virtual_host;  // "host:5672"
    ref<resolver> host;
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
    return broker_address{at.name, found.user, found.password, is_default ? "/" : found.vhost, make_ref<resolver>(at)};
}

// Not thread-safe, but for interrupt().
class connection {
  public:
    static constexpr int frame_max = 131072;

    connection() = default;
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection() { close(false); }

    amqp_connection_state_t state() const noexcept { return state_; }
    int socket() const noexcept { return amqp_get_sockfd(state_); }
    // Why the last method failed. Rejected: the broker closed the channel; else the connection is of no more use.
    const error& fault() const noexcept { return fault_; }

    // Connects and logs in.
    bool open(const broker_address& broker, std::chrono::seconds heartbeat) {
        fault_ = {errc::unreachable, 0, ""};
        result<unique_fd> connected = broker.host->connect(deadline_after(connect_timeout));
        if (!connected) return fail(connected.error().text);
        state_ = amqp_new_connection();
        amqp_socket_t* const tcp = state_ == nullptr ? nullptr : amqp_tcp_socket_new(state_);
        if (tcp == nullptr) return fail("out of memory");
        set_socket(connected->get());
        amqp_tcp_socket_set_sockfd(tcp, connected->release());
        amqp_set_handshake_timeout(state_, &login_timeout);
        amqp_set_rpc_timeout(state_, &rpc_timeout);
        const amqp_rpc_reply_t reply = log_in(broker, static_cast<int>(heartbeat.count()));
        return reply.reply_type == AMQP_RESPONSE_NORMAL ||
               fail(cat({"cannot log in to ", broker.name, ": ", text_of(reply)}));
    }
    // `orderly`: sends Connection.Close first and waits for Close-Ok, so that the broker has read everything.
    void close(bool orderly) {
        if (state_ == nullptr) return;
        if (orderly) static_cast<void>(amqp_connection_close(state_, AMQP_REPLY_SUCCESS));
        set_socket(-1);
        amqp_destroy_connection(state_);
        state_ = nullptr;
    }
    // Ends a call of this connection in another thread, but for its connect.
    void interrupt() {
        const unique_lock held(mutex_);
        is_cut_ = true;
        if (socket_ >= 0) ::shutdown(socket_, SHUT_RDWR);
    }

    // After a synchronous method.
    bool check() {
        const amqp_rpc_reply_t reply = amqp_get_rpc_reply(state_);
        return reply.reply_type == AMQP_RESPONSE_NORMAL || fail(text_of(reply), is_of_channel(reply));
    }
    // The result of a method that has no response.
    bool check_sent(int status) { return status == AMQP_STATUS_OK || fail(amqp_error_string2(status)); }
    // After the broker has closed a channel, which may then be opened again.
    bool confirm_close(amqp_channel_t channel) {
        amqp_channel_close_ok_t method{};
        return check_sent(amqp_send_method(state_, channel, AMQP_CHANNEL_CLOSE_OK_METHOD, &method));
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
            if (!check_sent(status) || is_close(frame) || !on_frame(frame)) return false;
        }
    }
    bool has_frames() const { return amqp_frames_enqueued(state_) != 0 || amqp_data_in_buffer(state_) != 0; }
    bool fail(std::string text, bool is_rejected = false) {
        fault_ = {is_rejected ? errc::rejected : errc::unreachable, 0, std::move(text)};
        return false;
    }

  private:
    static constexpr std::chrono::seconds connect_timeout{1};  // a thread's end waits for it
    static constexpr timeval login_timeout{5, 0}, rpc_timeout{30, 0};

    void set_socket(int fd) {
        const unique_lock held(mutex_);
        socket_ = fd;
        if (is_cut_ && fd >= 0) ::shutdown(fd, SHUT_RDWR);
    }
    // The broker tells of a deleted queue only those who ask for it.
    amqp_rpc_reply_t log_in(const broker_address& broker, int heartbeat) {
        amqp_table_entry_t capability{}, property{};
        capability.key = amqp_cstring_bytes("consumer_cancel_notify");
        capability.value.kind = AMQP_FIELD_KIND_BOOLEAN;
        capability.value.value.boolean = 1;
        property.key = amqp_cstring_bytes("capabilities");
        property.value.kind = AMQP_FIELD_KIND_TABLE;
        property.value.value.table = {1, &capability};
        const amqp_table_t properties = {1, &property};
        return amqp_login_with_properties(state_, broker.virtual_host.c_str(), 0, frame_max, heartbeat, &properties,
                                          AMQP_SASL_METHOD_PLAIN, broker.user.c_str(), broker.password.c_str());
    }
    // "NOT_FOUND - no queue 'x' in vhost '/' (404)"
    template <class Close>
    static std::string text_of(const void* method) {
        const auto& closed = *static_cast<const Close*>(method);
        return cat({printable(view_of(closed.reply_text)), " (", closed.reply_code, ")"});
    }
    static bool is_of_channel(const amqp_rpc_reply_t& reply) {
        return reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD;
    }
    static std::string text_of(const amqp_rpc_reply_t& reply) {
        if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) return amqp_error_string2(reply.library_error);
        if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION) return "the connection was closed";
        return is_of_channel(reply) ? text_of<amqp_channel_close_t>(reply.reply.decoded)
                                    : text_of<amqp_connection_close_t>(reply.reply.decoded);
    }
    // The broker closes the channel or the connection.
    bool is_close(const amqp_frame_t& frame) {
        if (frame.frame_type != AMQP_FRAME_METHOD) return false;
        const amqp_method_t& method = frame.payload.method;
        const bool is_channel = method.id == AMQP_CHANNEL_CLOSE_METHOD;
        if (!is_channel && method.id != AMQP_CONNECTION_CLOSE_METHOD) return false;
        fail(is_channel ? text_of<amqp_channel_close_t>(method.decoded)
                        : text_of<amqp_connection_close_t>(method.decoded),
             is_channel);
        return true;
    }

    amqp_connection_state_t state_ = nullptr;
    error fault_;
    mutex mutex_;
    int socket_ = -1;      // guarded
    bool is_cut_ = false;  // guarded
};
}  // namespace rabbitmq
}  // namespace ojs::detail
