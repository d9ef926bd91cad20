// connection: librabbitmq with time limits, frame by frame, for one thread at a time.
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

// How a synchronous method, or a wait for a frame, ended.
enum class rpc_status { done, timed_out, channel_closed, disconnected };

class connection {
  public:
    connection() = default;
    connection(const connection&) = delete;
    connection& operator=(const connection&) = delete;
    ~connection() { close(false); }

    bool is_open() const noexcept { return state_ != nullptr; }
    amqp_connection_state_t state() const noexcept { return state_; }
    int socket() const noexcept { return amqp_get_sockfd(state_); }
    // Of the last failure.
    const std::string& fault() const noexcept { return fault_; }

    // Connects and logs in. 0: without heartbeats. False: see fault().
    bool open(const broker_address& broker, std::chrono::seconds heartbeat, time_point deadline) {
        result<unique_fd> connected = broker.host->connect(deadline);
        if (!connected) return keep_fault(connected.error().text);
        state_ = amqp_new_connection();
        amqp_socket_t* const tcp = state_ == nullptr ? nullptr : amqp_tcp_socket_new(state_);
        if (tcp == nullptr) return fail("out of memory");
        amqp_tcp_socket_set_sockfd(tcp, connected->release());
        set_deadline(deadline);
        const amqp_rpc_reply_t reply = log_in(broker, static_cast<int>(heartbeat.count()));
        return reply.reply_type == AMQP_RESPONSE_NORMAL ||
               fail(cat({"cannot log in to ", broker.name, ": ", text_of(reply)}));
    }
    // `orderly`: sends Connection.Close first and waits for Close-Ok, so that the broker has read everything.
    void close(bool orderly) {
        if (state_ == nullptr) return;
        if (orderly) static_cast<void>(amqp_connection_close(state_, AMQP_REPLY_SUCCESS));
        amqp_destroy_connection(state_);
        state_ = nullptr;
    }
    // Of each synchronous method from now on: the time that is left now.
    void set_deadline(time_point deadline) {
        const timeval left = time_left(deadline);
        amqp_set_handshake_timeout(state_, &left);
        amqp_set_rpc_timeout(state_, &left);
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

    // The next frame, which is valid until the next call. Sends heartbeats.
    rpc_status read(amqp_frame_t& frame, time_point deadline) {
        amqp_maybe_release_buffers(state_);
        const timeval left = time_left(deadline);
        const int status = amqp_simple_wait_frame_noblock(state_, &frame, &left);
        if (status == AMQP_STATUS_TIMEOUT) return rpc_status::timed_out;
        if (!check_sent(status)) return rpc_status::disconnected;
        if (frame.frame_type != AMQP_FRAME_METHOD || frame.payload.method.id != AMQP_CONNECTION_CLOSE_METHOD)
            return rpc_status::done;
        keep_fault(text_of<amqp_connection_close_t>(frame.payload.method.decoded));
        return rpc_status::disconnected;
    }
    bool has_frames() const { return amqp_frames_enqueued(state_) != 0 || amqp_data_in_buffer(state_) != 0; }

    // Of a `Close` method: "NOT_FOUND - no queue 'x' in vhost '/' (404)"
    template <class Close>
    static std::string text_of(const void* method) {
        const auto& closed = *static_cast<const Close*>(method);
        return cat({printable(view_of(closed.reply_text)), " (", closed.reply_code, ")"});
    }
    bool keep_fault(std::string text) {
        fault_ = std::move(text);
        return false;
    }

  private:
    static constexpr int frame_max = 131072;

    static timeval time_left(time_point deadline) {
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - steady_clock::now());
        const std::int64_t limited = left.count() < 0 ? 0 : left.count();
        return {static_cast<time_t>(limited / 1000000), static_cast<suseconds_t>(limited % 1000000)};
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
    static std::string text_of(const amqp_rpc_reply_t& reply) {
        if (reply.reply_type == AMQP_RESPONSE_LIBRARY_EXCEPTION) return amqp_error_string2(reply.library_error);
        if (reply.reply_type != AMQP_RESPONSE_SERVER_EXCEPTION) return "the connection was closed";
        return reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD ? text_of<amqp_channel_close_t>(reply.reply.decoded)
                                                           : text_of<amqp_connection_close_t>(reply.reply.decoded);
    }
    bool fail(std::string text) {
        close(false);
        return keep_fault(std::move(text));
    }

    amqp_connection_state_t state_ = nullptr;
    std::string fault_;
};
}  // namespace rabbitmq
}  // namespace ojs::detail
