// A Kafka consumer that commits only what is done: OJS_CONCURRENCY handlers share one member of its group.
//     build/kafka_loop BROKERS TOPIC [GROUP]        needs librdkafka 1.9
// "ID MS" works for MS milliseconds; "ID fail" goes to TOPIC.dead. SIGTERM: no message starts, those in flight finish, their
// offsets are committed, and the member leaves. Again or when the grace period ends: handlers are interrupted; nothing
// behind their messages is committed. Exit status 75 also if Kafka has not confirmed the last commit and the leaving.
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

#include "ojs_ledger.hpp"

namespace {
using namespace std::chrono_literals;
using partition_list = rd_kafka_topic_partition_list_t;

void log(const char* text) {
    const ojs::log_record record{ojs::log_level::warn, text, {}, "", "kafka"};
    ojs::write_log_line(STDERR_FILENO, ojs::format_log_record(record, ojs::log_format::json));
}

// Throws std::runtime_error. The callbacks of `conf` get `self`.
rd_kafka_t* connect(rd_kafka_type_t type, rd_kafka_conf_t* conf, void* self, const std::vector<const char*>& settings) {
    char why[512] = "";
    rd_kafka_conf_set(conf, "reconnect.backoff.max.ms", "1000", why, sizeof why);  // 10 s: a restart holds up the group
    rd_kafka_conf_set_opaque(conf, self);
    rd_kafka_conf_set_log_cb(conf, [](auto, auto, auto, auto text) { log(text); });
    for (std::size_t i = 0; i < settings.size(); i += 2)
        if (rd_kafka_conf_set(conf, settings[i], settings[i + 1], why, sizeof why) != 0) throw std::runtime_error(why);
    rd_kafka_t* const client = rd_kafka_new(type, conf, why, sizeof why);
    return client != nullptr ? client : throw std::runtime_error(why);
}

// Thread-safe: each call takes a mutex, in which librdkafka may call move(). Throws once the member is of no use.
class kafka_member {
  public:
    struct message {
        std::string id;  // PARTITION/OFFSET/TURN; empty: none
        std::string body;
        ojs::offset_tracker::ticket ticket;  // destroyed without done(): Kafka delivers the message again
    };

    kafka_member(const char* brokers, const char* topic, const char* group) : topic_(topic) {
        rd_kafka_conf_t* const conf = rd_kafka_conf_new();
        rd_kafka_conf_set_rebalance_cb(conf, [](auto, auto change, auto all, auto me) { of(me).move(change, *all); });
        rd_kafka_conf_set_offset_commit_cb(conf, [](auto, auto error, auto offsets, auto me) {
            if (error == RD_KAFKA_RESP_ERR_NO_ERROR) of(me).accept(*offsets);
        });
        // Cooperative: a rebalance interrupts only the partitions that move. A heartbeat's response announces it.
        client_ =
            connect(RD_KAFKA_CONSUMER, conf, this,
                    {"bootstrap.servers", brokers, "group.id", group, "auto.offset.reset", "earliest",
                     "enable.auto.offset.store", "false", "auto.commit.interval.ms", "50", "heartbeat.interval.ms",
                     "500", "session.timeout.ms", "6000", "partition.assignment.strategy", "cooperative-sticky"});
        rd_kafka_poll_set_consumer(client_);
        partition_list* const topics = rd_kafka_topic_partition_list_new(1);
        rd_kafka_topic_partition_list_add(topics, topic_, RD_KAFKA_PARTITION_UA);
        rd_kafka_subscribe(client_, topics);
        rd_kafka_topic_partition_list_destroy(topics);
    }
    message take(const ojs::cancel_token& stop) {
        const std::lock_guard<std::mutex> lock(mutex_);
        return stop.cancelled() ? message() : poll(false);
    }
    // Serves the group while no handler does: all are busy, the loop is quiet, or it drains.
    void keep_alive() {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (ojs::steady_clock::now() - polled_at_ > 1s) poll(true);  // takes none
    }
    std::vector<std::string> revoked(const std::vector<std::string>& ids) {
        const std::lock_guard<std::mutex> lock(mutex_);
        std::vector<std::string> found;
        int number = 0, turn = 0;
        for (const std::string& id : ids)
            if (std::sscanf(id.c_str(), "%d/%*d/%d", &number, &turn) == 2 && partitions_[number].turn != turn)
                found.push_back(id);
        return found;
    }
    // Waits for the handlers, and 6 s, or 1.5 s from an interrupt, for the last commit and the end of a rebalance.
    bool leave(const ojs::cancel_token& interrupt) {
        auto end = ojs::time_point::max();
        for (bool is_first = true, is_leaving = false;; is_first = false, std::this_thread::sleep_for(10ms)) {
            const std::lock_guard<std::mutex> lock(mutex_);
            if (is_first) has_lost_ = false;
            poll(true);
            if (in_flight_ == 0) end = std::min(end, ojs::deadline_after(6s));
            if (interrupt.cancelled()) end = std::min(end, ojs::deadline_after(1500ms));
            // Empty before the first response of the group, and once LeaveGroup is sent.
            const std::unique_ptr<char, decltype(&std::free)> id(rd_kafka_memberid(client_), std::free);
            const bool is_late = ojs::steady_clock::now() >= end, is_member = id && *id != 0;
            if (is_leaving && (is_late || !is_member)) return close() && !has_lost_ && !is_member;
            if (is_leaving || !(is_late || (is_member && in_flight_ == 0 && uncommitted_ == 0))) continue;
            is_leaving = true, has_lost_ = has_lost_ || uncommitted_ > 0;
            rd_kafka_unsubscribe(client_);  // at the end of a rebalance. Without it the close may send no LeaveGroup
        }
    }

