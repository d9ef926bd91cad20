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
    std::string queue, origin;     // where it goes, and whence the message came
    std::string properties, body;  // of the original message
    std::int64_t attempt = 0;
    std::string error;                   // of a dead letter; empty: a retry
    std::chrono::milliseconds delay{0};  // of a retry, in its queue
    // Guarded.
    bool has_ended = false;
    result<void> outcome;  // rejected: no try will do; disconnected: it may have been published
};

// What the broker adds to a message, and what must not go out again: CC routes to other queues, expiration
// drops, and x-death makes the broker take a retry for a loop.
OJS_SHUTDOWN_INLINE bool is_dropped_header(std::string_view name) {
    return starts_with(name, "x-death") || starts_with(name, "x-first-death-") || starts_with(name, "x-last-death-") ||
           is_listed(name, "CC BCC x-delivery-count x-acquired-count x-ojs-attempt x-ojs-error");
}

OJS_SHUTDOWN_INLINE amqp_table_entry_t text_entry(const char* name, std::string_view text) {
    amqp_table_entry_t out{amqp_cstring_bytes(name), {AMQP_FIELD_KIND_UTF8, {}}};
    out.value.value.bytes = bytes_of(text);
    return out;
}
OJS_SHUTDOWN_INLINE amqp_table_entry_t number_entry(const char* name, std::int64_t number) {
    amqp_table_entry_t out{amqp_cstring_bytes(name), {AMQP_FIELD_KIND_I64, {}}};
    out.value.value.i64 = number;
    return out;
}
OJS_SHUTDOWN_INLINE amqp_table_t table_of(std::vector<amqp_table_entry_t>& entries) {
    return {static_cast<int>(entries.size()), entries.data()};
}

// Has a connection of its own: while it is short of memory or disk, RabbitMQ reads nothing from connections that
// publish, and acknowledgements must not wait for that. It is opened by the first publication.
class publisher : public link {
  public:
    // `owner`, which ends it, is notified of each end.
    publisher(const link& owner, monitor& shared) : link(shared), owner_(owner) {}

    // Guarded.
    void submit(ref<publication> what) {
        const result<void> started = start("ojs-amqp-retry");
        if (!started) return finish(*what, started.error());
        queued_.push_back(std::move(what));
        notify();
    }

  private:
    static constexpr amqp_channel_t declaring = 2;  // what is refused closes its channel

    bool turn() override {
        for (;;) {
            unique_lock held(shared_.guard);
            if (queued_.empty()) break;
            const ref<publication> what = queued_.front();
            queued_.pop_front();
            held.unlock();
            if (has_queue(*what) && send(*what)) {
                sent_[++number_] = what;
                continue;
            }
            held.lock();
            finish(*what, fault_);
            if (fault_.code != errc::rejected) return false;
        }
        return read([this](const amqp_frame_t& frame) {
            if (frame.frame_type == AMQP_FRAME_METHOD) on_method(frame.payload.method);
            return true;
        });
    }
    // If the broker closed the channel, the only one that it had is to blame.
    void lose() override {
        const unique_lock held(shared_.guard);
        const errc code = sent_.size() == 1 ? fault_.code : errc::disconnected;
        for (const auto& [number, what] : sent_) finish(*what, error{code, 0, fault_.text});
        sent_.clear();
        number_ = 0;
        known_.clear();
        for (const ref<publication>& what : queued_) finish(*what, error{errc::unreachable, 0, fault_.text});
        queued_.clear();
    }

    // Guarded. Once; without an error it is confirmed.
    void finish(publication& what, const result<void>& ended) const {
        if (exchange(what.has_ended, true)) return;
        const std::string text = cat({"RabbitMQ did not take a publication to ", what.queue, ": ", ended.error().text});
        if (!ended) what.outcome = error{ended.error().code, 0, text};
        shared_.changed.notify_all();
        owner_.notify();
    }

    bool send(const publication& what) {
        if (number_ == 0) amqp_confirm_select(state_, channel);
        if (number_ == 0 && !check()) return false;
        amqp_pool_t pool;
        init_amqp_pool(&pool, 4096);
        void* decoded = nullptr;
        int status = amqp_decode_properties(AMQP_BASIC_CLASS, &pool, bytes_of(what.properties), &decoded);
        if (status == AMQP_STATUS_OK) status = send(what, *static_cast<amqp_basic_properties_t*>(decoded));
        empty_amqp_pool(&pool);
        return check_sent(status);
    }
    int send(const publication& what, amqp_basic_properties_t properties) {
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
        std::string frame(frame_max - 20, '\0');  // without its head, the body's size and its end
        if (amqp_encode_properties(AMQP_BASIC_CLASS, &properties, bytes_of(frame)) < 0)
            return AMQP_STATUS_TABLE_TOO_BIG;
        return amqp_basic_publish(state_, channel, amqp_empty_bytes, bytes_of(what.queue), 1, 0, &properties,
                                  bytes_of(what.body));
    }
    // Declares the queue if it is missing; a user without that right may use an existing one.
    bool has_queue(const publication& what) {
        if (what.queue == what.origin || known_.count(what.queue) != 0) return true;
        if (what.queue.size() > 255) return fail("the queue's name has more than 255 bytes", true);
        if (!declare(what, true) && (fault_.code != errc::rejected || !declare(what, false))) return false;
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
        amqp_channel_open(state_, declaring);
        if (!check()) return false;
        amqp_queue_declare(state_, declaring, bytes_of(what.queue), is_passive ? 1 : 0, 1, 0, 0, table_of(arguments));
        amqp_channel_close_ok_t closed{};  // the broker has closed it
        if (!check())
            return check_sent(amqp_send_method(state_, declaring, AMQP_CHANNEL_CLOSE_OK_METHOD, &closed)) && false;
        amqp_channel_close(state_, declaring, AMQP_REPLY_SUCCESS);
        return true;
    }

    void on_method(const amqp_method_t& method) {
        const unique_lock held(shared_.guard);
        if (method.id == AMQP_BASIC_RETURN_METHOD) {  // the confirm follows
            const std::string queue(view_of(static_cast<amqp_basic_return_t*>(method.decoded)->routing_key));
            for (const auto& [number, what] : sent_) {
                if (what->queue == queue) finish(*what, error{errc::unavailable, 0, "the queue was deleted"});
            }
            known_.erase(queue);
        } else if (method.id == AMQP_BASIC_ACK_METHOD) {
            confirm(*static_cast<amqp_basic_ack_t*>(method.decoded), {});
        } else if (method.id == AMQP_BASIC_NACK_METHOD) {
            confirm(*static_cast<amqp_basic_nack_t*>(method.decoded),
                    error{errc::unavailable, 0, "the queue refuses messages"});
        }
    }
    template <class Confirm>
    void confirm(const Confirm& of, const result<void>& ended) {
        const auto first = of.multiple != 0 ? sent_.begin() : sent_.lower_bound(of.delivery_tag);
        const auto last = sent_.upper_bound(of.delivery_tag);
        for (auto at = first; at != last; ++at) finish(*at->second, ended);
        sent_.erase(first, last);
        has_worked_ = true;
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
