// publisher: publishes with confirms, on a connection and a thread of its own: while it is short of memory or
// disk, RabbitMQ reads nothing from connections that publish, and acknowledgements must not wait for that.
#pragma once

#include <poll.h>

#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../core/detail/wake.hpp"
#include "amqp_transport.hpp"
#include "detail/message.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace rabbitmq {

// Reports each change once, until it is closed. Thread-safe.
class event_log : public ref_counted {
  public:
    explicit event_log(function<void(severity, const std::string&)> on_event)
        : on_event_(std::move(on_event)) {}
    // `subject`: the queue, or what else changes on its own.
    void report(severity level, const std::string& subject, const std::string& text) {
        const unique_lock held(mutex_);
        std::string& last = last_[subject];
        if (last != text) on_event_(level, text);
        last = text;
    }
    void close() {
        const unique_lock held(mutex_);
        on_event_ = nullptr;
    }

  private:
    mutex mutex_;
    function<void(severity, const std::string&)> on_event_;
    std::map<std::string, std::string> last_;
};

class publisher : public ref_counted {
  public:
    publisher(endpoint broker, const amqp_options& options, ref<event_log> events)
        : broker_(std::move(broker)), options_(options), events_(std::move(events)) {}

    // The thread calls `on_change` after a publication was confirmed or has failed.
    result<void> start(function<void()> on_change) {
        result<wake> created = wake::create();
        if (!created) return created.error();
        wake_ = std::move(*created);
        on_change_ = std::move(on_change);
        auto started =
            thread::start([self = ref<publisher>(this)] { self->run(); }, {0, 0, false, "ojs-amqp-pub"});
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }
    void end(time_point deadline) {
        ending_ = true;
        wake_.notify();
        connection_.interrupt();
        thread_.end_by(deadline);
    }
    // Thread-safe, as the next two.
    void submit(const ref<publication>& what) {
        const unique_lock held(mutex_);
        what->now = publication::state::waiting;
        waiting_.push_back(what);
        wake_.notify();
    }
    publication::state state_of(const publication& what) const {
        const unique_lock held(mutex_);
        return what.now;
    }
    bool is_confirmed(const publication& what) const {
        return state_of(what) == publication::state::confirmed;
    }
    // Why a publication has failed, or is not confirmed yet.
    std::string fault_of(const publication& what) const {
        const unique_lock held(mutex_);
        const std::string why = !what.fault.empty() ? what.fault
                                : blocked_.empty()  ? "no confirm in time"
                                                    : blocked_;
        return cat({"RabbitMQ did not take a publication to ", what.queue, ": ", why});
    }

  private:
    static constexpr amqp_channel_t channel = 1, declaring_channel = 2;

    void run() {
        while (!ending_) {
            await_event();
            if (!publish_next()) disconnect();
        }
        connection_.close(!current_);
        disconnect();
    }
    void await_event() {
        const bool is_open = connection_.is_open();
        if (is_open && connection_.has_frames()) return;
        pollfd polled[] = {{wake_.fd(), POLLIN, 0}, {is_open ? connection_.socket() : -1, POLLIN, 0}};
        ::poll(polled, 2, is_open ? 1000 : -1);  // for heartbeats
        wake_.clear();
    }
    // One after the other. False: disconnected.
    bool publish_next() {
        if (!read()) return false;
        while (!current_ && take_next()) {
            if (!open()) return false;
            const rpc_status declared = current_->is_declared ? rpc_status::done : declare(*current_);
            if (declared == rpc_status::disconnected) return false;
            if (declared == rpc_status::channel_closed) finish(connection_.fault());
            if (current_ && !connection_.check_sent(publish(connection_, channel, *current_))) return false;
            if (current_ && !read()) return false;
        }
        return true;
    }
    bool take_next() {
        const unique_lock held(mutex_);
        if (waiting_.empty() || ending_) return false;
        current_ = waiting_.front();
        waiting_.pop_front();
        return true;
    }
    bool open() {
        if (connection_.is_open()) return true;
        declared_.clear();
        if (!connection_.open(broker_, options_.heartbeat)) return false;
        amqp_channel_open(connection_.state(), channel);
        if (connection_.check(channel) != rpc_status::done) return false;
        amqp_confirm_select(connection_.state(), channel);
        return connection_.check(channel) == rpc_status::done;
    }
    void disconnect() {
        connection_.close(false);
        set_blocked("");
        while (current_ || take_next()) finish(connection_.fault());
    }
    // Without a fault: confirmed.
    void finish(const std::string& fault) {
        {
            const unique_lock held(mutex_);
            current_->fault = fault;
            current_->now = fault.empty() ? publication::state::confirmed : publication::state::failed;
        }
        current_ = {};
        is_returned_ = false;
        on_change_();
    }
    void set_blocked(std::string why) {
        const unique_lock held(mutex_);
        blocked_ = std::move(why);
    }