  private:
    struct partition {
        ojs::offset_tracker offsets;
        std::int64_t accepted = -1;  // the position that Kafka has; -1: unknown
        int turn = 0;                // how often it has been revoked
    };
    static kafka_member& of(void* opaque) { return *static_cast<kafka_member*>(opaque); }
    bool close() const {
        rd_kafka_queue_t* const events = rd_kafka_queue_new(client_);
        rd_kafka_error_destroy(rd_kafka_consumer_close_queue(client_, events));
        for (const auto end = ojs::deadline_after(1s); ojs::steady_clock::now() < end;)
            if (rd_kafka_queue_poll_callback(events, 20); rd_kafka_consumer_closed(client_)) return true;
        return false;
    }
    message poll(bool is_paused) {
        if (!failure_.empty()) throw std::runtime_error("kafka: " + failure_);
        store();
        const bool is_late = uncommitted_ > 200 && ojs::steady_clock::now() - in_time_at_ > 500ms;
        const bool is_behind = is_late || (is_behind_ && uncommitted_ > 0);  // these come again if Kafka restarts
        if (std::exchange(is_behind_, is_behind) != is_behind)
            log(is_behind ? "commits are late: no message is taken" : "commits are in time again");
        is_paused = is_paused || is_behind;
        partition_list* assigned = nullptr;
        // Only at a change: a partition that is resumed, but was not paused, delivers messages again.
        if (std::exchange(is_paused_, is_paused) != is_paused && rd_kafka_assignment(client_, &assigned) == 0) {
            (is_paused ? rd_kafka_pause_partitions : rd_kafka_resume_partitions)(client_, assigned);
            rd_kafka_topic_partition_list_destroy(assigned);
        }
        const std::unique_ptr<rd_kafka_message_t, decltype(&rd_kafka_message_destroy)> got(
            rd_kafka_consumer_poll(client_, 0), rd_kafka_message_destroy);
        polled_at_ = ojs::steady_clock::now();
        if (got && got->err == RD_KAFKA_RESP_ERR__FATAL) failure_ = rd_kafka_message_errstr(got.get());
        if (got && got->err != 0) log(rd_kafka_message_errstr(got.get()));
        if (!got || got->err != 0) return {};
        partition& from = partitions_[got->partition];
        if (from.accepted < 0) from.accepted = got->offset;
        auto ticket = from.offsets.begin(static_cast<std::uint64_t>(got->offset));
        if (!ticket) throw std::runtime_error(ticket.error().text);
        const std::string id = std::to_string(got->partition) + "/" + std::to_string(got->offset) + "/";
        return {id + std::to_string(from.turn), {static_cast<const char*>(got->payload), got->len}, *std::move(ticket)};
    }
    void move(rd_kafka_resp_err_t change, const partition_list& moved) {
        if (change == RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS) {  // an error: the group has another kind of assignor
            if (auto* error = rd_kafka_incremental_assign(client_, &moved)) failure_ = rd_kafka_error_string(error);
            if (is_paused_) rd_kafka_pause_partitions(client_, const_cast<partition_list*>(&moved));
            return;
        }
        const bool is_lost = rd_kafka_assignment_lost(client_) != 0;  // too late to commit
        const auto end = ojs::deadline_after(is_lost ? 0ms : 500ms);  // no partition delivers meanwhile
        for (int i = 0; i < moved.cnt; ++i)
            while (partitions_[moved.elems[i].partition].offsets.in_flight() > 0 && ojs::steady_clock::now() < end)
                std::this_thread::sleep_for(5ms);
        store();
        has_lost_ = has_lost_ || (is_lost && uncommitted_ > 0);
        for (int i = 0; i < moved.cnt; ++i) {
            partition& gone = partitions_[moved.elems[i].partition];
            gone.offsets.reset(), gone.accepted = -1, ++gone.turn;
        }
        rd_kafka_error_destroy(rd_kafka_incremental_unassign(client_, &moved));  // commits what is stored
    }
    void accept(const partition_list& committed) {
        in_time_at_ = ojs::steady_clock::now();
        for (int i = 0; i < committed.cnt; ++i)
            if (auto& position = partitions_[committed.elems[i].partition].accepted; position >= 0)
                position = std::max(position, committed.elems[i].offset);
    }
    void store() {  // what is to be committed; and counts
        partition_list* const list = rd_kafka_topic_partition_list_new(8);
        in_flight_ = uncommitted_ = 0;
        for (const auto& [number, each] : partitions_) {
            const auto next = static_cast<std::int64_t>(each.offsets.next_position());
            in_flight_ += each.offsets.in_flight();
            if (next > 0) rd_kafka_topic_partition_list_add(list, topic_, number)->offset = next;
            if (next > each.accepted && next > 0) uncommitted_ += next - each.accepted;
        }
        if (uncommitted_ == 0) in_time_at_ = ojs::steady_clock::now();
        rd_kafka_offsets_store(client_, list);
        rd_kafka_topic_partition_list_destroy(list);
    }

