// A RabbitMQ broker as librabbitmq shows it, without the library under test. Throws.
#pragma once

#include <amqp.h>
#include <amqp_tcp_socket.h>

#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

struct message {
    std::string id, body, type, content_type;
    std::int64_t attempt = 0, max_attempts = 0;              // 0: without the header
    std::vector<std::pair<std::string, std::string>> texts;  // more headers
    std::int64_t delivery_count = 0;                         // as above
};

class broker {
  public:
    explicit broker(std::string url) : state_(amqp_new_connection()) {
        amqp_connection_info at{};
        require(amqp_parse_url(url.data(), &at) == AMQP_STATUS_OK, "reading the URL");
        amqp_socket_t* const socket = amqp_tcp_socket_new(state_);
        require(amqp_socket_open(socket, at.host, at.port) == AMQP_STATUS_OK, "connecting");
        const char* const vhost = *at.vhost == '\0' ? "/" : at.vhost;
        const auto reply = amqp_login(state_, vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password);
        require(reply.reply_type == AMQP_RESPONSE_NORMAL, "the login");
        open_channel();
    }
    broker(const broker&) = delete;
    broker& operator=(const broker&) = delete;
    ~broker() { amqp_destroy_connection(state_); }

    void declare(const std::string& queue, const std::string& queue_type) {
        amqp_table_entry_t type = text_entry("x-queue-type", queue_type);
        amqp_queue_declare(state_, 1, bytes_of(queue), 0, 1, 0, 0, {1, &type});
        done("queue.declare");
    }
    void remove(const std::string& queue) {
        amqp_queue_delete(state_, 1, bytes_of(queue), 0, 0);
        done("queue.delete");
    }
    // Ready messages; -1: there is no such queue.
    int count(const std::string& queue) {
        const auto* const found = amqp_queue_declare(state_, 1, bytes_of(queue), 1, 0, 0, 0, amqp_empty_table);
        if (amqp_get_rpc_reply(state_).reply_type == AMQP_RESPONSE_NORMAL)
            return static_cast<int>(found->message_count);
        amqp_channel_close_ok_t closed{};
        amqp_send_method(state_, 1, AMQP_CHANNEL_CLOSE_OK_METHOD, &closed);
        open_channel();
        return -1;
    }
    // confirm() returns when the broker has all that was sent.
    void send(const std::string& queue, const message& what) {
        std::vector<amqp_table_entry_t> headers;
        if (what.attempt > 0) headers.push_back(number_entry("x-ojs-attempt", what.attempt));
        if (what.max_attempts > 0) headers.push_back(number_entry("x-ojs-max-attempts", what.max_attempts));
        if (what.delivery_count > 0) headers.push_back(number_entry("x-delivery-count", what.delivery_count));
        for (const auto& [name, value] : what.texts) headers.push_back(text_entry(name.c_str(), value));
        amqp_basic_properties_t properties{};
        properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_HEADERS_FLAG;
        properties.delivery_mode = 2;
        properties.headers = {static_cast<int>(headers.size()), headers.data()};
        set(properties, AMQP_BASIC_MESSAGE_ID_FLAG, properties.message_id, what.id);
        set(properties, AMQP_BASIC_TYPE_FLAG, properties.type, what.type);
        set(properties, AMQP_BASIC_CONTENT_TYPE_FLAG, properties.content_type, what.content_type);
        const int status =
            amqp_basic_publish(state_, 1, amqp_empty_bytes, bytes_of(queue), 1, 0, &properties, bytes_of(what.body));
        require(status == AMQP_STATUS_OK, "publishing");
        waiting_.insert(++sent_);
    }
    void confirm() {
        while (!waiting_.empty()) {
            amqp_frame_t frame;
            timeval limit{60, 0};
            require(amqp_simple_wait_frame_noblock(state_, &frame, &limit) == AMQP_STATUS_OK, "waiting for confirms");
            require(frame.payload.method.id == AMQP_BASIC_ACK_METHOD, "the confirm");
            const auto& ack = *static_cast<amqp_basic_ack_t*>(frame.payload.method.decoded);
            waiting_.erase(ack.multiple != 0 ? waiting_.begin() : waiting_.find(ack.delivery_tag),
                           waiting_.upper_bound(ack.delivery_tag));
        }
        amqp_maybe_release_buffers(state_);
    }
    void publish(const std::string& queue, const message& what) {
        send(queue, what);
        confirm();
    }
    // Takes the first message; its body, and the header x-ojs-error.
    std::pair<std::string, std::string> take(const std::string& queue) {
        const auto got = amqp_basic_get(state_, 1, bytes_of(queue), 1);
        require(got.reply.id == AMQP_BASIC_GET_OK_METHOD, "basic.get");
        amqp_message_t found;
        require(amqp_read_message(state_, 1, &found, 0).reply_type == AMQP_RESPONSE_NORMAL, "reading");
        std::pair<std::string, std::string> out = {text_of(found.body), ""};
        for (int i = 0; i < found.properties.headers.num_entries; ++i) {
            const amqp_table_entry_t& header = found.properties.headers.entries[i];
            if (text_of(header.key) == "x-ojs-error") out.second = text_of(header.value.value.bytes);
        }
        amqp_destroy_message(&found);
        return out;
    }

  private:
    static void require(bool holds, const char* what) {
        if (!holds) throw std::runtime_error(std::string(what) + " failed");
    }
    void done(const char* what) { require(amqp_get_rpc_reply(state_).reply_type == AMQP_RESPONSE_NORMAL, what); }
    void open_channel() {
        amqp_channel_open(state_, 1);
        amqp_confirm_select(state_, 1);
        done("confirm.select");
        waiting_.clear();
        sent_ = 0;
    }
    static amqp_bytes_t bytes_of(const std::string& text) { return {text.size(), const_cast<char*>(text.data())}; }
    static std::string text_of(amqp_bytes_t bytes) { return {static_cast<const char*>(bytes.bytes), bytes.len}; }
    static amqp_table_entry_t text_entry(const char* name, const std::string& text) {
        amqp_table_entry_t out{};
        out.key = amqp_cstring_bytes(name);
        out.value.kind = AMQP_FIELD_KIND_UTF8;
        out.value.value.bytes = bytes_of(text);
        return out;
    }
    static amqp_table_entry_t number_entry(const char* name, std::int64_t number) {
        amqp_table_entry_t out{};
        out.key = amqp_cstring_bytes(name);
        out.value.kind = AMQP_FIELD_KIND_I64;
        out.value.value.i64 = number;
        return out;
    }
    static void set(amqp_basic_properties_t& in, int flag, amqp_bytes_t& member, const std::string& text) {
        if (text.empty()) return;
        in._flags |= static_cast<amqp_flags_t>(flag);
        member = bytes_of(text);
    }

    amqp_connection_state_t state_;
    std::uint64_t sent_ = 0;           // on this channel
    std::set<std::uint64_t> waiting_;  // for their confirms, which come in any order
};
