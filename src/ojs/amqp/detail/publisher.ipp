// publisher: publishes messages again, with confirms.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "link.ipp"

namespace ojs::detail {
namespace rabbitmq {
struct publication : ref_counted {
    enum class state { pending, confirmed, failed };
    std::string queue, origin;     // where it goes, and whence the message came
    std::string properties, body;  // of the original message
    std::int64_t attempt = 0;
    std::string error;                   // of a dead letter; empty: a retry
    std::chrono::milliseconds delay{0};  // of a retry, in its queue
    // Guarded.
    state now = state::pending;
    ojs::error why;  // failed. Rejected: no try will do; disconnected: it may have been published
    bool is_returned = false;
};

// What the broker adds to a message, and what must not go out again: CC routes to other queues, expiration
// drops, and x-death makes the broker take a retry for a loop.
OJS_SHUTDOWN_INLINE bool is_dropped_header(std::string_view name) {
    return starts_with(name, "x-death") || starts_with(name, "x-first-death-") || starts_with(name, "x-last-death-") ||
           is_listed(name, "CC BCC x-delivery-count x-acquired-count x-ojs-attempt x-ojs-error");
}

OJS_SHUTDOWN_INLINE amqp_table_entry_t text_entry(const char* name, std::string_view text) {
    amqp_table_entry_t out{};
    out.key = amqp_cstring_bytes(name);
    out.value.kind = AMQP_FIELD_KIND_UTF8;
    out.value.value.bytes = bytes_of(text);
    return out;
}
OJS_SHUTDOWN_INLINE amqp_table_entry_t number_entry(const char* name, std::int64_t number) {
    amqp_table_entry_t out{};
    out.key = amqp_cstring_bytes(name);
    out.value.kind = AMQP_FIELD_KIND_I64;
    out.value.value.i64 = number;
    return out;
}
OJS_SHUTDOWN_INLINE amqp_table_t table_of(std::vector<amqp_table_entry_t>& entries) {
    return {static_cast<int>(entries.size()), entries.data()};
}

// Returns librabbitmq's status. Nothing is sent of what does not fit into a frame.
OJS_SHUTDOWN_INLINE int publish(amqp_connection_state_t to, amqp_channel_t channel, const publication& what) {
    amqp_pool_t pool;
    init_amqp_pool(&pool, 4096);
    void* decoded = nullptr;
    int status = amqp_decode_properties(AMQP_BASIC_CLASS, &pool, bytes_of(what.properties), &decoded);
    if (status == AMQP_STATUS_OK) {
        amqp_basic_properties_t properties = *static_cast<amqp_basic_properties_t*>(decoded);
        std::vector<amqp_table_entry_t> headers;
        const bool has_headers = (properties._flags & AMQP_BASIC_HEADERS_FLAG) != 0;
        for (int i = 0; has_headers && i < properties.headers.num_entries; ++i) {
            const amqp_table_entry_t& header = properties.headers.entries[i];
            if (!is_dropped_header(view_of(header.key))) headers.push_back(header);
        }
        headers.push_back(number_entry("x-ojs-attempt", what.attempt));
        if (!what.error.empty()) headers.push_back(text_entry("x-ojs-error", what.error));
        properties.headers = table_of(headers);
        properties.delivery_mode = 2;
        properties._flags |= AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG;
        properties._flags &= ~static_cast<amqp_flags_t>(AMQP_BASIC_EXPIRATION_FLAG | AMQP_BASIC_USER_ID_FLAG);
        std::string frame(connection::frame_max - 20, '\0');  // without its head, the body's size and its end
        status = amqp_encode_properties(AMQP_BASIC_CLASS, &properties, bytes_of(frame)) < 0
                     ? AMQP_STATUS_TABLE_TOO_BIG
                     : amqp_basic_publish(to, channel, amqp_empty_bytes, bytes_of(what.queue), 1, 0, &properties,
                                          bytes_of(what.body));
    }
    empty_amqp_pool(&pool);
    return status;
}

// Has a connection of its own: while it is short of memory or disk, RabbitMQ reads nothing from connections that
// publish, and acknowledgements must not wait for that. It is opened by the first publication.
class publisher : public link {
  public:
    // `owner` is notified of each end.
    publisher(const link& owner, const broker_address& broker, std::chrono::seconds heartbeat, monitor& shared)
        : link(broker, heartbeat, shared), owner_(owner) {}

    // Guarded.
    void submit(ref<publication> what) {
        const result<void> started = start("ojs-amqp-retry");
        if (!started) return finish(*what, started.error());
        queued_.push_back(std::move(what));
        shared_.changed.notify_all();
        notify();
    }

  private:
    static constexpr amqp_channel_t publishing = 1, declaring = 2;  // what is refused closes its channel

