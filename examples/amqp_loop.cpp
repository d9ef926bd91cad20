// RabbitMQ on ojs::loop, by plain librabbitmq: each consumer is a thread with a connection, and one message at a time.
//
//     build/amqp_loop amqp://guest:guest@localhost:5672/ QUEUE
//
// "ID MS" works for MS milliseconds, at most 60 s, and prints "done ID". What fails or is interrupted goes back.
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

struct message {
    std::uint64_t tag = 0;
    std::string body;
};

class rabbit_queue {
  public:
    rabbit_queue(std::string url, std::string name) : url_(std::move(url)), name_(std::move(name)) {}
    ~rabbit_queue() {
        if (broker_ != nullptr)
            amqp_connection_close(broker_, AMQP_REPLY_SUCCESS);  // it has read the last ACK then
        drop();
    }
    std::optional<message> take(const ojs::cancel_token& stop) {  // none once `stop` is cancelled
        while (!stop.cancelled()) {
            if ((broker_ != nullptr || open()) && consume()) {
                if (auto got = read()) return got;
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
        while (const auto crossed = read()) settle(*crossed, false);
    }
    void settle(const message& of, bool done) {  // without its connection the broker delivers it again
        if (broker_ == nullptr) return;
        const auto tag = of.tag;
        if ((done ? amqp_basic_ack(broker_, 1, tag, 0) : amqp_basic_nack(broker_, 1, tag, 0, 1)) != 0) drop();
    }

  private:
    bool is_ok() const { return amqp_get_rpc_reply(broker_).reply_type == AMQP_RESPONSE_NORMAL; }
    bool open() {
        amqp_connection_info at{};
        std::string url = url_;
        if (amqp_parse_url(url.data(), &at) != AMQP_STATUS_OK) return false;
        broker_ = amqp_new_connection();
        timeval limit{5, 0};
        amqp_set_handshake_timeout(broker_, &limit);
        amqp_set_rpc_timeout(broker_, &limit);
        amqp_socket_t* const socket = amqp_tcp_socket_new(broker_);
        if (amqp_socket_open_noblock(socket, at.host, at.port, &limit) != AMQP_STATUS_OK) return false;
        // Without heartbeats: nobody sends them while this thread works on a message.
        const char* const vhost = *at.vhost == '\0' ? "/" : at.vhost;
        const auto reply =
            amqp_login(broker_, vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, at.user, at.password);
        return reply.reply_type == AMQP_RESPONSE_NORMAL && amqp_channel_open(broker_, 1) != nullptr &&
               amqp_basic_qos(broker_, 1, 0, 1, 0) != nullptr;
    }
    bool consume() {
        if (consuming_) return true;
        amqp_basic_consume(broker_, 1, amqp_cstring_bytes(name_.c_str()), amqp_cstring_bytes("loop"), 0, 0, 0,
                           {0, nullptr});
        if (is_ok()) pause_ = 100ms;
        return consuming_ = is_ok();
    }
    std::optional<message> read() {
        if (broker_ == nullptr) return std::nullopt;
        amqp_maybe_release_buffers(broker_);
        amqp_envelope_t envelope;
        timeval none{0, 0};
        const amqp_rpc_reply_t got = amqp_consume_message(broker_, &envelope, &none, 0);
        if (got.reply_type != AMQP_RESPONSE_NORMAL && got.library_error != AMQP_STATUS_TIMEOUT) drop();
        if (got.reply_type != AMQP_RESPONSE_NORMAL) return std::nullopt;
        const amqp_bytes_t body = envelope.message.body;
        message out{envelope.delivery_tag, std::string(static_cast<char*>(body.bytes), body.len)};
        amqp_destroy_envelope(&envelope);
        return out;
    }
    void wait(const ojs::cancel_token& stop) const {
        const ojs::result<int> stopped = stop.fd();
        if (broker_ == nullptr || !stopped || amqp_frames_enqueued(broker_) || amqp_data_in_buffer(broker_))
            return;
        pollfd both[] = {{amqp_get_sockfd(broker_), POLLIN, 0}, {*stopped, POLLIN, 0}};
        poll(both, 2, 1000);
    }
    void drop() {
        if (broker_ != nullptr) amqp_destroy_connection(broker_);
        broker_ = nullptr;
        consuming_ = false;
    }

    const std::string url_, name_;
    amqp_connection_state_t broker_ = nullptr;
    bool consuming_ = false;
    std::chrono::milliseconds pause_{100};
};

// False: it failed, or was interrupted.
bool handle(const std::string& id, const std::string& work, const ojs::cancel_token& interrupt) {
    const bool fails = work == "fail";
    const std::chrono::milliseconds time(fails ? 1000 : std::clamp(std::atoi(work.c_str()), 0, 60000));
    if (!interrupt.sleep_for(time) || fails) return false;
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return true;
}

void consume(ojs::slot& slot, rabbit_queue& queue) {
    while (slot.next([&] { queue.keep_alive(); })) {
        const auto taken = queue.take(slot.taking());
        if (!taken) continue;
        const std::size_t blank = std::min(taken->body.find(' '), taken->body.size());
        const ojs::item item = slot.begin(taken->body.substr(0, blank));
        queue.settle(*taken,
                     handle(taken->body.substr(0, blank),
                            taken->body.substr(std::min(blank + 1, taken->body.size())), item.token()));
    }
}

}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    if (argc != 3) return ojs::report_usage({ojs::errc::invalid_argument, 0, "usage: amqp_loop URL QUEUE"});
    loop.consumers(0, [&](ojs::slot& slot) {
        rabbit_queue queue(argv[1], argv[2]);
        consume(slot, queue);
    });
    return loop.run();
}
