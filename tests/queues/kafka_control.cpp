// The control of the chaos test: a Kafka consumer as people write it, after librdkafka's examples/consumer.c,
// with a pool of handlers. It keeps the default of storing an offset as soon as its message is taken, and
// knows SIGINT only.
//
//     build/kafka_control BROKERS TOPIC [GROUP]
#include <librdkafka/rdkafka.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

volatile sig_atomic_t run = 1;

void stop(int) {
    run = 0;
}

std::mutex mutex;
std::condition_variable changed;
std::deque<std::string> waiting;

void handle() {
    for (;;) {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [] { return !waiting.empty() || run == 0; });
        if (waiting.empty()) return;
        const std::string body = std::move(waiting.front());
        waiting.pop_front();
        lock.unlock();
        const std::size_t space = body.find(' ');
        const std::string work = space == body.npos ? "" : body.substr(space + 1);
        if (work == "fail") continue;
        std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(work.c_str())));
        const std::string line = "done " + body.substr(0, space) + "\n";
        if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
    }
}

rd_kafka_t* subscribe(const char* brokers, const char* topic, const char* group) {
    char why[512] = "";
    rd_kafka_conf_t* const conf = rd_kafka_conf_new();
    const char* const settings[][2] = {{"bootstrap.servers", brokers},
                                       {"group.id", group},
                                       {"auto.offset.reset", "earliest"},
                                       {"session.timeout.ms", "6000"}};
    for (const auto& each : settings) rd_kafka_conf_set(conf, each[0], each[1], why, sizeof why);
    rd_kafka_t* const client = rd_kafka_new(RD_KAFKA_CONSUMER, conf, why, sizeof why);
    if (client == nullptr) std::fprintf(stderr, "%s\n", why), std::exit(1);
    rd_kafka_poll_set_consumer(client);
    rd_kafka_topic_partition_list_t* const topics = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(topics, topic, RD_KAFKA_PARTITION_UA);
    rd_kafka_subscribe(client, topics);
    rd_kafka_topic_partition_list_destroy(topics);
    return client;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 3) return std::fputs("usage: kafka_control BROKERS TOPIC [GROUP]\n", stderr), 64;
    rd_kafka_t* const client = subscribe(argv[1], argv[2], argc > 3 ? argv[3] : "workers");
    signal(SIGINT, stop);
    std::vector<std::thread> handlers;
    for (int i = 0; i < 8; ++i) handlers.emplace_back(handle);
    while (run != 0) {
        rd_kafka_message_t* const taken = rd_kafka_consumer_poll(client, 100);
        if (taken == nullptr) continue;
        if (taken->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
            const std::lock_guard<std::mutex> lock(mutex);
            waiting.emplace_back(static_cast<const char*>(taken->payload), taken->len);
            changed.notify_one();
        }
        rd_kafka_message_destroy(taken);
    }
    rd_kafka_consumer_close(client);
    rd_kafka_destroy(client);
    changed.notify_all();
    for (std::thread& each : handlers) each.join();
}
