// A Kafka cluster for tests: librdkafka's mock, in a process of its own. Prints its bootstrap servers, then
// responds to each command on stdin with one line:
//
//     produce TOPIC PARTITIONS     sends the lines that follow, up to an empty one, as messages: "produced N"
//     left TOPIC GROUP             "left N": how many messages the group has not committed
//
// Unlike Kafka, the mock refuses the commits of a group that rebalances: its consumers process more messages
// twice.
#include <librdkafka/rdkafka.h>
#include <librdkafka/rdkafka_mock.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

namespace {
[[noreturn]] void fail(const std::string& what) {
    std::fprintf(stderr, "kafka_mock: %s\n", what.c_str());
    std::exit(1);
}
void check(rd_kafka_resp_err_t error, const char* what) {
    if (error != RD_KAFKA_RESP_ERR_NO_ERROR) fail(std::string(what) + ": " + rd_kafka_err2str(error));
}

class cluster {
  public:
    cluster() {
        owner_ = create(RD_KAFKA_PRODUCER, {{"bootstrap.servers", "none.invalid"}, {"log_level", "0"}});
        mock_ = rd_kafka_mock_cluster_new(owner_, 1);
        if (mock_ == nullptr) fail("no mock cluster");
        servers_ = rd_kafka_mock_cluster_bootstraps(mock_);
        producer_ = create(RD_KAFKA_PRODUCER, {{"bootstrap.servers", servers_}, {"linger.ms", "5"}});
    }
    const std::string& servers() const { return servers_; }

    void create_topic(const std::string& topic, int partitions) {
        if (partitions_.emplace(topic, partitions).second)
            check(rd_kafka_mock_topic_create(mock_, topic.c_str(), partitions, 1), "topic_create");
    }
    int produce(const std::string& topic) {
        int sent = 0;
        for (std::string body; std::getline(std::cin, body) && !body.empty(); ++sent) {
            const std::int32_t partition = sent % partitions_.at(topic);
            check(rd_kafka_producev(producer_, RD_KAFKA_VTYPE_TOPIC, topic.c_str(), RD_KAFKA_VTYPE_PARTITION, partition,
                                    RD_KAFKA_VTYPE_VALUE, &body[0], body.size(), RD_KAFKA_VTYPE_MSGFLAGS,
                                    RD_KAFKA_MSG_F_COPY, RD_KAFKA_VTYPE_END),
                  "producev");
            rd_kafka_poll(producer_, 0);
        }
        check(rd_kafka_flush(producer_, 30000), "flush");
        return sent;
    }
    std::int64_t left(const std::string& topic, const std::string& group) {
        rd_kafka_t* const client = create(RD_KAFKA_CONSUMER, {{"bootstrap.servers", servers_}, {"group.id", group}});
        rd_kafka_topic_partition_list_t* const list = rd_kafka_topic_partition_list_new(8);
        for (int i = 0; i < partitions_.at(topic); ++i) rd_kafka_topic_partition_list_add(list, topic.c_str(), i);
        check(rd_kafka_committed(client, list, 10000), "committed");
        std::int64_t out = 0;
        for (int i = 0; i < list->cnt; ++i)
            out += end_of(topic, i) - std::max<std::int64_t>(list->elems[i].offset, 0);  // none: negative
        rd_kafka_topic_partition_list_destroy(list);
        rd_kafka_destroy(client);
        return out;
    }

  private:
    static rd_kafka_t* create(rd_kafka_type_t type, const std::map<std::string, std::string>& settings) {
        char why[512] = "";
        rd_kafka_conf_t* const conf = rd_kafka_conf_new();
        for (const auto& [name, value] : settings)
            rd_kafka_conf_set(conf, name.c_str(), value.c_str(), why, sizeof why);
        rd_kafka_t* const client = rd_kafka_new(type, conf, why, sizeof why);
        return client != nullptr ? client : (fail(why), nullptr);
    }
    std::int64_t end_of(const std::string& topic, int partition) {
        std::int64_t first = 0, end = 0;
        check(rd_kafka_query_watermark_offsets(producer_, topic.c_str(), partition, &first, &end, 10000), "ends");
        return end;
    }

    rd_kafka_t* owner_;
    rd_kafka_mock_cluster_t* mock_;
    std::string servers_;
    rd_kafka_t* producer_;
    std::map<std::string, int> partitions_;  // of a topic
};
}  // namespace

int main() {
    cluster mock;
    std::printf("%s\n", mock.servers().c_str());
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command, topic, group;
        words >> command >> topic >> group;
        std::string response = "unknown command";
        if (command == "produce") {
            mock.create_topic(topic, std::atoi(group.c_str()));
            response = "produced " + std::to_string(mock.produce(topic));
        } else if (command == "left") {
            response = "left " + std::to_string(mock.left(topic, group));
        }
        std::printf("%s\n", response.c_str());
        std::fflush(stdout);
    }
    std::_Exit(0);  // the mock's destructor waits for its clients
}
