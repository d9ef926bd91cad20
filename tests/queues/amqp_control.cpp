// The control of the chaos test: the loop of librabbitmq's own example amqp_consumer.c (no_ack=1), with a
// handler.
//
//     amqp_control URL QUEUE [ack]    ack: with no_ack=0, and an acknowledgement after the handler
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

amqp_connection_state_t connect(std::string url) {
    amqp_connection_info at{};
    if (amqp_parse_url(url.data(), &at) != AMQP_STATUS_OK) return nullptr;
    amqp_connection_state_t broker = amqp_new_connection();
    amqp_socket_t* const socket = amqp_tcp_socket_new(broker);
    if (amqp_socket_open(socket, at.host, at.port) != AMQP_STATUS_OK) return nullptr;
    const char* const vhost = *at.vhost == '\0' ? "/" : at.vhost;
    const auto reply = amqp_login(broker, vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password);
    if (reply.reply_type != AMQP_RESPONSE_NORMAL) return nullptr;
    amqp_channel_open(broker, 1);
    return amqp_get_rpc_reply(broker).reply_type == AMQP_RESPONSE_NORMAL ? broker : nullptr;
}

// "ID MS": works for MS milliseconds. "ID fail": fails.
bool handle(const std::string& body) {
    const std::size_t blank = body.find(' ');
    const std::string work = blank == std::string::npos ? "0" : body.substr(blank + 1);
    if (work == "fail") return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(work.c_str())));
    const std::string line = "done " + body.substr(0, blank) + "\n";
    return write(STDOUT_FILENO, line.data(), line.size()) > 0;
}

}  // namespace

int main(int argc, char** argv) {
    const bool acks = argc == 4 && std::string(argv[3]) == "ack";
    if (argc < 3 || argc > 4 || (argc == 4 && !acks)) return 64;
    amqp_connection_state_t broker = connect(argv[1]);
    if (broker == nullptr) return 1;
    amqp_basic_consume(broker, 1, amqp_cstring_bytes(argv[2]), amqp_empty_bytes, 0, acks ? 0 : 1, 0,
                       amqp_empty_table);
    if (amqp_get_rpc_reply(broker).reply_type != AMQP_RESPONSE_NORMAL) return 1;
    for (;;) {
        amqp_maybe_release_buffers(broker);
        amqp_envelope_t envelope;
        if (amqp_consume_message(broker, &envelope, nullptr, 0).reply_type != AMQP_RESPONSE_NORMAL) return 1;
        const std::string body(static_cast<char*>(envelope.message.body.bytes), envelope.message.body.len);
        const bool done = handle(body);
        if (acks && done) amqp_basic_ack(broker, 1, envelope.delivery_tag, 0);
        if (acks && !done) amqp_basic_nack(broker, 1, envelope.delivery_tag, 0, 1);
        amqp_destroy_envelope(&envelope);
    }
}
