// A Kafka consumer that commits only what is done: OJS_CONCURRENCY handlers share one member of its group.
//
//     build/kafka_loop BROKERS TOPIC [GROUP]        needs librdkafka 1.6
//
// Messages are "ID MS" (milliseconds of work) or "ID fail": that one goes to TOPIC.dead after three attempts.
// SIGTERM: no message starts, those in flight finish, their offsets are committed, and the member leaves
// once. Again or when the grace period ends: handlers are interrupted; nothing behind their messages is
// committed. Exit status 75 also if Kafka did not confirm the last commit.
#include <librdkafka/rdkafka.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "ojs_ledger.hpp"

namespace {
using namespace std::chrono_literals;
using settings = std::initializer_list<std::pair<const char*, std::string>>;
using partition_list = rd_kafka_topic_partition_list_t;

// Throws std::runtime_error. The callbacks of `conf` get `self`.
rd_kafka_t* connect(rd_kafka_type_t type, rd_kafka_conf_t* conf, void* self, const settings& all) {
    char why[512] = "";
    rd_kafka_conf_set_opaque(conf, self);
    for (const auto& [name, value] : all)
        if (rd_kafka_conf_set(conf, name, value.c_str(), why, sizeof why) != RD_KAFKA_CONF_OK)
            throw std::runtime_error(why);
    rd_kafka_t* const client = rd_kafka_new(type, conf, why, sizeof why);
    return client != nullptr ? client : throw std::runtime_error(why);
}

struct owned_list : std::unique_ptr<partition_list, decltype(&rd_kafka_topic_partition_list_destroy)> {
    owned_list() : unique_ptr(rd_kafka_topic_partition_list_new(8), rd_kafka_topic_partition_list_destroy) {}
};

// Thread-safe: each call takes a mutex, in which librdkafka may call rebalance().
class kafka_member {
  public:
    struct message {
        std::string id;  // PARTITION/OFFSET; empty: none
        std::string body;
        ojs::completion_ledger::ticket ticket;  // destroyed without done(): Kafka delivers the message again
    };

