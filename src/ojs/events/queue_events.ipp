#pragma once

#include "../base/detail/light.hpp"
#include "../core/detail/wake.hpp"
#include "../worker/transport_scheme.ipp"
#include "detail/event_stream.ipp"
#include "queue_events.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// When to notify the worker. If others were faster with the jobs of the latest events, a random moment later, up to
// max_spread: of many idle workers a few then ask first, and the rest need not ask at the same time.
class announcement_schedule {
  public:
    time_point due() const noexcept { return due_; }
    void note_event(time_point now) noexcept {
        if (due_ == time_point::max()) due_ = now + random_half(std::chrono::milliseconds(spread_ms_ * 2));
    }
    void note_notified() noexcept { due_ = time_point::max(); }
    // The result of a FETCH after an event. Any thread may call it.
    void note_fetch_result(bool found) noexcept { spread_ms_ = found ? 0 : min(max_spread_ms, max(1, spread_ms_ * 2)); }

  private:
    static constexpr int max_spread_ms = 8;
    atomic<int> spread_ms_{0};
    time_point due_ = time_point::max();
};

// The thread, and what it shares with the transport. It may outlive that while it connects.
class event_listener final : public ref_counted {
  public:
    event_listener(ref<http_exchange> client, const event_timeouts& timeouts, std::vector<std::string> queues)
        : client_(std::move(client)), timeouts_(timeouts), queues_(std::move(queues)) {}

    void set_callback(function<void()> callback) {
        const unique_lock held(callback_mutex_);
        on_work_ = std::move(callback);
    }
    // After the first FETCH: a queue may begin to exist with it. Without a thread the worker polls, and this is retried. After
    // a stop the thread ends at once.
    void start() {
        const unique_lock held(mutex_);
        if (thread_.joinable()) return;
        if (wake_.fd() < 0) {
            result<wake> created = wake::create();
            if (!created) return;
            wake_ = std::move(*created);
        }
        const ref<event_listener> self(this);
        result<thread> started = thread::start([self] { self->run(); }, {256 * 1024, false, "ojs-events"});
        if (started) thread_ = std::move(*started);
    }
    // The callback is no longer called. The thread ends by itself if it is connecting.
    void stop() {
        set_callback(nullptr);
        unique_lock held(mutex_);
        thread ended = std::move(thread_);
        held.unlock();
        if (!ended.joinable()) return;
        wake_.notify();
        ended.end_by(deadline_after(std::chrono::milliseconds(100)));
    }

    bool is_announcing() const noexcept { return is_announcing_; }
    bool take_notified() noexcept { return was_notified_ && was_notified_.exchange(false); }
    void note_fetch_result(bool found) noexcept { schedule_.note_fetch_result(found); }
    // To be logged: by a thread of the worker, because the log may hang, and end before this thread.
    bool take_notice(log_record& out) {
        if (!has_notice_) return false;
        const unique_lock held(mutex_);
        out = std::move(notice_);
        return has_notice_.exchange(false);
    }

  private:
    void run() {
        array<ref<event_stream>> streams;
        while (notify_if_due()) wait_and_proceed(streams);
        is_announcing_ = false;
    }
    // False: stopped.
    bool notify_if_due() {
        const unique_lock held(callback_mutex_);
        if (on_work_ && steady_clock::now() >= schedule_.due()) {
            schedule_.note_notified();
            was_notified_ = true;
            on_work_();
        }
        return bool(on_work_);
    }

