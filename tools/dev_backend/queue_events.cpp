#include "queue_events.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "clock.hpp"
#include "ids.hpp"

namespace dev_backend {

namespace {

constexpr std::size_t max_subscribers = 1000;
constexpr milliseconds min_gap{1};    // between events of a queue
constexpr int socket_buffer = 32768;  // of a subscriber that does not read

bool wants(const std::vector<std::string>& types, std::string_view type) {
    return types.empty() || std::find(types.begin(), types.end(), type) != types.end();
}

// Makes close() reset the connection: the bytes that the client does not read would stay.
void discard_unread(int socket) {
    const linger none{1, 0};
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &none, sizeof none);
}

std::string time_of(std::uint64_t number) {
    return iso_time(static_cast<std::int64_t>(number >> 16));
}

// Rounded up; -1: no limit.
int poll_timeout(ojs::time_point until) {
    if (until == ojs::time_point::max()) return -1;
    const auto left = std::chrono::ceil<milliseconds>(until - ojs::steady_clock::now());
    return static_cast<int>(std::max<std::int64_t>(left.count(), 0));
}

}  // namespace

ojs::result<void> queue_events::start() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) return ojs::error{ojs::errc::system, errno, "cannot make a pipe"};
    for (const int end : ends) ::fcntl(end, F_SETFD, FD_CLOEXEC);
    wakes_ = ojs::detail::unique_fd(ends[0]);
    waker_ = ojs::detail::unique_fd(ends[1]);
    thread_ = std::thread([this] { run(); });
    return {};
}

void queue_events::stop() {
    {
        const std::lock_guard<std::mutex> held(mutex_);
        stopping_ = true;
    }
    wake();
    if (thread_.joinable()) thread_.join();
}

queue_events::admission queue_events::subscribe(subscription from) {
    ::setsockopt(from.socket.get(), SOL_SOCKET, SO_SNDBUF, &socket_buffer, sizeof socket_buffer);
    const std::lock_guard<std::mutex> held(mutex_);
    if (stopping_) return admission::stopped;
    if (count_ >= max_subscribers) return admission::full;
    ++count_;
    ++watched_[from.queue].subscribers;
    subscriber joined{std::move(from), {}, {}, ojs::steady_clock::now()};
    joined.unsent = joined.head + first_lines(joined);
    joining_.push_back(std::move(joined));
    wake();
    return admission::accepted;
}

// What happened since the client's last event is not kept.
std::string queue_events::first_lines(const subscription& from) {
    const std::string retry = "retry: 3000\n\n";
    if (from.last_event_id.empty() || !wants(from.types, "system.gap")) return retry;
    json_object data;
    data.text("channel", "queue:" + from.queue);
    data.text("gap_start", iso_time(ms_of_event(from.last_event_id))).text("gap_end", iso_time());
    return retry + text_of({next_number(), "system.gap", data.str()});
}

std::string queue_events::last_lines() {
    const std::string data = json_object().text("reason", "shutdown").number("grace_period_ms", 0).str();
    const std::lock_guard<std::mutex> held(mutex_);
    return text_of({next_number(), "server.shutdown", data});
}

// ---- what happens ----

queue_events::watched_queue* queue_events::find_watched(const std::string& queue) {
    const auto found = watched_.find(queue);
    return found == watched_.end() ? nullptr : &found->second;
}

std::uint64_t queue_events::next_number() {
    return last_number_ = std::max(last_number_ + 1, static_cast<std::uint64_t>(wall_ms()) << 16);
}

void queue_events::on_available(const job& of, job_state from) {
    if (count_ == 0) return;
    const std::lock_guard<std::mutex> held(mutex_);
    watched_queue* const found = find_watched(of.queue);
    if (found == nullptr) return;
    std::optional<event>& unsent = found->unsent.jobs;
    if (unsent) {
        ++unsent->count;
        return;
    }
    const std::uint64_t number = next_number();
    json_object data;
    data.text("job_id", of.id).text("queue", of.queue).text("type", of.type);
    data.text("from", name_of(from)).text("to", name_of(of.state)).text("timestamp", time_of(number));
    unsent = event{number, "job.state_changed", data.open_text(), 1};
    wake();
}

void queue_events::on_status(const std::string& queue, const char* event_type) {
    const std::lock_guard<std::mutex> held(mutex_);
    watched_queue* const found = find_watched(queue);
    if (found == nullptr) return;
    const std::uint64_t number = next_number();
    const std::string data = json_object().text("queue", queue).text("timestamp", time_of(number)).str();
    found->unsent.status = event{number, event_type, data};
    wake();
}