    kafka_member(const std::string& brokers, std::string topic, const std::string& group) : topic_(std::move(topic)) {
        rd_kafka_conf_t* const conf = rd_kafka_conf_new();
        rd_kafka_conf_set_rebalance_cb(
            conf, [](rd_kafka_t*, rd_kafka_resp_err_t change, partition_list* partitions, void* self) {
                static_cast<kafka_member*>(self)->rebalance(change, partitions);
            });
        client_ = connect(RD_KAFKA_CONSUMER, conf, this,
                          {{"bootstrap.servers", brokers},
                           {"group.id", group},
                           {"auto.offset.reset", "earliest"},
                           {"enable.auto.offset.store", "false"},  // true: commits what was taken
                           {"auto.commit.interval.ms", "100"},     // what is stored, in the background
                           {"heartbeat.interval.ms", "500"},       // its response announces a rebalance
                           {"session.timeout.ms", "6000"},
                           // A rebalance interrupts only the partitions that move.
                           {"partition.assignment.strategy", "cooperative-sticky"}});
        rd_kafka_poll_set_consumer(client_);
        const owned_list topics;
        rd_kafka_topic_partition_list_add(topics.get(), topic_.c_str(), RD_KAFKA_PARTITION_UA);
        rd_kafka_subscribe(client_, topics.get());
    }
    // Waits for a message, at most 100 ms: nothing else ends the wait. Throws if it is out of memory.
    message take(const ojs::cancel_token& stop) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return stop.cancelled() ? message() : poll(100, false);
    }
    // Serves the group while no handler does: all are busy, the loop is quiet, or it drains.
    void keep_alive() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (ojs::steady_clock::now() - polled_at_ > 1s) poll(0, true);  // takes none
    }
    // Once: waits for the handlers, 6 s for the last commit, but 1.5 s from an interrupt, and leaves the
    // group. False: Kafka did not confirm the commit.
    bool leave(const ojs::cancel_token& interrupt) {
        std::unique_lock<std::mutex> lock(mutex_);
        ojs::time_point end = ojs::time_point::max();
        const auto wait_until = [&](auto is_ready) {
            while (!is_ready()) {
                if (interrupt.cancelled()) end = std::min(end, ojs::deadline_after(1500ms));
                if (ojs::steady_clock::now() >= end) return;
                poll(0, true);
                lock.unlock();  // for the handlers
                std::this_thread::sleep_for(10ms);
                lock.lock();
            }
        };
        has_lost_ = false;
        wait_until([this] { return is_idle(); });
        end = std::min(end, ojs::deadline_after(6s));
        wait_until([this] { return is_committed(); });  // the client commits once a rebalance has ended
        return !has_lost_ && is_committed() && rd_kafka_consumer_close(client_) == RD_KAFKA_RESP_ERR_NO_ERROR;
    }

  private:
    message poll(int milliseconds, bool is_paused) {
        partition_list* assigned = nullptr;
        // Only at a change: a partition that is resumed, but was not paused, delivers messages again.
        if (std::exchange(is_paused_, is_paused) != is_paused && rd_kafka_assignment(client_, &assigned) == 0) {
            (is_paused ? rd_kafka_pause_partitions : rd_kafka_resume_partitions)(client_, assigned);
            rd_kafka_topic_partition_list_destroy(assigned);
        }
        rd_kafka_offsets_store(client_, positions().get());
        const std::unique_ptr<rd_kafka_message_t, decltype(&rd_kafka_message_destroy)> taken(
            rd_kafka_consumer_poll(client_, milliseconds), rd_kafka_message_destroy);
        polled_at_ = ojs::steady_clock::now();
        if (!taken) return {};
        if (taken->err == RD_KAFKA_RESP_ERR_NO_ERROR) return begin(*taken);
        ojs::write_log_line(STDERR_FILENO, rd_kafka_message_errstr(taken.get()));
        return {};
    }
    message begin(const rd_kafka_message_t& taken) {
        auto ticket = ledgers_[taken.partition].begin(static_cast<std::uint64_t>(taken.offset));
        if (!ticket) throw std::runtime_error(ticket.error().text);
        return {std::to_string(taken.partition) + "/" + std::to_string(taken.offset),
                {static_cast<const char*>(taken.payload), taken.len},
                std::move(*ticket)};
    }
    void rebalance(rd_kafka_resp_err_t change, partition_list* partitions) {
        if (change == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {
            rd_kafka_error_destroy(rd_kafka_incremental_assign(client_, partitions));
            if (is_paused_) rd_kafka_pause_partitions(client_, partitions);
            return;
        }
        const bool is_lost = rd_kafka_assignment_lost(client_) != 0;  // too late to commit
        const auto end = ojs::deadline_after(is_lost ? 0s : 5s);
        for (int i = 0; i < partitions->cnt; ++i) {
            auto& ledger = ledgers_[partitions->elems[i].partition];
            while (ledger.in_flight() > 0 && ojs::steady_clock::now() < end) std::this_thread::sleep_for(5ms);
        }
        rd_kafka_offsets_store(client_, positions().get());
        has_lost_ = has_lost_ || (is_lost && !is_committed());
        for (int i = 0; i < partitions->cnt; ++i) ledgers_[partitions->elems[i].partition].forget();
        rd_kafka_error_destroy(rd_kafka_incremental_unassign(client_, partitions));  // commits what is stored
    }
    // Asks the broker, for 200 ms.
    bool is_committed() const {
        const owned_list wanted = positions(), committed = positions();
        if (wanted->cnt > 0 && rd_kafka_committed(client_, committed.get(), 200) != 0) return false;
        return std::equal(wanted->elems, wanted->elems + wanted->cnt, committed->elems,
                          [](auto& one, auto& other) { return one.offset <= other.offset; });
    }
    owned_list positions() const {
        owned_list list;
        for (const auto& [partition, ledger] : ledgers_) {
            const auto next = static_cast<std::int64_t>(ledger.next_position());
            if (next > 0) rd_kafka_topic_partition_list_add(list.get(), topic_.c_str(), partition)->offset = next;
        }
        return list;
    }
    bool is_idle() const {
        return std::all_of(ledgers_.begin(), ledgers_.end(), [](auto& each) { return each.second.in_flight() == 0; });
    }

    const std::string topic_;
    std::mutex mutex_;  // guards the rest
    rd_kafka_t* client_;
    std::map<std::int32_t, ojs::completion_ledger> ledgers_;  // by partition
    bool is_paused_ = false;
    bool has_lost_ = false;  // what was not committed in time
    ojs::time_point polled_at_;
};