    void wait_and_proceed(array<ref<event_stream>>& streams) {
        while (streams.size() < queues_.size()) streams.push_back(make_ref<event_stream>(queues_[streams.size()]));
        array<pollfd> polled = {{wake_.fd(), POLLIN, 0}};
        time_point due = schedule_.due();
        for (const ref<event_stream>& each : streams) {
            polled.push_back(each->polled());
            due = min(due, each->due());
        }
        ::poll(polled.begin(), static_cast<nfds_t>(polled.size()), poll_timeout(due));
        if (polled[0].revents != 0) return;
        bool all_open = true;
        bool has_work = false;
        for (std::size_t i = 0; i < streams.size(); ++i) {
            const auto made = streams[i]->proceed(polled[i + 1].revents != 0, *client_, timeouts_);
            has_work = has_work || made.has_work;
            all_open = all_open && streams[i]->is_open();
            if (!made.attempted) note_unavailable(streams[i]->queue(), made.attempted.error());
        }
        is_announcing_ = all_open;
        if (all_open && is_known_unavailable_) note_available();
        if (has_work) schedule_.note_event(steady_clock::now());
    }

    // Once until it changes.
    void note_unavailable(const std::string& queue, const error& why) {
        if (exchange(is_known_unavailable_, true)) return;
        const bool is_missing = why.code == errc::unsupported;
        set_notice({is_missing ? log_level::info : log_level::warn,
                    is_missing ? "the backend has no queue events; the worker polls"
                               : "queue events are unavailable; the worker polls",
                    {field("queue", queue), field("error", why.text)},
                    {}});
    }
    void note_available() {
        is_known_unavailable_ = false;
        set_notice({log_level::info, "queue events are available again", {}, {}});
    }
    void set_notice(log_record record) {
        const unique_lock held(mutex_);
        notice_ = std::move(record);
        has_notice_ = true;
    }

    const ref<http_exchange> client_;
    const event_timeouts timeouts_;
    const std::vector<std::string> queues_;
    wake wake_;
    // Used only by the thread, except for schedule_.note_fetch_result().
    announcement_schedule schedule_;
    bool is_known_unavailable_ = false;

    atomic<bool> is_announcing_{false};
    atomic<bool> was_notified_{false};
    atomic<bool> has_notice_{false};
    mutex callback_mutex_;  // not of FETCH: the callback locks the worker
    function<void()> on_work_;
    mutex mutex_;  // of the rest
    thread thread_;
    log_record notice_;
};

class event_transport final : public http_transport {
  public:
    event_transport(http_client client, bool active_jobs_as_count, ref<event_listener> listener, log_hook log)
        : http_transport(std::move(client), active_jobs_as_count),
          listener_(std::move(listener)),
          log_(std::move(log)) {}
    ~event_transport() override { listener_->stop(); }

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        const bool was_notified = listener_->take_notified();
        result<std::vector<job>> fetched = http_transport::fetch(request, deadline);
        if (was_notified && fetched) listener_->note_fetch_result(!fetched->empty());
        if (fetched) listener_->start();
        log_record notice;
        if (listener_->take_notice(notice)) log_(notice);
        return fetched;
    }
    bool announces_work() const noexcept override { return listener_->is_announcing(); }
    void on_work_available(function<void()> callback) override {
        callback ? listener_->set_callback(std::move(callback)) : listener_->stop();
    }

  private:
    const ref<event_listener> listener_;
    const log_hook log_;
};

inline result<transport_ref> open_with_events(const detail::transport_setup& setup, http_client_options connection) {
    const worker_options& options = setup.options;
    result<http_client> client = make_backend_client(options.url, connection);
    if (!client) return client.error();
    result<endpoint> target = parse_url(options.url, bool(connection.https_stream));
    if (!target) return target.error();
    add_header(connection.headers, "Accept", "text/event-stream");
    add_header(connection.headers, "Cache-Control", "no-cache");
    add_header(connection.headers, "OJS-Version", "1.0");
    ref<event_listener> listener =
        make_ref<event_listener>(make_ref<http_exchange>(std::move(*target), std::move(connection)),
                                 event_timeouts{options.request_timeout}, setup.worker.queues);
    return transport_ref(
        new event_transport(std::move(*client), options.profile.active_jobs_as_count, std::move(listener), setup.log));
}
}  // namespace detail

OJS_SHUTDOWN_INLINE detail::http_opener queue_events() { return detail::open_with_events; }
}  // namespace v0_1_0
}  // namespace ojs
