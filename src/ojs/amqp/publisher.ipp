// publisher: publishes with confirms, on a connection and a thread of its own. RabbitMQ stops reading from connections
// that publish while it is short of memory or disk; acknowledgements must not wait for that.
#pragma once

#include <poll.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../base/detail/clock.ipp"
#include "../base/duration.hpp"
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

    // `on_change` is called by the thread after publications were confirmed or have failed.
    result<void> start(function<void()> on_change) {
        result<wake> created = wake::create();
        if (!created) return created.error();
        wake_ = std::move(*created);
        on_change_ = std::move(on_change);
        result<thread> started =
            thread::start([self = ref<publisher>(this)] { self->run(); }, {0, 0, false, "ojs-amqp-pub"});
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }
    void end(time_point deadline) {
        {
            const unique_lock held(mutex_);
            ending_ = true;
        }
        wake_.notify();
        connection_.interrupt();
        thread_.end_by(deadline);
    }

    // Publishes it unless that has begun. Thread-safe.
    void submit(const ref<publication>& what) {
        const unique_lock held(mutex_);
        if (what->now != publication::state::made && what->now != publication::state::failed) return;
        what->now = publication::state::queued;
        what->returned = false;
        queued_.push_back(what);
        wake_.notify();
    }
    // Submits it, and waits for the confirm. One that is sent by the deadline stays: a repetition waits for it.
    result<void> publish(const ref<publication>& what, time_point deadline) {
        submit(what);
        unique_lock held(mutex_);
        while (!is_over(*what) && changed_.wait_until(held, deadline)) {
        }
        if (what->now == publication::state::confirmed) return {};
        if (what->now == publication::state::failed) return error{errc::unavailable, 0, what->fault};
        if (what->now == publication::state::queued) {
            queued_.erase(std::find(queued_.begin(), queued_.end(), what));
            what->now = publication::state::made;
        }
        const std::string why =
            blocked_.empty() ? std::string() : cat({": it blocks publications: ", blocked_});
        return error{errc::timed_out, 0,
                     cat({"RabbitMQ did not confirm a publication to ", what->queue, why})};
    }
    publication::state state_of(const publication& what) {
        const unique_lock held(mutex_);
        return what.now;
    }

  private:
    static constexpr amqp_channel_t channel = 1;
    static constexpr std::chrono::seconds idle_time{30};  // then the connection is closed

    static bool is_over(const publication& what) {
        return what.now == publication::state::confirmed || what.now == publication::state::failed;
    }
    bool is_ending() const {
        const unique_lock held(mutex_);
        return ending_;
    }

    void run() {
        while (!is_ending()) {
            await_work();
            if (!open() || !send_queued() || !read()) disconnect();
            if (connection_.is_open() && sent_.empty() && steady_clock::now() - used_at_ > idle_time)
                connection_.close(true);
        }
        connection_.close(true);
        disconnect();
    }
    void await_work() {
        const bool is_open = connection_.is_open();
        if (is_open && connection_.has_frames()) return;
        pollfd polled[] = {{wake_.fd(), POLLIN, 0}, {is_open ? connection_.socket() : -1, POLLIN, 0}};
        ::poll(polled, 2, is_open ? 1000 : -1);
        wake_.clear();
    }

    // True, if there is nothing to publish.
    bool open() {
        if (connection_.is_open()) return true;
        {
            const unique_lock held(mutex_);
            if (queued_.empty() || ending_) return true;
        }
        if (!connection_.open(broker_, options_.heartbeat)) return false;
        declared_.clear();
        used_at_ = steady_clock::now();
        return open_channel();
    }
    bool open_channel() {
        next_number_ = 1;
        amqp_channel_open(connection_.state(), channel);
        if (connection_.check(channel) != rpc_status::done) return false;
        amqp_confirm_select(connection_.state(), channel);
        return connection_.check(channel) == rpc_status::done;
    }
    // All that is not confirmed has failed.
    void disconnect() {
        connection_.close(false);
        unique_lock held(mutex_);
        blocked_.clear();
        fail_all(sent_, connection_.fault());
        fail_all(queued_, connection_.fault());
        held.unlock();
        notify();
    }
    static void fail_all(std::deque<ref<publication>>& all, const std::string& fault) {
        for (const ref<publication>& what : all) fail(*what, fault);
        all.clear();
    }
    static void fail(publication& what, const std::string& fault) {
        what.fault = cat({"RabbitMQ did not take a publication to ", what.queue, ": ", fault});
        what.now = publication::state::failed;
    }
    void notify() {
        changed_.notify_all();
        on_change_();
    }

    // False: disconnected.
    bool send_queued() {
        while (const ref<publication> what = take_queued()) {
            const rpc_status declared = what->is_declared ? rpc_status::done : declare(*what);
            if (declared == rpc_status::disconnected) return false;
            if (declared == rpc_status::channel_closed) {
                finish(what, connection_.fault());
                continue;
            }
            what->number = next_number_++;
            used_at_ = steady_clock::now();
            if (!connection_.check_sent(rabbitmq::publish(connection_, channel, *what))) return false;
        }
        return true;
    }
    ref<publication> take_queued() {
        const unique_lock held(mutex_);
        if (queued_.empty() || ending_) return {};
        ref<publication> out = queued_.front();
        queued_.pop_front();
        out->now = publication::state::sent;  // no longer its caller's to withdraw
        out->number = 0;
        sent_.push_back(out);
        return out;
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
        if (status == rpc_status::done) {
            amqp_channel_close(connection_.state(), declaring_channel, AMQP_REPLY_SUCCESS);
        } else if (has_part(connection_.fault(), "PRECONDITION_FAILED")) {
            events_->report(severity::warning, what.queue,
                            cat({what.queue,
                                 " has other arguments than those of a declaration, and is used as "
                                 "it is: ",
                                 connection_.fault()}));
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
        if (!connection_.is_open()) return true;
        const bool alive =
            connection_.read_frames([this](const amqp_frame_t& frame) { return on_frame(frame); });
        if (exchange(has_finished_, false)) notify();
        return alive;
    }
    bool on_frame(const amqp_frame_t& frame) {
        if (frame.frame_type != AMQP_FRAME_METHOD) return true;  // of a returned message
        const void* const method = frame.payload.method.decoded;
        switch (frame.payload.method.id) {
            case AMQP_BASIC_ACK_METHOD: {
                const auto& ack = *static_cast<const amqp_basic_ack_t*>(method);
                return finish_numbered(ack.delivery_tag, ack.multiple != 0, "");
            }
            case AMQP_BASIC_NACK_METHOD: {
                const auto& nack = *static_cast<const amqp_basic_nack_t*>(method);
                return finish_numbered(nack.delivery_tag, nack.multiple != 0, "the queue refuses it");
            }
            case AMQP_BASIC_RETURN_METHOD:
                return mark_returned(view_of(static_cast<const amqp_basic_return_t*>(method)->routing_key));
            case AMQP_CONNECTION_BLOCKED_METHOD:
                return note_blocked(
                    printable(view_of(static_cast<const amqp_connection_blocked_t*>(method)->reason)));
            case AMQP_CONNECTION_UNBLOCKED_METHOD: return note_blocked("");
            case AMQP_CHANNEL_CLOSE_METHOD: {
                const auto& closed = *static_cast<const amqp_channel_close_t*>(method);
                return connection_.keep_fault(connection::text_of(closed.reply_text, closed.reply_code));
            }
            default: return true;
        }
    }
    bool note_blocked(std::string reason) {
        events_->report(reason.empty() ? severity::info : severity::warning, "publications",
                        reason.empty() ? std::string("RabbitMQ accepts publications again")
                                       : cat({"RabbitMQ blocks publications: ", reason}));
        const unique_lock held(mutex_);
        blocked_ = std::move(reason);
        return true;
    }
    // The confirm follows.
    bool mark_returned(std::string_view queue) {
        declared_.erase(std::string(queue));
        for (const ref<publication>& what : sent_) what->returned = what->returned || what->queue == queue;
        return true;
    }
    bool finish_numbered(std::uint64_t number, bool multiple, const std::string& fault) {
        const std::deque<ref<publication>> all = sent_;  // changed by this thread alone
        for (const ref<publication>& what : all) {
            const bool is_meant = what->number == number || (multiple && what->number < number);
            if (what->number != 0 && is_meant)
                finish(what, what->returned ? "there is no such queue" : fault);
        }
        return true;
    }
    void finish(const ref<publication>& what, const std::string& fault) {
        const unique_lock held(mutex_);
        sent_.erase(std::find(sent_.begin(), sent_.end(), what));
        what->now = publication::state::confirmed;
        if (!fault.empty()) fail(*what, fault);
        has_finished_ = true;
    }

    static constexpr amqp_channel_t declaring_channel = 2;

    const endpoint broker_;
    const amqp_options options_;
    const ref<event_log> events_;
    function<void()> on_change_;
    mutable mutex mutex_;
    condition changed_;
    std::deque<ref<publication>> queued_, sent_;
    bool ending_ = false;
    std::string blocked_;  // why the broker reads no publications; empty: it does
    wake wake_;
    thread thread_;

    // Used only by the thread.
    connection connection_;
    std::set<std::string> declared_;
    std::uint64_t next_number_ = 1;
    bool has_finished_ = false;
    time_point used_at_;
};

}  // namespace rabbitmq
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