void queue_events::add(std::optional<event>& to, const std::optional<event>& later) {
    if (!to) {
        to = later;
    } else if (later) {
        to->number = later->number;
        to->count += later->count;
    }
}

std::string queue_events::text_of(const event& shown) {
    const std::string data =
        shown.count == 0 ? shown.data : json_object::continued(shown.data).number("count", shown.count).str();
    return "id: " + event_id(shown.number) + "\nevent: " + shown.type + "\ndata: " + data + "\n\n";
}

// ---- the thread ----

void queue_events::wake() {
    if (is_woken_.exchange(true)) return;
    while (::write(waker_.get(), "", 1) < 0 && errno == EINTR) continue;
}

void queue_events::run() {
    std::unordered_map<std::string, news> fresh;
    while (take_news(fresh)) {
        for (subscriber& each : subscribers_) {
            const auto found = fresh.find(each.queue);
            if (found == fresh.end()) continue;
            if (wants(each.types, "job.state_changed")) add(each.waiting.jobs, found->second.jobs);
            if (found->second.status && wants(each.types, found->second.status->type))
                each.waiting.status = found->second.status;
        }
        wait(!fresh.empty());
    }
    const std::string last = last_lines();
    for (subscriber& each : subscribers_) {
        each.unsent += last;
        send(each);
        ::shutdown(each.socket.get(), SHUT_RDWR);
    }
    subscribers_.clear();
}

// False: at the end.
bool queue_events::take_news(std::unordered_map<std::string, news>& out) {
    out.clear();
    const std::lock_guard<std::mutex> held(mutex_);
    for (subscriber& each : joining_) subscribers_.push_back(std::move(each));
    joining_.clear();
    for (auto& [queue, each] : watched_) {
        if (each.unsent.jobs || each.unsent.status) out[queue] = std::exchange(each.unsent, {});
    }
    return !stopping_;
}

// Sends, then waits for more: for min_gap after news, else until there are any.
void queue_events::wait(bool is_paced) {
    ojs::time_point until = ojs::time_point::max();
    for (std::size_t i = subscribers_.size(); i-- > 0;) serve(i, 0);
    std::vector<pollfd> waiting(1, pollfd{is_paced ? -1 : wakes_.get(), POLLIN, 0});
    for (const subscriber& each : subscribers_) {
        const bool is_blocked = !each.unsent.empty();
        waiting.push_back({each.socket.get(), static_cast<short>(is_blocked ? POLLIN | POLLOUT : POLLIN), 0});
        until = std::min(until, each.sent_at + heartbeat_);
    }
    if (is_paced) until = std::min(until, ojs::steady_clock::now() + min_gap);
    ::poll(waiting.data(), static_cast<nfds_t>(waiting.size()), poll_timeout(until));
    char byte = 0;
    if (waiting.front().revents != 0 && ::read(wakes_.get(), &byte, 1) == 1) is_woken_ = false;
    for (std::size_t i = subscribers_.size(); i-- > 0;) serve(i, waiting[i + 1].revents);
}

void queue_events::serve(std::size_t index, short events) {
    if (!is_connected(subscribers_[index], events)) remove(index);
}

bool queue_events::is_connected(subscriber& served, short events) {
    std::array<char, 512> ignored{};
    const bool is_readable = (events & ~POLLOUT) != 0;
    if (is_readable && ::recv(served.socket.get(), ignored.data(), ignored.size(), MSG_DONTWAIT) <= 0)
        return false;
    if (!send(served)) return false;
    if (ojs::steady_clock::now() < served.sent_at + heartbeat_) return true;
    if (served.unsent.empty()) {
        served.unsent = ":heartbeat\n\n";
        return send(served);
    }
    discard_unread(served.socket.get());  // it took nothing for that time, nor just now
    return false;
}

// False: the client has disconnected.
bool queue_events::send(subscriber& to) {
    for (;;) {
        for (std::optional<event>* each : {&to.waiting.jobs, &to.waiting.status}) {
            if (!*each || !to.unsent.empty()) continue;
            to.unsent = text_of(**each);
            each->reset();
        }
        if (to.unsent.empty()) return true;
        const ssize_t sent =
            ::send(to.socket.get(), to.unsent.data(), to.unsent.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        to.unsent.erase(0, static_cast<std::size_t>(sent));
        to.sent_at = ojs::steady_clock::now();
    }
}

void queue_events::remove(std::size_t index) {
    const std::lock_guard<std::mutex> held(mutex_);
    const auto watched = watched_.find(subscribers_[index].queue);
    if (--watched->second.subscribers == 0) watched_.erase(watched);
    --count_;
    std::swap(subscribers_[index], subscribers_.back());
    subscribers_.pop_back();
}

}  // namespace dev_backend