    const char* const topic_;
    std::mutex mutex_;  // guards the rest
    rd_kafka_t* client_;
    std::map<std::int32_t, partition> partitions_;
    std::uint64_t in_flight_ = 0;   // of the last store()
    std::int64_t uncommitted_ = 0;  // that are done, but Kafka has not confirmed it
    bool is_paused_ = false, is_behind_ = false, has_lost_ = false;
    std::string failure_;
    ojs::time_point polled_at_, in_time_at_;  // of the commits
};

void send(const char* brokers, const std::string& topic, std::string body) {  // throws: the loop ends with 70
    bool is_sent = false;
    rd_kafka_conf_t* const conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, [](auto, auto sent, auto ok) { *static_cast<bool*>(ok) = sent->err == 0; });
    rd_kafka_t* const client =
        connect(RD_KAFKA_PRODUCER, conf, &is_sent, {"bootstrap.servers", brokers, "message.timeout.ms", "4000"});
    rd_kafka_producev(client, RD_KAFKA_VTYPE_TOPIC, topic.c_str(), RD_KAFKA_VTYPE_VALUE, &body[0], body.size(),
                      RD_KAFKA_VTYPE_MSGFLAGS, RD_KAFKA_MSG_F_COPY, RD_KAFKA_VTYPE_END);
    rd_kafka_flush(client, 5000);
    rd_kafka_destroy(client);
    if (!is_sent) throw std::runtime_error("cannot send to " + topic);
}
}  // namespace

int main(int argc, char** argv) {
    ojs::loop loop;  // first: a SIGTERM during start-up is kept
    if (argc < 3 || argc > 4)
        return ojs::report_startup_error({ojs::errc::invalid_argument, 0, "usage: kafka_loop BROKERS TOPIC [GROUP]"});
    kafka_member kafka(argv[1], argv[2], argc > 3 ? argv[3] : "workers");
    const auto process = [&](const std::string& body, const ojs::cancel_token& interrupt) {  // false: interrupted
        const std::string id = body.substr(0, body.find(' ')), work = body.substr(id.size());
        if (work == " fail") return send(argv[1], std::string(argv[2]) + ".dead", body), true;
        if (!interrupt.sleep_for(1ms * (std::atoi(work.c_str()) % 60001))) return false;
        return ojs::write_log_line(STDOUT_FILENO, "done " + id), true;
    };
    bool has_left = false;
    loop.add_consumers(1, [&](ojs::consumer& consumer) {  // the stop waits for the membership as for an item
        const ojs::item membership = consumer.begin("group membership");
        while (consumer.next([&] { kafka.keep_alive(); }))
            if (consumer.intake_token().sleep_for(1s)) kafka.keep_alive();
        has_left = kafka.leave(membership.token());
    });
    loop.add_consumers(0, [&](ojs::consumer& consumer) {
        while (consumer.next()) {
            auto message = kafka.take(consumer.intake_token());
            if (message.id.empty()) static_cast<void>(consumer.intake_token().sleep_for(10ms));
            if (message.id.empty()) continue;
            const ojs::item item = consumer.begin(message.id);
            if (process(message.body, item.token())) message.ticket.done();
        }
    });
    loop.on_renew(100ms, [&](const auto& ids) { return kafka.revoked(ids); });
    const int status = loop.run();
    return status == 0 && !has_left ? 75 : status;
}
