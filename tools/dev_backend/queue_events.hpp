// queue_events: tells subscribers by server-sent events that a queue has jobs to claim. [OJS realtime 2, 5]
#pragma once
#include <sys/socket.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "clock.hpp"
#include "job.hpp"
#include "json.hpp"

namespace dev_backend {
// One thread sends. What happens to a queue meanwhile becomes one event. A subscriber that does not read is
// disconnected once its socket is full.
class queue_events {
  public:
    explicit queue_events(milliseconds heartbeat) : heartbeat_interval_(heartbeat) {}
    void start() {
        thread_ = std::thread([this] { run(); });
    }
    // Sends server.shutdown, and closes all streams.
    void stop() {
        {
            const std::lock_guard<std::mutex> held(mutex_);
            stopping_ = true;
        }
        changed_.notify_one();
        if (thread_.joinable()) thread_.join();
    }

    // Sends `head`, which ends the response's head. False: too many subscribers, or the shutdown.
    bool subscribe(ojs::detail::unique_fd socket, const std::string& queue, const std::string& head) {
        constexpr std::size_t max_subscribers = 1000;
        constexpr int buffer = 32768;  // of a subscriber that does not read
        ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
        const std::lock_guard<std::mutex> held(mutex_);
        if (stopping_ || subscribers_.size() >= max_subscribers) return false;
        if (send_all(socket.get(), head + "retry: 3000\n\n")) subscribers_.push_back({std::move(socket), queue});
        return true;
    }

    // Thread-safe.
    void on_available(const job& of, job_state from) {
        const std::lock_guard<std::mutex> held(mutex_);
        if (subscribers_.empty()) return;
        news& unsent = news_[of.queue];
        if (unsent.jobs++ > 0) return;
        json_object data;
        data.text("job_id", of.id).text("queue", of.queue).text("type", of.type);
        data.text("from", name_of(from)).text("to", name_of(of.state)).text("timestamp", iso_time());
        unsent.data = data.open_text();
        changed_.notify_one();
    }

  private:
    struct subscriber {
        ojs::detail::unique_fd socket;
        std::string queue;
    };
    struct news {
        std::string data;  // of the first job, an open JSON object
        std::int64_t jobs = 0;
    };

    // False: the client has disconnected, or does not read. Then close() resets the connection, and drops what is unread.
    static bool send_all(int socket, std::string_view text) {
        const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent == static_cast<ssize_t>(text.size())) return true;
        const linger none{1, 0};
        ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        return false;
    }

    std::string text_of(const char* event_type, const std::string& data) {
        return "id: evt_" + std::to_string(++last_number_) + "\nevent: " + event_type + "\ndata: " + data + "\n\n";
    }

    template <class TextFor>
    void send_each(TextFor text_for) {
        const auto is_gone = [&](const subscriber& each) {
            const std::string text = text_for(each.queue);
            return !text.empty() && !send_all(each.socket.get(), text);
        };
        subscribers_.erase(std::remove_if(subscribers_.begin(), subscribers_.end(), is_gone), subscribers_.end());
    }

    void run() {
        std::unique_lock<std::mutex> held(mutex_);
        ojs::time_point next_heartbeat = ojs::steady_clock::now() + heartbeat_interval_;
        while (!stopping_) {
            changed_.wait_until(held, next_heartbeat, [&] { return stopping_ || !news_.empty(); });
            std::map<std::string, std::string> texts;
            for (auto& [queue, each] : std::exchange(news_, {}))
                texts[queue] = text_of("job.state_changed", json_object(each.data).number("count", each.jobs).str());
            const bool is_due = ojs::steady_clock::now() >= next_heartbeat;
            if (is_due) next_heartbeat += heartbeat_interval_;
            send_each([&](const std::string& queue) {
                const auto found = texts.find(queue);
                return (found == texts.end() ? "" : found->second) + (is_due ? ":heartbeat\n\n" : "");
            });
        }
        const std::string last = text_of("server.shutdown", R"({"reason":"shutdown","grace_period_ms":0})");
        send_each([&](const std::string&) { return last; });
        for (const subscriber& each : subscribers_) ::shutdown(each.socket.get(), SHUT_RDWR);
        subscribers_.clear();
    }

    const milliseconds heartbeat_interval_;
    std::thread thread_;
    std::mutex mutex_;  // guards what follows
    std::condition_variable changed_;
    bool stopping_ = false;
    std::vector<subscriber> subscribers_;
    std::map<std::string, news> news_;  // by queue; not sent yet
    std::uint64_t last_number_ = 0;
};
}  // namespace dev_backend
