// publisher: publishes a message again, with a confirm, on the thread that calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../../base/detail/sync.hpp"
#include "connection.ipp"

namespace ojs::detail {
namespace rabbitmq {
struct publication : ref_counted {
    std::string queue;
    std::string properties, body;  // of the original message
    std::int64_t attempt = 0;
    std::string error;                   // empty: a retry
    std::string returns_to;              // of a retry queue: where its messages go
    std::chrono::milliseconds delay{0};  // and after which time
    bool is_confirmed = false;
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

// Returns librabbitmq's status.
OJS_SHUTDOWN_INLINE int publish(connection& to, amqp_channel_t channel, const publication& what) {
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
        status = amqp_basic_publish(to.state(), channel, amqp_empty_bytes, bytes_of(what.queue), 1, 0, &properties,
                                    bytes_of(what.body));
    }
    empty_amqp_pool(&pool);
    return status;
}

// Has a connection of its own: while it is short of memory or disk, RabbitMQ reads nothing from connections
// that publish, and acknowledgements must not wait for that. It has no heartbeats: no thread would send them.
class publisher {
  public:
    explicit publisher(broker_address broker) : broker_(std::move(broker)) {}

    // Returns once a queue has it. Errors: timed_out, then a call with the same publication continues to wait
    // for its confirm; disconnected, unavailable, and rejected (by the broker, or AMQP cannot carry it): it was not
    // confirmed, and never will be. Thread-safe.
    result<void> publish(const ref<publication>& what, time_point deadline) {
        unique_lock held(mutex_);
        while (is_busy_ && changed_.wait_until(held, deadline)) {
        }
        if (is_busy_) return unconfirmed(*what);
        is_busy_ = true;
        held.unlock();
        result<void> out = publish_alone(what, deadline);
        held.lock();
        is_busy_ = false;
        changed_.notify_one();
        return out;
    }

  private:
    static constexpr amqp_channel_t channel = 1;

    static error unconfirmed(const publication& what) {
        return {errc::timed_out, 0,
                cat({"RabbitMQ has not confirmed a publication to ", what.queue,
                     " in time; while it is short of memory or disk, it accepts none"})};
    }
    // One after the other.
    result<void> publish_alone(const ref<publication>& what, time_point deadline) {
        is_refused_ = false;
        if (pending_ && !(pending_ == what) && await_confirm(deadline) == rpc_status::timed_out)
            return unconfirmed(*what);
        for (bool declares = false; !what->is_confirmed; declares = true) {
            if (!pending_ && !(open(deadline) && (!declares || declare(*what)) && send(what)))
                return disconnected(*what);
            const rpc_status status = await_confirm(deadline);
            if (status == rpc_status::timed_out) return unconfirmed(*what);
            if (status == rpc_status::disconnected) return disconnected(*what);
            const bool may_declare = is_returned_ && !declares && (!what->error.empty() || what->delay.count() > 0);
            if (!what->is_confirmed && !may_declare)
                return error{errc::unavailable, 0,
                             cat({"RabbitMQ has no queue ", what->queue, ", or it refuses a message"})};
        }
        return {};
    }
    bool open(time_point deadline) {
        if (connection_.is_open()) {
            connection_.set_deadline(deadline);
            return true;
        }
        if (!connection_.open(broker_, std::chrono::seconds(0), deadline)) return false;
        amqp_channel_open(connection_.state(), channel);
        if (connection_.check(channel) != rpc_status::done) return false;
        amqp_confirm_select(connection_.state(), channel);
        return connection_.check(channel) == rpc_status::done;
    }
    bool send(const ref<publication>& what) {
        is_returned_ = false;
        const int status = rabbitmq::publish(connection_, channel, *what);
        is_refused_ = status == AMQP_STATUS_BAD_AMQP_DATA || status == AMQP_STATUS_TABLE_TOO_BIG;
        if (!connection_.check_sent(status)) return false;
        pending_ = what;
        return true;
    }
    error disconnected(const publication& what) {
        drop();
        return {is_refused_ ? errc::rejected : errc::disconnected, 0,
                cat({"RabbitMQ did not take a publication to ", what.queue, ": ", connection_.fault()})};
    }
    void drop() {
        connection_.close(false);
        pending_ = {};
    }

    // A quorum queue confirms each message that it dead-letters.
    bool declare(const publication& what) {
        std::vector<amqp_table_entry_t> arguments = {text_entry("x-queue-type", "quorum")};
        if (what.delay.count() > 0) {
            arguments.push_back(number_entry("x-message-ttl", what.delay.count()));
            arguments.push_back(text_entry("x-dead-letter-exchange", ""));
            arguments.push_back(text_entry("x-dead-letter-routing-key", what.returns_to));
            arguments.push_back(text_entry("x-dead-letter-strategy", "at-least-once"));
            arguments.push_back(text_entry("x-overflow", "reject-publish"));
        }
        amqp_queue_declare(connection_.state(), channel, bytes_of(what.queue), 0, 1, 0, 0, table_of(arguments));
        const rpc_status status = connection_.check(channel);
        is_refused_ = status == rpc_status::channel_closed;
        return status == rpc_status::done;
    }

    // Done: a response has come for `pending_`.
    rpc_status await_confirm(time_point deadline) {
        while (pending_) {
            amqp_frame_t frame;
            rpc_status status = connection_.read(frame, deadline);
            if (status == rpc_status::done && frame.frame_type == AMQP_FRAME_METHOD)
                status = on_method(frame.payload.method);
            if (status == rpc_status::disconnected) drop();
            if (status != rpc_status::done) return status;
        }
        return rpc_status::done;
    }
    rpc_status on_method(const amqp_method_t& method) {
        if (method.id == AMQP_BASIC_RETURN_METHOD) is_returned_ = true;  // the confirm follows
        if (method.id == AMQP_BASIC_ACK_METHOD) pending_->is_confirmed = !is_returned_;
        if (method.id == AMQP_BASIC_ACK_METHOD || method.id == AMQP_BASIC_NACK_METHOD) pending_ = {};
        if (method.id != AMQP_CHANNEL_CLOSE_METHOD) return rpc_status::done;
        is_refused_ = true;
        connection_.keep_fault(connection::text_of<amqp_channel_close_t>(method.decoded));
        return rpc_status::disconnected;
    }

    const broker_address broker_;
    mutex mutex_;
    condition changed_;
    bool is_busy_ = false;  // a call uses the rest

    connection connection_;
    ref<publication> pending_;  // sent, and neither confirmed nor refused
    bool is_returned_ = false;  // no queue took it
    bool is_refused_ = false;   // repeating it cannot change that
};
}  // namespace rabbitmq
}  // namespace ojs::detail