    // On a channel of its own: the broker closes it if that fails.
    rpc_status declare(const publication& what) {
        if (declared_.count(what.queue) != 0) return rpc_status::done;
        amqp_channel_open(connection_.state(), declaring_channel);
        rpc_status status = connection_.check(declaring_channel);
        if (status != rpc_status::done) return status;
        std::vector<amqp_table_entry_t> arguments = arguments_of(what);
        amqp_queue_declare(connection_.state(), declaring_channel, bytes_of(what.queue), 0, 1, 0, 0,
                           table_of(arguments));
        status = connection_.check(declaring_channel);
        if (status == rpc_status::done)
            amqp_channel_close(connection_.state(), declaring_channel, AMQP_REPLY_SUCCESS);
        if (status == rpc_status::channel_closed && has_part(connection_.fault(), "PRECONDITION_FAILED")) {
            events_->report(severity::warning, what.queue, cat({"used as it is: ", connection_.fault()}));
            status = rpc_status::done;
        }
        if (status == rpc_status::done) declared_.insert(what.queue);
        return status;
    }
    // A quorum queue confirms each message that it dead-letters.
    std::vector<amqp_table_entry_t> arguments_of(const publication& what) const {
        std::vector<amqp_table_entry_t> out = {text_entry("x-queue-type", options_.declared_queue_type)};
        if (what.delay.count() == 0) return out;
        out.push_back(number_entry("x-message-ttl", what.delay.count()));
        out.push_back(text_entry("x-dead-letter-exchange", ""));
        out.push_back(text_entry("x-dead-letter-routing-key", what.returns_to));
        if (options_.declared_queue_type != "quorum") return out;
        out.push_back(text_entry("x-dead-letter-strategy", "at-least-once"));
        out.push_back(text_entry("x-overflow", "reject-publish"));
        return out;
    }

    // False: disconnected.
    bool read() {
        return !connection_.is_open() ||
               connection_.read_frames([this](const amqp_frame_t& frame) { return on_frame(frame); });
    }
    bool on_frame(const amqp_frame_t& frame) {
        if (frame.frame_type != AMQP_FRAME_METHOD) return true;  // of a returned message
        const void* const method = frame.payload.method.decoded;
        switch (frame.payload.method.id) {
            case AMQP_BASIC_RETURN_METHOD:  // the confirm follows
                is_returned_ = true;
                declared_.clear();
                break;
            case AMQP_BASIC_ACK_METHOD:
                if (current_) finish(is_returned_ ? "there is no such queue" : "");
                break;
            case AMQP_BASIC_NACK_METHOD:
                if (current_) finish("the queue refuses it");
                break;
            case AMQP_CONNECTION_BLOCKED_METHOD: {
                const auto* const blocked = static_cast<const amqp_connection_blocked_t*>(method);
                set_blocked(cat({"RabbitMQ blocks publications: ", printable(view_of(blocked->reason))}));
                events_->report(severity::warning, "publications", blocked_);
                break;
            }
            case AMQP_CONNECTION_UNBLOCKED_METHOD:
                set_blocked("");
                events_->report(severity::info, "publications", "RabbitMQ accepts publications again");
                break;
            case AMQP_CHANNEL_CLOSE_METHOD: {
                const auto& closed = *static_cast<const amqp_channel_close_t*>(method);
                return connection_.keep_fault(connection::text_of(closed.reply_text, closed.reply_code));
            }
            default: break;
        }
        return true;
    }

    const endpoint broker_;
    const amqp_options options_;
    const ref<event_log> events_;
    function<void()> on_change_;
    mutable mutex mutex_;
    std::deque<ref<publication>> waiting_;
    std::string blocked_;  // why the broker reads no publications; empty: it does
    atomic<bool> ending_{false};
    wake wake_;
    thread thread_;

    // Used only by the thread.
    connection connection_;
    ref<publication> current_;  // being published
    bool is_returned_ = false;  // no queue took it
    std::set<std::string> declared_;
};

}  // namespace rabbitmq
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
