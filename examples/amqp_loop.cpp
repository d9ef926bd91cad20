// RabbitMQ on ojs::loop, by plain librabbitmq: each thread has a connection, and one message at a time.
//     build/amqp_loop amqp://guest:guest@localhost:5672/ QUEUE
// "ID MS" works for MS milliseconds, at most 60 s, and prints "done ID". If not, the message goes back.
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include "ojs_shutdown.hpp"  // or ojs_shutdown_loop.hpp

namespace {
using namespace std::chrono_literals;

class rabbit_queue {
  public:
    rabbit_queue(std::string url, std::string name) : url_(std::move(url)), name_(std::move(name)) {}
    ~rabbit_queue() {
        if (broker_) amqp_connection_close(broker_, AMQP_REPLY_SUCCESS);  // it has read the last ACK then
        drop();
    }
    std::optional<std::string> take(const ojs::cancel_token& stop) {  // a body; none once `stop` is cancelled
        while (!stop.cancelled()) {
            if ((broker_ || open(url_)) && (consuming_ || consume())) {
                if (auto body = read()) return body;
                wait(stop);
            } else if (drop(); !stop.sleep_for(1s)) {
                break;
            }
        }
        keep_alive();
        return std::nullopt;
    }
    void keep_alive() {  // ends the consumer; a message that crosses with the cancel goes back
        if (std::exchange(consuming_, false) && !amqp_basic_cancel(broker_, 1, tag)) drop();
        while (read()) settle(false);
    }
    void settle(bool done) {  // without its connection the broker delivers it again
        if (broker_ && (done ? amqp_basic_ack(broker_, 1, tag_, 0) : amqp_basic_nack(broker_, 1, tag_, 0, 1))) drop();
    }

  private:
    bool open(std::string url) {
        amqp_connection_info at{};
        if (amqp_parse_url(url.data(), &at) != AMQP_STATUS_OK) return false;
        broker_ = amqp_new_connection();
        timeval limit{5, 0};
        amqp_set_rpc_timeout(broker_, &limit);
        if (amqp_socket_open_noblock(amqp_tcp_socket_new(broker_), at.host, at.port, &limit)) return false;
        // Without heartbeats: nobody sends them while this thread works on a message.
        const auto reply =
            amqp_login(broker_, *at.vhost ? at.vhost : "/", 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password);
        return reply.reply_type == AMQP_RESPONSE_NORMAL && amqp_channel_open(broker_, 1) &&
               amqp_basic_qos(broker_, 1, 0, 1, 0);
    }
    bool consume() {
        const amqp_bytes_t name = amqp_cstring_bytes(name_.c_str());
        return consuming_ = amqp_basic_consume(broker_, 1, name, tag, 0, 0, 0, amqp_empty_table);
    }
    std::optional<std::string> read() {
        if (!broker_) return std::nullopt;
        amqp_maybe_release_buffers(broker_);
        amqp_envelope_t envelope;
        timeval none{0, 0};
        const amqp_rpc_reply_t got = amqp_consume_message(broker_, &envelope, &none, 0);
        const bool is_read = got.reply_type == AMQP_RESPONSE_NORMAL;
        if (!is_read && got.library_error != AMQP_STATUS_TIMEOUT) drop();
        if (!is_read) return std::nullopt;
        tag_ = envelope.delivery_tag;
        std::string body(static_cast<char*>(envelope.message.body.bytes), envelope.message.body.len);
        amqp_destroy_envelope(&envelope);
        return body;
    }
    void wait(const ojs::cancel_token& stop) const {
        const ojs::result<int> stopped = stop.fd();
        if (!broker_ || !stopped || amqp_frames_enqueued(broker_) || amqp_data_in_buffer(broker_)) return;
        pollfd both[] = {{amqp_get_sockfd(broker_), POLLIN, 0}, {*stopped, POLLIN, 0}};
        poll(both, 2, 1000);
    }
    void drop() {
        if (broker_) amqp_destroy_connection(std::exchange(broker_, nullptr));
        consuming_ = false;
    }

    const amqp_bytes_t tag = amqp_cstring_bytes("loop");  // of its consumer
    const std::string url_, name_;
    amqp_connection_state_t broker_ = nullptr;
    bool consuming_ = false;
    std::uint64_t tag_ = 0;  // of the message that was read last
};

// False: it failed, or was interrupted.
bool handle(const std::string& body, const ojs::cancel_token& interrupt) {
    const std::string id = body.substr(0, body.find(' ')), work = body.substr(id.size());
    const bool fails = work == " fail";
    if (!interrupt.sleep_for(1ms * (fails ? 1000 : std::clamp(std::atoi(work.c_str()), 0, 60000))) || fails)
        return false;
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return true;
}
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    if (argc != 3) return ojs::report_usage({ojs::errc::invalid_argument, 0, "usage: amqp_loop URL QUEUE"});
    loop.consumers(0, [&](ojs::slot& slot) {
        rabbit_queue queue(argv[1], argv[2]);
        while (slot.next([&] { queue.keep_alive(); })) {
            if (const auto body = queue.take(slot.taking())) {
                const ojs::item item = slot.begin(body->substr(0, body->find(' ')));
                queue.settle(handle(*body, item.token()));
            }
        }
    });
    return loop.run();
}
