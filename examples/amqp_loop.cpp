// RabbitMQ on ojs::loop, by plain librabbitmq: each consumer is a thread with a connection, and one message
// at a time.
//
//     build/amqp_loop amqp://guest:guest@localhost:5672/ QUEUE
//
// "ID MS" works for MS milliseconds, at most 60 s, and prints "done ID". What fails or is interrupted goes
// back.
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <sstream>
#include <string>

#include "ojs_shutdown.hpp"  // or ojs_shutdown_loop.hpp

namespace {

using namespace std::chrono_literals;

class rabbit_queue {
  public:
    rabbit_queue(std::string url, std::string name) : url_(std::move(url)), name_(std::move(name)) {}
    ~rabbit_queue() {
        if (is_open()) amqp_connection_close(broker_, AMQP_REPLY_SUCCESS);  // it has read the last ACK then
        drop();
    }
    std::optional<std::string> take(const ojs::cancel_token& stop) {  // a body; none once `stop` is cancelled
        while (!stop.cancelled()) {
            if ((is_open() || open()) && consume()) {
                if (auto body = read()) return body;
                wait(stop);
            } else {
                drop();
                if (stop.sleep_for(pause_)) pause_ = std::min(pause_ * 2, 5000ms);
            }
        }
        keep_alive();
        return std::nullopt;
    }
    void keep_alive() {  // ends the consumer; a message that crosses with the cancel goes back
        if (consuming_) amqp_basic_cancel(broker_, 1, amqp_cstring_bytes("loop"));
        if (std::exchange(consuming_, false) && !is_ok()) return drop();
        while (read()) settle(false);
    }
    void settle(bool done) {  // without its connection the broker delivers it again
        if (!is_open()) return;
        if ((done ? amqp_basic_ack(broker_, 1, tag_, 0) : amqp_basic_nack(broker_, 1, tag_, 0, 1)) != 0)
            drop();
    }

  private:
    bool is_open() const { return broker_ != nullptr; }
    bool is_ok() const { return amqp_get_rpc_reply(broker_).reply_type == AMQP_RESPONSE_NORMAL; }
    bool open() {
        amqp_connection_info at{};
        std::string url = url_;
        if (amqp_parse_url(url.data(), &at) != AMQP_STATUS_OK) return false;
        broker_ = amqp_new_connection();
        timeval limit{5, 0};
        amqp_set_rpc_timeout(broker_, &limit);
        if (amqp_socket_open_noblock(amqp_tcp_socket_new(broker_), at.host, at.port, &limit) != 0)
            return false;
        // Without heartbeats: nobody sends them while this thread works on a message.
        const char* const vhost = *at.vhost == '\0' ? "/" : at.vhost;
        const auto reply =
            amqp_login(broker_, vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password);
        return reply.reply_type == AMQP_RESPONSE_NORMAL && amqp_channel_open(broker_, 1) != nullptr &&
               amqp_basic_qos(broker_, 1, 0, 1, 0) != nullptr;
    }
    bool consume() {
        if (consuming_) return true;
        const amqp_bytes_t name = amqp_cstring_bytes(name_.c_str());
        amqp_basic_consume(broker_, 1, name, amqp_cstring_bytes("loop"), 0, 0, 0, amqp_empty_table);
        if (is_ok()) pause_ = 100ms;
        return consuming_ = is_ok();
    }
    std::optional<std::string> read() {
        if (!is_open()) return std::nullopt;
        amqp_maybe_release_buffers(broker_);
        amqp_envelope_t envelope;
        timeval none{0, 0};
        const amqp_rpc_reply_t got = amqp_consume_message(broker_, &envelope, &none, 0);
        const bool is_broken = got.library_error != 0 && got.library_error != AMQP_STATUS_TIMEOUT;
        if (is_broken || got.reply_type == AMQP_RESPONSE_SERVER_EXCEPTION) drop();
        if (got.reply_type != AMQP_RESPONSE_NORMAL) return std::nullopt;
        tag_ = envelope.delivery_tag;
        std::string body(static_cast<char*>(envelope.message.body.bytes), envelope.message.body.len);
        amqp_destroy_envelope(&envelope);
        return body;
    }
    void wait(const ojs::cancel_token& stop) const {
        const ojs::result<int> stopped = stop.fd();
        if (!is_open() || !stopped || amqp_frames_enqueued(broker_) || amqp_data_in_buffer(broker_)) return;
        pollfd both[] = {{amqp_get_sockfd(broker_), POLLIN, 0}, {*stopped, POLLIN, 0}};
        poll(both, 2, 1000);
    }
    void drop() {
        if (is_open()) amqp_destroy_connection(broker_);
        broker_ = nullptr;
        consuming_ = false;
    }

    const std::string url_, name_;
    amqp_connection_state_t broker_ = nullptr;
    bool consuming_ = false;
    std::uint64_t tag_ = 0;  // of the message that was read last
    std::chrono::milliseconds pause_{100};
};

// False: it failed, or was interrupted.
bool handle(const std::string& body, const ojs::cancel_token& interrupt) {
    std::string id, work;
    std::istringstream(body) >> id >> work;
    const bool fails = work == "fail";
    const std::chrono::milliseconds time(fails ? 1000 : std::clamp(std::atoi(work.c_str()), 0, 60000));
    if (!interrupt.sleep_for(time) || fails) return false;
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return true;
}

void consume(ojs::slot& slot, const char* url, const char* name) {
    rabbit_queue queue(url, name);
    while (slot.next([&] { queue.keep_alive(); })) {
        const auto body = queue.take(slot.taking());
        if (!body) continue;
        const ojs::item item = slot.begin(body->substr(0, body->find(' ')));
        queue.settle(handle(*body, item.token()));
    }
}

}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    if (argc != 3) return ojs::report_usage({ojs::errc::invalid_argument, 0, "usage: amqp_loop URL QUEUE"});
    loop.consumers(0, [&](ojs::slot& slot) { consume(slot, argv[1], argv[2]); });
    return loop.run();
}
