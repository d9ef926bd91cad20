// A member of a Kafka group that several handlers share, and that commits only what is done. Needs librdkafka
// 1.9.
#pragma once
#include <librdkafka/rdkafka.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "ojs_shutdown.hpp"

using kafka_settings = std::initializer_list<std::pair<const char*, std::string>>;
using kafka_partitions = rd_kafka_topic_partition_list_t;

// Throws std::runtime_error. `opaque` is what the callbacks of `conf` get.
inline rd_kafka_t* kafka_client(rd_kafka_type_t type, rd_kafka_conf_t* conf, void* opaque,
                                const kafka_settings& settings) {
    char why[512] = "";
    rd_kafka_conf_set_opaque(conf, opaque);
    for (const auto& [name, value] : settings) rd_kafka_conf_set(conf, name, value.c_str(), why, sizeof why);
    rd_kafka_t* const client = rd_kafka_new(type, conf, why, sizeof why);
    return client != nullptr ? client : throw std::runtime_error(why);
}

// Thread-safe: each call takes a mutex, in which librdkafka may call rebalance().
class kafka_consumer {
  public:
    struct message {
        std::string id;  // PARTITION/OFFSET; empty: none
        std::string body;
        ojs::completion_ledger::ticket ticket;  // destroyed without done(): Kafka delivers the message again
    };

    kafka_consumer(const ojs::loop& loop, const std::string& brokers, std::string topic,
                   const std::string& group)
        : loop_(loop), topic_(std::move(topic)) {
        rd_kafka_conf_t* const conf = rd_kafka_conf_new();
        rd_kafka_conf_set_rebalance_cb(
            conf, [](rd_kafka_t*, rd_kafka_resp_err_t change, kafka_partitions* partitions, void* self) {
                static_cast<kafka_consumer*>(self)->rebalance(change, partitions);
            });
        client_ = kafka_client(RD_KAFKA_CONSUMER, conf, this,
                               {{"bootstrap.servers", brokers},
                                {"group.id", group},
                                {"auto.offset.reset", "earliest"},
                                {"enable.auto.offset.store", "false"},  // true: commits what was taken
                                {"auto.commit.interval.ms", "500"},     // what is stored, in the background
                                {"heartbeat.interval.ms", "500"},       // its response announces a rebalance
                                {"session.timeout.ms", "6000"}});
        rd_kafka_poll_set_consumer(client_);
        kafka_partitions* const topics = rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(topics, topic_.c_str(), RD_KAFKA_PARTITION_UA);
        rd_kafka_subscribe(client_, topics);
        rd_kafka_topic_partition_list_destroy(topics);
    }
    // Waits for a message, at most 100 ms: nothing else ends the wait. Throws if it is out of memory.
    message take(const ojs::cancel_token& stop) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return stop.cancelled() ? message() : poll(100, rd_kafka_resume_partitions);
    }
    // Serves the group while no handler does: all are busy, the loop is quiet, or it drains. Once a second.
    void keep_alive() {
        const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
        if (lock && ojs::steady_clock::now() - polled_at_ > std::chrono::milliseconds(500))
            poll(0, rd_kafka_pause_partitions);  // none comes; else its ticket ends without done()
    }
    // Once, after the last message. False: Kafka did not confirm the commit. May take a second longer.
    bool leave(ojs::time_point deadline) {
        const std::lock_guard<std::mutex> lock(mutex_);
        with_positions([this](kafka_partitions* positions) { is_committed_ = positions->cnt == 0; });
        rd_kafka_queue_t* const events = rd_kafka_queue_new(client_);
        rd_kafka_error_destroy(rd_kafka_consumer_close_queue(client_, events));
        while (rd_kafka_consumer_closed(client_) == 0 && ojs::steady_clock::now() < deadline) {
            rd_kafka_event_t* const event = rd_kafka_queue_poll(events, 50);
            if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_REBALANCE)
                rebalance(rd_kafka_event_error(event), rd_kafka_event_topic_partition_list(event));
            rd_kafka_event_destroy(event);
        }
        const bool has_left = rd_kafka_consumer_closed(client_) != 0;
        rd_kafka_queue_destroy(events);
        if (has_left) rd_kafka_destroy(client_);  // else it would wait, in spite of NO_CONSUMER_CLOSE too
        client_ = nullptr;
        return is_committed_;
    }

  private:
    using flow_control = decltype(&rd_kafka_pause_partitions);

    message poll(int milliseconds, flow_control flow) {
        kafka_partitions* assigned = nullptr;
        if (client_ == nullptr || rd_kafka_assignment(client_, &assigned) != 0) return {};
        if (std::exchange(flow_, flow) != flow) flow(client_, assigned);
        rd_kafka_topic_partition_list_destroy(assigned);
        with_positions([this](kafka_partitions* positions) { rd_kafka_offsets_store(client_, positions); });
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
    // Kafka assigns and revokes all partitions at once (the eager protocol).
    void rebalance(rd_kafka_resp_err_t change, kafka_partitions* partitions) {
        const bool is_assigned = change == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS;
        if (!is_assigned) {  // the group waits for this member, which waits 5 s for its handlers
            for (int i = 0; i < 500 && !is_idle(); ++i)
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            with_positions([this](kafka_partitions* positions) { commit(positions); });
            for (auto& [partition, ledger] : ledgers_) ledger.forget();  // their next owner has them
        }
        // Before the end of the revocation, which joins again: it would hold partitions and not process them.
        if (!is_assigned && loop_.phase() >= ojs::phase::draining) rd_kafka_unsubscribe(client_);
        rd_kafka_assign(client_, is_assigned ? partitions : nullptr);
        flow_ = rd_kafka_resume_partitions;  // as the client resets it
    }
    void commit(kafka_partitions* positions) {
        if (positions->cnt == 0) return;
        rd_kafka_offsets_store(client_, positions);  // else the older stored ones are committed after these
        rd_kafka_queue_t* const responses = rd_kafka_queue_new(client_);
        rd_kafka_commit_queue(client_, positions, responses, nullptr, nullptr);
        rd_kafka_event_t* const response = rd_kafka_queue_poll(responses, 1000);
        is_committed_ = response != nullptr && rd_kafka_event_error(response) == RD_KAFKA_RESP_ERR_NO_ERROR;
        rd_kafka_event_destroy(response);
        rd_kafka_queue_destroy(responses);
    }
    template <class Use>
    void with_positions(Use use) {
        kafka_partitions* const positions = rd_kafka_topic_partition_list_new(8);
        for (const auto& [partition, ledger] : ledgers_) {
            const auto next = static_cast<std::int64_t>(ledger.next_position());
            if (next > 0)
                rd_kafka_topic_partition_list_add(positions, topic_.c_str(), partition)->offset = next;
        }
        use(positions);
        rd_kafka_topic_partition_list_destroy(positions);
    }
    bool is_idle() const {
        return std::all_of(ledgers_.begin(), ledgers_.end(),
                           [](auto& each) { return each.second.in_flight() == 0; });
    }

    const ojs::loop& loop_;
    const std::string topic_;
    std::mutex mutex_;  // guards the rest
    rd_kafka_t* client_;
    std::map<std::int32_t, ojs::completion_ledger> ledgers_;  // by partition
    flow_control flow_ = rd_kafka_resume_partitions;
    ojs::time_point polled_at_;
    bool is_committed_ = false;  // by the last commit
};