    bool is_needed() const override { return !queued_.empty(); }
    bool begin() override {
        number_ = 0;
        known_.clear();
        amqp_channel_open(connection_.state(), publishing);
        if (!connection_.check()) return false;
        amqp_confirm_select(connection_.state(), publishing);
        return connection_.check();
    }
    bool turn() override {
        while (const ref<publication> what = next()) {
            if (has_queue(*what) && send(*what)) {
                sent_[++number_] = what;
                continue;
            }
            const unique_lock held(shared_.guard);
            finish(*what, connection_.fault());
            if (connection_.fault().code != errc::rejected) return false;
        }
        return connection_.read([this](const amqp_frame_t& frame) {
            if (frame.frame_type == AMQP_FRAME_METHOD) on_method(frame.payload.method);
            return true;
        });
    }
    // If the broker closed the channel, the only one that it had is to blame.
    void lose(const error& why) override {
        const unique_lock held(shared_.guard);
        const errc code = sent_.size() == 1 ? why.code : errc::disconnected;
        for (const auto& [number, what] : sent_) finish(*what, {code, 0, why.text});
        sent_.clear();
        for (const ref<publication>& what : queued_) finish(*what, {errc::unreachable, 0, why.text});
        queued_.clear();
    }

    ref<publication> next() {
        const unique_lock held(shared_.guard);
        ref<publication> out;
        if (queued_.empty()) return out;
        out = queued_.front();
        queued_.pop_front();
        return out;
    }
    // Guarded.
    void finish(publication& what, const error& why) const {
        what.why = {why.code, 0, cat({"RabbitMQ did not take a publication to ", what.queue, ": ", why.text})};
        set(what, publication::state::failed);
    }
    void set(publication& what, publication::state now) const {
        what.now = now;
        shared_.changed.notify_all();
        owner_.notify();
    }

    bool send(const publication& what) {
        const int status = rabbitmq::publish(connection_.state(), publishing, what);
        return status == AMQP_STATUS_OK ||
               connection_.fail(amqp_error_string2(status), status == AMQP_STATUS_TABLE_TOO_BIG);
    }
    // Declares it if it is missing: who may not, may use one that is there.
    bool has_queue(const publication& what) {
        if (what.queue == what.origin || known_.count(what.queue) != 0) return true;
        if (what.queue.size() > 255) return connection_.fail("a queue's name has at most 255 bytes", true);
        if (!declare(what, true) && (connection_.fault().code != errc::rejected || !declare(what, false))) return false;
        known_.insert(what.queue);
        return true;
    }
    // A quorum queue confirms each message that it dead-letters.
    bool declare(const publication& what, bool is_passive) {
        std::vector<amqp_table_entry_t> arguments = {text_entry("x-queue-type", "quorum")};
        if (what.delay.count() > 0) {
            arguments.push_back(number_entry("x-message-ttl", what.delay.count()));
            arguments.push_back(text_entry("x-dead-letter-exchange", ""));
            arguments.push_back(text_entry("x-dead-letter-routing-key", what.origin));
            arguments.push_back(text_entry("x-dead-letter-strategy", "at-least-once"));
            arguments.push_back(text_entry("x-overflow", "reject-publish"));
        }
        amqp_channel_open(connection_.state(), declaring);
        if (!connection_.check()) return false;
        amqp_queue_declare(connection_.state(), declaring, bytes_of(what.queue), is_passive ? 1 : 0, 1, 0, 0,
                           table_of(arguments));
        if (!connection_.check()) return connection_.confirm_close(declaring) && false;
        amqp_channel_close(connection_.state(), declaring, AMQP_REPLY_SUCCESS);
        return true;
    }

    void on_method(const amqp_method_t& method) {
        const unique_lock held(shared_.guard);
        if (method.id == AMQP_BASIC_RETURN_METHOD) {  // the confirm follows
            const std::string queue(view_of(static_cast<amqp_basic_return_t*>(method.decoded)->routing_key));
            for (const auto& [number, what] : sent_) what->is_returned = what->is_returned || what->queue == queue;
            known_.erase(queue);
        } else if (method.id == AMQP_BASIC_ACK_METHOD) {
            const auto& ack = *static_cast<amqp_basic_ack_t*>(method.decoded);
            confirm(ack.delivery_tag, ack.multiple != 0, true);
        } else if (method.id == AMQP_BASIC_NACK_METHOD) {
            const auto& nack = *static_cast<amqp_basic_nack_t*>(method.decoded);
            confirm(nack.delivery_tag, nack.multiple != 0, false);
        }
    }
    void confirm(std::uint64_t number, bool is_multiple, bool is_taken) {
        const auto first = is_multiple ? sent_.begin() : sent_.find(number);
        const auto last = sent_.upper_bound(number);
        for (auto at = first; at != last; ++at) {
            publication& what = *at->second;
            if (is_taken && !what.is_returned)
                set(what, publication::state::confirmed);
            else
                finish(what, {errc::unavailable, 0, is_taken ? "it has been deleted" : "it refuses messages"});
        }
        sent_.erase(first, last);
    }

    const link& owner_;
    std::list<ref<publication>> queued_;  // guarded
    // Used only by the thread.
    std::uint64_t number_ = 0;  // of the last one on this connection
    std::map<std::uint64_t, ref<publication>> sent_;
    std::set<std::string> known_;  // queues that are there
};
}  // namespace rabbitmq
}  // namespace ojs::detail