// Throws, which ends the loop with 70: else nothing behind the message is ever committed.
void send(const char* brokers, const std::string& topic, std::string body) {
    bool is_sent = false;
    rd_kafka_conf_t* const conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, [](rd_kafka_t*, const rd_kafka_message_t* message, void* is_done) {
        *static_cast<bool*>(is_done) = message->err == RD_KAFKA_RESP_ERR_NO_ERROR;
    });
    rd_kafka_t* const client =
        connect(RD_KAFKA_PRODUCER, conf, &is_sent, {{"bootstrap.servers", brokers}, {"message.timeout.ms", "4000"}});
    rd_kafka_producev(client, RD_KAFKA_VTYPE_TOPIC, topic.c_str(), RD_KAFKA_VTYPE_VALUE, &body[0], body.size(),
                      RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY, RD_KAFKA_VTYPE_END);
    rd_kafka_flush(client, 5000);  // message.timeout.ms is less
    rd_kafka_destroy(client);
    if (!is_sent) throw std::runtime_error("cannot send to " + topic);
}

// False: interrupted.
template <class Fail>
bool process(const std::string& body, const ojs::cancel_token& interrupt, Fail fail) {
    const std::string id = body.substr(0, body.find(' '));
    const std::string work = body.substr(std::min(id.size() + 1, body.size()));
    for (int attempt = 1; work == "fail"; ++attempt) {
        if (attempt == 3) return fail(body), true;
        if (!interrupt.sleep_for(attempt * 100ms)) return false;
    }
    const std::chrono::milliseconds time(std::min(std::atoi(work.c_str()), 60000));
    if (!interrupt.sleep_for(time)) return false;
    ojs::write_log_line(STDOUT_FILENO, "done " + id);
    return true;
}

template <class Fail>
void handle(ojs::slot& slot, kafka_member& kafka, Fail fail) {
    while (slot.next()) {
        auto message = kafka.take(slot.taking());
        if (message.id.empty()) continue;
        const ojs::item item = slot.begin(message.id);
        if (process(message.body, item.token(), fail)) message.ticket.done();
    }
}

// On a thread of its own, which serves the group while no handler does. The stop waits for it as for an item.
bool stay_in_group(ojs::slot& slot, kafka_member& kafka) {
    const ojs::item membership = slot.begin("group membership");
    while (slot.next([&] { kafka.keep_alive(); }))
        if (slot.taking().sleep_for(1s)) kafka.keep_alive();
    return kafka.leave(membership.token());
}
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    if (argc < 3 || argc > 4)
        return ojs::report_usage({ojs::errc::invalid_argument, 0, "usage: kafka_loop BROKERS TOPIC [GROUP]"});
    kafka_member kafka(argv[1], argv[2], argc > 3 ? argv[3] : "workers");
    const auto fail = [&](const std::string& body) { send(argv[1], std::string(argv[2]) + ".dead", body); };
    bool is_committed = false;
    loop.consumers(1, [&](ojs::slot& slot) { is_committed = stay_in_group(slot, kafka); });
    loop.consumers(0, [&](ojs::slot& slot) { handle(slot, kafka, fail); });
    const int status = loop.run();
    return status == 0 && !is_committed ? 75 : status;
}
