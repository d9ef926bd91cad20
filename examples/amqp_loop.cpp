// RabbitMQ on ojs::loop, by plain librabbitmq: each thread has a connection, and one message at a time.
//     build/amqp_loop amqp://guest:guest@localhost:5672/ QUEUE
// "ID MS" works for MS milliseconds, at most 60 s, and prints "done ID". If not, the message goes back.
#include <amqp.h>
#include <amqp_tcp_socket.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <list>
#include <mutex>
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
    // While a message is handled, on another thread: sends heartbeats, and reads the broker's.
    void beat() {
        const std::lock_guard<std::mutex> busy(mutex_);
        amqp_frame_t frame;
        const timeval none{0, 0};
        if (handles_ && amqp_simple_wait_frame_noblock(broker_, &frame, &none) != AMQP_STATUS_TIMEOUT) drop();
    }
    std::optional<std::string> take(const ojs::cancel_token& stop) {  // a body; none once `stop` is cancelled
        while (!stop.cancelled()) {
            if ((broker_ || open(url_)) && (consuming_ || consume())) {
                if (auto body = read()) return set_handling(broker_ != nullptr), body;
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
        set_handling(false);
        if (broker_ && (done ? amqp_basic_ack(broker_, 1, tag_, 0) : amqp_basic_nack(broker_, 1, tag_, 0, 1))) drop();
    }

  private:
    void set_handling(bool handles) {
        const std::lock_guard<std::mutex> busy(mutex_);
        handles_ = handles;
    }
    bool open(std::string url) {
        amqp_connection_info at{};
        if (amqp_parse_url(url.data(), &at) != AMQP_STATUS_OK) return false;
        broker_ = amqp_new_connection();
        timeval limit{5, 0};
        amqp_set_rpc_timeout(broker_, &limit);
        if (amqp_socket_open_noblock(amqp_tcp_socket_new(broker_), at.host, at.port, &limit)) return false;
        // The broker tells of a deleted queue only those who ask for it.
        amqp_table_entry_t wish{}, wishes{};
        wish.key = amqp_cstring_bytes("consumer_cancel_notify");
        wish.value.kind = AMQP_FIELD_KIND_BOOLEAN;
        wish.value.value.boolean = 1;
        wishes.key = amqp_cstring_bytes("capabilities");
        wishes.value.kind = AMQP_FIELD_KIND_TABLE;
        wishes.value.value.table = {1, &wish};
        const amqp_table_t properties{1, &wishes};
        const auto reply = amqp_login_with_properties(broker_, *at.vhost ? at.vhost : "/", 0, 131072, heartbeat,
                                                      &properties, AMQP_SASL_METHOD_PLAIN, at.user, at.password);
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

    static constexpr int heartbeat = 10;                  // seconds; silent for twice as long, a connection is left
    const amqp_bytes_t tag = amqp_cstring_bytes("loop");  // of its consumer
    const std::string url_, name_;
    amqp_connection_state_t broker_ = nullptr;
    bool consuming_ = false;
    std::uint64_t tag_ = 0;  // of the message that was read last
    std::mutex mutex_;       // the other thread uses the connection while handles_
    bool handles_ = false;
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
    if (argc != 3) return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: amqp_loop URL QUEUE"});
    std::mutex mutex;
    std::list<rabbit_queue*> queues;
    loop.on_renew(5s, [&](const std::vector<std::string>&) {
        const std::lock_guard<std::mutex> all(mutex);
        for (rabbit_queue* each : queues) each->beat();
        return std::vector<std::string>();  // a lost connection is noticed when its message is settled
    });
    loop.add_consumers(0, [&](ojs::consumer& consumer) {
        rabbit_queue queue(argv[1], argv[2]);
        std::unique_lock<std::mutex> all(mutex);
        queues.push_back(&queue);
        all.unlock();
        while (consumer.next([&] { queue.keep_alive(); })) {
            if (const auto body = queue.take(consumer.intake_token())) {
                const ojs::item item = consumer.begin(body->substr(0, body->find(' ')));
                queue.settle(handle(*body, item.token()));
            }
        }
        all.lock();
        queues.remove(&queue);
    });
    return loop.run();
}
