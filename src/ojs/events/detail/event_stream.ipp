// event_stream: the connection for the events of one queue. A poll(2) loop drives it, see event_listener.
#pragma once

#include <poll.h>

#include "../../base/detail/clock.ipp"
#include "../../net/http_client.ipp"
#include "../../worker/http_transport.ipp"
#include "event_parser.ipp"

namespace ojs::detail {
struct event_timeouts {
    std::chrono::milliseconds request;         // until the head of the response
    std::chrono::milliseconds silence{45000};  // a backend writes every 15 s [OJS realtime 2.4]
};

// Reads a body as it comes, of any length.
class event_response final : public http_parser {
  public:
    event_response() noexcept : http_parser(16 * 1024, SIZE_MAX / 2) {}
    bool has_head() const noexcept { return has_head_; }

  protected:
    bool on_head_end() override {
        has_head_ = code() >= 200;
        return http_parser::on_head_end();
    }

  private:
    bool has_head_ = false;
};

inline bool is_event_stream(const http_response& response) noexcept {
    const std::string_view type = find_header(response.headers, "Content-Type");
    return response.status == 200 && equals_ignore_case(type.substr(0, 17), "text/event-stream");
}

// Whether it says that there are no events, rather than that they are unavailable now. A queue may begin to exist: 404.
inline bool has_no_events(int status) noexcept {
    return status < 400 || status == 404 || status == 405 || status == 406 || status == 501;
}

// Used by one thread.
class event_stream final : public ref_counted {
  public:
    explicit event_stream(std::string queue) : queue_(std::move(queue)) {}

    const std::string& queue() const noexcept { return queue_; }
    bool is_open() const noexcept { return is_open_; }  // events arrive
    // When to call proceed() if nothing is ready: to connect, or because the peer is silent.
    time_point due() const noexcept { return has_more_ ? time_point() : due_; }
    pollfd polled() const noexcept { return {conn_ ? conn_->socket.get() : -1, awaited_, 0}; }

    // Whether jobs may have come: by an event, or because it begins or ceases to be open.
    struct progress {
        bool has_work = false;
        result<void> attempted;  // an error: there are no events for now
    };
    progress proceed(bool is_ready, http_exchange& client, const event_timeouts& timeouts) {
        progress out;
        const bool was_open = is_open_;
        const bool is_due = steady_clock::now() >= due_;
        if (conn_ && (is_ready || has_more_)) {
            read(timeouts, out);
        } else if (is_due && conn_) {
            const char* const text = is_open_ ? ": no byte on the event stream for " : ": no response within ";
            const auto waited = is_open_ ? timeouts.silence : timeouts.request;
            end(out, error{errc::timed_out, 0, cat({name_, text, format_duration(waited)})});
        } else if (is_due) {
            connect(client, timeouts, out);
        }
        out.has_work = out.has_work || was_open != is_open_;
        return out;
    }

  private:
    void connect(http_exchange& client, const event_timeouts& timeouts, progress& out) {
        http_call call;
        call.deadline = due_ = deadline_after(timeouts.request);
        response_ = event_response();
        events_ = event_parser(events_.retry());
        const http_request request{"GET", cat({"/ojs/v1/queues/", path_segment(queue_), "/events"}), {}, ""};
        name_ = client.describe(request.method, request.target);
        result<connection_ref> opened = client.connect(call);
        if (!opened) return end(out, named(std::move(opened), [this] { return name_; }).error());
        const std::string text = client.compose(request);
        std::string_view left = text;
        if (client.write(**opened, left, call.deadline) != io_status::ok) return end(out, has_ended());
        conn_ = std::move(*opened);
        awaited_ = POLLIN;
    }

    // Reads what has arrived, but returns in between while more arrives.
    void read(const event_timeouts& timeouts, progress& out) {
        char buffer[8 * 1024];
        has_more_ = true;
        for (int left = 8; left > 0; --left) {
            std::size_t size = sizeof buffer;
            const stream_status got = conn_->read_some(buffer, size);
            has_more_ = got == stream_status::ok;
            if (got == stream_status::closed || got == stream_status::failed) return end(out, has_ended());
            awaited_ = got == stream_status::wants_write ? POLLOUT : POLLIN;
            if (!has_more_) return;
            if (!take({buffer, size}, timeouts, out)) return;
        }
    }
    // False: the connection is closed.
    bool take(std::string_view bytes, const event_timeouts& timeouts, progress& out) {
        const bool goes_on = response_.feed(bytes) == http_parser::status::need_more;
        if (response_.has_head() && !is_open_ && !check_head(out)) return false;
        if (is_open_) {
            due_ = deadline_after(timeouts.silence);
            std::string& body = response_.message().body;
            events_.feed(body,
                         [&](const server_event& event) { out.has_work = out.has_work || announces_work(event); });
            body.clear();
        }
        if (!goes_on) end(out, has_ended());
        return goes_on;
    }
    // False: the response is no event stream, and the connection is closed.
    bool check_head(progress& out) {
        const http_response head{response_.code(), response_.message().headers, ""};
        is_open_ = is_event_stream(head);
        if (!is_open_) {
            error failure = status_error(name_, head);
            if (has_no_events(head.status)) failure.code = errc::unsupported;
            end(out, failure);
        } else {
            pauses_.reset();
            missing_pauses_.reset();
        }
        return is_open_;
    }

    error has_ended() const { return {errc::disconnected, 0, cat({name_, ": the event stream has ended"})}; }

    // The end of an open stream is no failure: servers and proxies restart.
    void end(progress& out, const error& why) {
        const auto pause = why.code == errc::unsupported ? missing_pauses_.next()
                                                         : pauses_.next(max(why.retry_after, events_.retry()));
        if (!exchange(is_open_, false)) out.attempted = why;
        conn_ = {};
        has_more_ = false;
        due_ = deadline_after(pause);
    }

    const std::string queue_;
    std::string name_;  // of the request
    connection_ref conn_;
    event_response response_;
    event_parser events_;
    bool is_open_ = false;
    bool has_more_ = false;  // to read, perhaps
    short awaited_ = POLLIN;
    time_point due_ = time_point();
    backoff pauses_{std::chrono::seconds(1), std::chrono::seconds(30)};
    backoff missing_pauses_{std::chrono::seconds(10), std::chrono::minutes(5)};
};
}  // namespace ojs::detail
