// queue_events: tells subscribers by server-sent events that a queue has jobs to claim. [OJS realtime 2, 5]
#pragma once
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <vector>

#include "job.hpp"
#include "json.hpp"

namespace dev_backend {

// One thread sends at most one event of each kind per queue and millisecond. A subscriber that does not read costs
// constant memory: what it misses is added to its next event.
class queue_events {
  public:
    explicit queue_events(milliseconds heartbeat) : heartbeat_(heartbeat) {}
    ojs::result<void> start();
    void stop();  // says server.shutdown, and closes all streams

    struct subscription {
        ojs::detail::unique_fd socket;
        std::string queue;
        std::vector<std::string> types;  // empty: all
        std::string head;                // of the response
        std::string last_event_id;       // empty: none
    };
    enum class admission { accepted, full, stopped };
    admission subscribe(subscription from);

    // Without subscribers these cost nothing. Thread-safe.
    void on_available(const job& of, job_state from);
    void on_status(const std::string& queue, const char* event_type);  // queue.paused, queue.resumed

  private:
    struct event {
        std::uint64_t number;
        const char* type;
        std::string data;        // JSON; open if `count` follows
        std::int64_t count = 0;  // of jobs; 0: not about jobs
    };
    struct news {
        std::optional<event> jobs;
        std::optional<event> status;
    };
    struct watched_queue {
        std::size_t subscribers = 0;
        news unsent;
    };
    struct subscriber : subscription {
        std::string unsent;
        news waiting;
        ojs::time_point sent_at;
    };

    static void add(std::optional<event>& to, const std::optional<event>& later);
    static std::string text_of(const event& shown);
    watched_queue* find_watched(const std::string& queue);
    std::uint64_t next_number();
    std::string first_lines(const subscription& from);  // with the mutex held, as the two above
    std::string last_lines();
    void wake();
    void run();
    bool take_news(std::unordered_map<std::string, news>& out);
    bool send(subscriber& to);
    void serve(std::size_t index, short events);
    bool is_connected(subscriber& served, short events);  // after what was due is sent
    void remove(std::size_t index);
    void wait(bool is_paced);

    const milliseconds heartbeat_;
    ojs::detail::unique_fd wakes_;  // a pipe, of at most one byte
    ojs::detail::unique_fd waker_;
    std::atomic<bool> is_woken_{false};
    std::thread thread_;
    std::vector<subscriber> subscribers_;  // of the thread
    std::atomic<std::size_t> count_{0};

    std::mutex mutex_;  // guards what follows
    bool stopping_ = false;
    std::vector<subscriber> joining_;
    std::unordered_map<std::string, watched_queue> watched_;
    std::uint64_t last_number_ = 0;
};

}  // namespace dev_backend
