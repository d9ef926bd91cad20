// Declares, fills, counts and deletes RabbitMQ's queues. It does not use the library under test.
//
//     amqp_tool URL declare QUEUE classic|quorum    durable
//     amqp_tool URL publish QUEUE                   each line of stdin; message-id: its first word
//     amqp_tool URL count QUEUE                     messages that are ready
//     amqp_tool URL delete QUEUE
#include <amqp.h>
#include <amqp_tcp_socket.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <set>
#include <string>

namespace {

amqp_connection_state_t broker;

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "amqp_tool: %s failed\n", what);
    std::exit(1);
}
void require_reply(const char* what) {
    const amqp_rpc_reply_t reply = amqp_get_rpc_reply(broker);
    if (reply.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION && reply.reply.id == AMQP_CHANNEL_CLOSE_METHOD) {
        const auto* const closed = static_cast<amqp_channel_close_t*>(reply.reply.decoded);
        std::fprintf(stderr, "%.*s\n", static_cast<int>(closed->reply_text.len),
                     static_cast<const char*>(closed->reply_text.bytes));
    }
    require(reply.reply_type == AMQP_RESPONSE_NORMAL, what);
}
amqp_bytes_t bytes_of(const std::string& text) {
    return {text.size(), const_cast<char*>(text.data())};
}

void connect(std::string url) {
    amqp_connection_info at{};
    require(amqp_parse_url(url.data(), &at) == AMQP_STATUS_OK, "reading the URL");
    broker = amqp_new_connection();
    amqp_socket_t* const socket = amqp_tcp_socket_new(broker);
    require(amqp_socket_open(socket, at.host, at.port) == AMQP_STATUS_OK, "connecting");
    const char* const vhost = *at.vhost == '\0' ? "/" : at.vhost;
    const auto reply = amqp_login(broker, vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password);
    require(reply.reply_type == AMQP_RESPONSE_NORMAL, "the login");
    amqp_channel_open(broker, 1);
    require_reply("opening a channel");
}

void declare(const std::string& queue, const std::string& type) {
    amqp_table_entry_t argument{};
    argument.key = amqp_cstring_bytes("x-queue-type");
    argument.value.kind = AMQP_FIELD_KIND_UTF8;
    argument.value.value.bytes = bytes_of(type);
    amqp_queue_declare(broker, 1, bytes_of(queue), 0, 1, 0, 0, {1, &argument});
    require_reply("declaring the queue");
}

void await_confirms(std::uint64_t count) {
    std::set<std::uint64_t> waiting;  // single confirms come in any order
    for (std::uint64_t tag = 1; tag <= count; ++tag) waiting.insert(waiting.end(), tag);
    while (!waiting.empty()) {
        amqp_frame_t frame;
        timeval limit{60, 0};
        require(amqp_simple_wait_frame_noblock(broker, &frame, &limit) == AMQP_STATUS_OK,
                "waiting for confirms");
        require(frame.payload.method.id == AMQP_BASIC_ACK_METHOD, "publishing");
        const auto& ack = *static_cast<amqp_basic_ack_t*>(frame.payload.method.decoded);
        waiting.erase(ack.multiple != 0 ? waiting.begin() : waiting.find(ack.delivery_tag),
                      waiting.upper_bound(ack.delivery_tag));
    }
}
// Each thousand on a channel of its own, whose confirms are all awaited.
void publish(const std::string& queue) {
    std::uint64_t count = 0;
    for (std::string line; std::getline(std::cin, line); ++count) {
        if (count % 1000 == 0) {
            if (count > 0) await_confirms(1000);
            amqp_channel_close(broker, 1, AMQP_REPLY_SUCCESS);
            amqp_channel_open(broker, 1);
            amqp_confirm_select(broker, 1);
            require_reply("confirm.select");
        }
        const std::string id = line.substr(0, line.find(' '));
        amqp_basic_properties_t properties{};
        properties._flags = AMQP_BASIC_DELIVERY_MODE_FLAG | AMQP_BASIC_MESSAGE_ID_FLAG;
        properties.delivery_mode = 2;
        properties.message_id = bytes_of(id);
        const int status = amqp_basic_publish(broker, 1, amqp_empty_bytes, bytes_of(queue), 1, 0, &properties,
                                              bytes_of(line));
        require(status == AMQP_STATUS_OK, "publishing");
    }
    if (count > 0) await_confirms((count - 1) % 1000 + 1);
    std::printf("%llu\n", static_cast<unsigned long long>(count));
}

void print_count(const std::string& queue) {
    const auto* const found = amqp_queue_declare(broker, 1, bytes_of(queue), 1, 0, 0, 0, amqp_empty_table);
    require_reply("counting");
    std::printf("%u\n", found->message_count);
}

}  // namespace

int main(int argc, char** argv) {
    const std::string command = argc > 3 ? argv[2] : "";
    const bool declares = command == "declare" && argc == 5;
    require(declares || ((command == "publish" || command == "count" || command == "delete") && argc == 4),
            "usage: amqp_tool URL declare QUEUE classic|quorum, or URL publish|count|delete QUEUE:");
    connect(argv[1]);
    if (declares) declare(argv[3], argv[4]);
    if (command == "publish") publish(argv[3]);
    if (command == "count") print_count(argv[3]);
    if (command == "delete") {
        amqp_queue_delete(broker, 1, amqp_cstring_bytes(argv[3]), 0, 0);
        require_reply("deleting the queue");
    }
    amqp_connection_close(broker, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(broker);
    return 0;
}
