// A Kafka consumer that commits only what is done: eight handlers share one member of its group.
//
//     build/kafka_loop BROKERS TOPIC [GROUP]        messages are "ID MS" (milliseconds of work) or "ID fail"
//
// SIGTERM: no message starts, those in flight finish, their offsets are committed, and the member leaves
// once. Again or when the grace period ends: handlers are interrupted; nothing behind their messages is
// committed. A message that fails three times goes to TOPIC.dead. Exit status 75 also if Kafka did not
// confirm the last commit.
#include <unistd.h>

#include <cstdlib>

#include "kafka_consumer.hpp"

namespace {

using namespace std::chrono_literals;

// Sends to the dead-letter topic, one message at a time.
class dead_letters {
  public:
    dead_letters(const std::string& brokers, std::string topic) : topic_(std::move(topic)) {
        rd_kafka_conf_t* const conf = rd_kafka_conf_new();
        rd_kafka_conf_set_dr_msg_cb(conf, [](rd_kafka_t*, const rd_kafka_message_t* sent, void* self) {
            static_cast<dead_letters*>(self)->is_sent_ = sent->err == RD_KAFKA_RESP_ERR_NO_ERROR;
        });
        client_ = kafka_client(RD_KAFKA_PRODUCER, conf, this,
                               {{"bootstrap.servers", brokers}, {"message.timeout.ms", "4000"}});
    }
    ~dead_letters() { rd_kafka_destroy(client_); }
    // Throws, which ends the loop with 70: else nothing behind the message is ever committed.
    void put(std::string body) {
        const std::lock_guard<std::mutex> lock(mutex_);
        is_sent_ = false;
        rd_kafka_producev(client_, RD_KAFKA_VTYPE_TOPIC, topic_.c_str(), RD_KAFKA_VTYPE_VALUE, &body[0],
                          body.size(), RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY, RD_KAFKA_VTYPE_END);
        rd_kafka_flush(client_, 5000);  // message.timeout.ms is less
        if (!is_sent_) throw std::runtime_error("cannot send to " + topic_);
    }

  private:
    const std::string topic_;
    std::mutex mutex_;
    bool is_sent_ = false;
    rd_kafka_t* client_;
};

// False: interrupted. It may be called again for the same message.
bool process(const std::string& body, const ojs::cancel_token& interrupt, dead_letters& dead) {
    const std::string id = body.substr(0, body.find(' '));
    const std::string work = body.substr(std::min(id.size() + 1, body.size()));
    for (int attempt = 1; work == "fail"; ++attempt) {
        if (attempt == 3) return dead.put(body), true;
        if (!interrupt.sleep_for(attempt * 100ms)) return false;
    }
    const std::chrono::milliseconds time(std::min(std::atoi(work.c_str()), 60000));
    if (!interrupt.sleep_for(time)) return false;
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return true;
}

void handle(ojs::slot& slot, kafka_consumer& kafka, dead_letters& dead) {
    while (slot.next([&] { kafka.keep_alive(); })) {
        auto message = kafka.take(slot.taking());
        if (message.id.empty()) continue;
        const ojs::item item = slot.begin(message.id);
        if (process(message.body, item.token(), dead)) message.ticket.done();
    }
}

int usage() {
    return ojs::report_usage({ojs::errc::invalid_argument, 0, "usage: kafka_loop BROKERS TOPIC [GROUP]"});
}

}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    if (argc < 3 || argc > 4) return usage();
    kafka_consumer kafka(loop, argv[1], argv[2], argc > 3 ? argv[3] : "workers");
    dead_letters dead(argv[1], std::string(argv[2]) + ".dead");
    bool is_committed = false;
    loop.consumers(8, [&](ojs::slot& slot) { handle(slot, kafka, dead); });
    loop.renew(1s, [&](const auto&) { return kafka.keep_alive(), std::vector<std::string>(); });
    loop.on_shutdown("leave the group", [&] { is_committed = kafka.leave(ojs::deadline_after(3s)); });
    const int status = loop.run();
    return status == 0 && !is_committed ? 75 : status;
}
