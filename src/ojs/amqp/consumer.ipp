// consumer: the thread that owns the connection, and the messages that the broker waits for.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "../base/detail/clock.ipp"
#include "../core/detail/wake.hpp"
#include "../worker/transport.hpp"
#include "amqp_transport.hpp"
#include "detail/message.ipp"
#include "publisher.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace rabbitmq {

enum class verb { ack, fail, requeue, reject };  // fail: publish, then ack

// A message that is not settled. A call that waits for its end shares it.
struct held_message : ref_counted {
    // publishing: for a FAIL, or as a dead letter. lost: with its channel, so the broker has requeued it.
    enum class state { held, publishing, due, sent, settled, lost };
    state now = state::held;
    verb decided = verb::ack;  // from `publishing` or `due` on
    ojs::job job;              // only id and queue once a FETCH has returned it
    bool is_buffered = false;  // no FETCH has returned it
    std::string claim;         // that the worker knows; empty: none
    std::string consumer_tag, message_id, properties;
    std::size_t fingerprint = 0;  // of the body
    std::uint64_t tag = 0;
    std::int64_t attempt = 1, max_attempts = 1;
    ref<publication> published;
    time_point changed_at;  // when it was lost, or its dead letter last submitted

    bool is_ready() const { return is_buffered && now == state::held; }
};
using message_ref = ref<held_message>;

// The channel of a queue. Another queue's errors do not close it.
struct queue_channel {
    std::string queue;
    amqp_channel_t number = 0;
    bool is_open = false;
    std::uint64_t generation = 0;  // of the channel, unique
    struct consumer {
        std::string tag;
        std::int64_t prefetch;
    };
    std::vector<consumer> consumers;
    time_point retry_at;  // when to open or consume again
    delivery incoming;
};

class consumer : public ref_counted {
  public:
    consumer(endpoint broker, amqp_options options)
        : broker_(std::move(broker)),
          options_(std::move(options)),
          events_(make_ref<event_log>(options_.on_event)),
          publisher_(make_ref<publisher>(broker_, options_, events_)),
          nonce_(static_cast<std::uint32_t>(random_number())) {}

    // Sets the queues and the number of jobs at a time; connects at the first call.
    result<void> begin(const worker_identity& worker, bool sets_queues) {
        const unique_lock held(mutex_);
        if (sets_queues || queues_.empty()) {
            queues_ = worker.queues;
            concurrency_ = detail::max(worker.concurrency, std::int64_t{1});
        }
        if (thread_.joinable() || is_ending_) return {};
        return start();
    }
    void end() {
        unique_lock held(mutex_);
        is_ending_ = true;
        thread ended = std::move(thread_);
        changed_.notify_all();
        held.unlock();
        on_work(nullptr);
        if (!ended.joinable()) return;
        wake_.notify();
        if (!ended.join_until(deadline_after(std::chrono::seconds(1)))) connection_.interrupt();
        ended.end_by(deadline_after(std::chrono::seconds(1)));
        publisher_->end(deadline_after(std::chrono::seconds(1)));
        events_->close();
    }
    void set_phase(phase now) {
        const unique_lock held(mutex_);
        phase_ = now;
        changed_.notify_all();
        if (thread_.joinable()) wake_.notify();
    }
    void on_work(function<void()> callback) {
        const unique_lock held(callback_mutex_);
        on_work_ = std::move(callback);
    }

    // Waits for the connection and its consumers. Errors: unreachable; unavailable: no queue can be consumed.
    result<void> await_consumers(time_point deadline) {
        unique_lock held(mutex_);
        return await_round_trip(held, deadline, [] { return false; });
    }

    // What has arrived, or else what arrives before the broker has answered a request.
    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) {
        const cancel_registration ends = request.until.on_cancel([this] {
            const unique_lock held(mutex_);
            changed_.notify_all();
        });
        unique_lock held(mutex_);
        const auto has_jobs = [&] { return request.until.cancelled() || has_ready(*request.worker); };
        const result<void> waited = has_jobs() ? result<void>() : await_round_trip(held, deadline, has_jobs);
        std::vector<job> out = take_ready(request);
        if (!out.empty() || request.until.cancelled() || waited) return out;
        return waited.error();
    }

    // Waits until the broker has read it. Errors: disconnected, while the message may come back; timed_out.
    result<settled> settle(const std::string& id, const std::string& claim, verb decided,
                           time_point deadline) {
        unique_lock held(mutex_);
        const message_ref message = find_claim(claim);
        if (!message || message->now == state::lost) return settle_lost(message, id, decided);
        if (message->now == state::held) decide(*message, decided);
        return await_settled(held, message, decided, deadline);
    }
    // Publishes it, for a retry or as a dead letter; then it is acknowledged.
    result<settled> fail(const fail_request& request, time_point deadline) {
        unique_lock held(mutex_);
        const message_ref message = find_claim(request.claim);
        if (!message || message->now == state::lost) return settle_lost(message, request.job_id, verb::fail);
        const bool is_last = !request.error.retryable || message->attempt >= message->max_attempts;
        const bool rejects = is_last && options_.use_dead_letter_exchange;
        const verb decided = rejects ? verb::reject : verb::fail;
        if (!message->is_buffered && request.job == nullptr)
            return error{errc::rejected, 0, "the FAIL of a message needs its job"};
        if (message->now == state::held && rejects) decide(*message, decided);
        if (message->now == state::held) publish_failed(*message, request, is_last);
        const result<settled> response = await_settled(held, message, decided, deadline);
        if (!response || *response == settled::gone) return response;
        return is_last ? settled::discarded : settled::will_retry;
    }

    // The ids whose claims hold; and whether all others are lost for good.
    result<heartbeat_response> renew(const std::vector<std::string>& ids) {
        const unique_lock held(mutex_);
        if (!is_connected_ && !is_draining()) return unreachable();
        heartbeat_response out;
        held_.remove_if([&](const message_ref& message) {
            const bool is_active = contains(ids, message->job.id), is_lost = message->now == state::lost;
            if (is_active && !is_lost && !message->claim.empty())
                out.jobs_extended.push_back(message->job.id);
            out.claims_lost = out.claims_lost || (is_active && is_lost && is_draining());
            return is_lost && !is_active;
        });
        return out;
    }
    // Error: disconnected, if the message may come back.
    result<bool> holds(const std::string& id, const std::string& claim) {
        const unique_lock held(mutex_);
        const message_ref message = find_claim(claim);
        if (message && message->now != state::lost) return true;
        if (message ? !may_come_back(*message) : !is_claimed_anew(id)) return false;
        return disconnected();
    }

  private:
    using state = held_message::state;
    // The broker requeues messages when it knows that their connection is gone.
    std::chrono::seconds return_time() const { return options_.heartbeat * 2 + std::chrono::seconds(1); }
    static constexpr std::chrono::seconds queue_retry_time{2};

    error unreachable() const {
        return {errc::unreachable, 0, problem_.empty() ? "no connection to RabbitMQ" : problem_};
    }
    static error disconnected() {
        return {errc::disconnected, 0,
                "the connection to RabbitMQ broke, and the message was not delivered again"};
    }
    bool is_draining() const { return phase_ >= phase::draining; }

    // The mutex is held.
    result<void> start() {
        result<wake> created = wake::create();
        if (!created) return created.error();
        wake_ = std::move(*created);
        const result<void> publishes = publisher_->start([this] { wake_.notify(); });
        if (!publishes) return publishes;
        result<thread> started =
            thread::start([self = ref<consumer>(this)] { self->run(); }, {0, 0, false, "ojs-amqp"});
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }

    // ---- what calls wait for; the mutex is held ----

    template <class IsOver>
    result<void> await_round_trip(unique_lock& held, time_point deadline, const IsOver& is_over) {
        const auto knows_connection = [&] { return is_connected_ || !problem_.empty() || is_ending_; };
        while (!knows_connection() && changed_.wait_until(held, deadline)) {
        }
        if (!is_connected_) return unreachable();
        const std::uint64_t number = ++round_trips_wanted_;
        wake_.notify();
        const auto is_done = [&] { return round_trips_done_ >= number || !is_connected_ || is_over(); };
        while (!is_done() && changed_.wait_until(held, deadline)) {
        }
        if (!is_connected_) return unreachable();
        if (!is_done()) return error{errc::timed_out, 0, "RabbitMQ did not respond in time"};
        const bool is_idle = consumed_queues_ == 0 && !problem_.empty() && !is_over();
        if (is_idle) return error{errc::unavailable, 0, problem_};
        return {};
    }
    result<settled> await_settled(unique_lock& held, const message_ref& message, verb decided,
                                  time_point deadline) {
        const auto is_over = [&] {
            return message->now == state::settled || message->now < state::publishing;
        };
        while (message->now != state::lost && !is_over() && changed_.wait_until(held, deadline)) {
        }
        const bool is_published = message->published && publisher_->is_confirmed(*message->published);
        if (message->now == state::settled || is_published)
            return message->decided == decided ? settled::accepted : settled::gone;
        if (message->now == state::lost) return disconnected();
        if (!message->published)
            return error{errc::timed_out, 0, "RabbitMQ did not respond to a report in time"};
        return error{errc::unavailable, 0, publisher_->fault_of(*message->published)};
    }

    // ---- held messages; the mutex is held ----

    message_ref find_claim(const std::string& claim) const {
        for (const message_ref& message : held_) {
            if (!claim.empty() && message->claim == claim) return message;
        }
        return {};
    }
    // A later FETCH has returned it: the worker is about to know.
    bool is_claimed_anew(const std::string& id) const {
        for (const message_ref& message : held_) {
            if (message->job.id == id && !message->claim.empty()) return true;
        }
        return false;
    }
    bool may_come_back(const held_message& message) const {
        return !is_draining() && steady_clock::now() < message.changed_at + return_time();
    }
    // None: no message has that claim.
    result<settled> settle_lost(const message_ref& message, const std::string& id, verb decided) {
        if (!message) return is_claimed_anew(id) ? result<settled>(disconnected()) : settled::gone;
        const bool is_requeued = decided == verb::requeue;
        if (!is_requeued && may_come_back(*message)) return disconnected();
        held_.remove(message);
        return is_requeued ? settled::accepted : settled::gone;
    }
    bool has_ready(const worker_identity& worker) const {
        for (const message_ref& message : held_) {
            if (message->is_ready() && contains(worker.queues, message->job.queue)) return true;
        }
        return false;
    }
    std::vector<job> take_ready(const fetch_request& request) {
        std::vector<job> out;
        for (const message_ref& message : held_) {
            if (out.size() >= request.count) break;
            if (!message->is_ready() || !contains(request.worker->queues, message->job.queue)) continue;
            message->is_buffered = false;
            message->claim = message->job.claim;
            ojs::job kept;
            kept.id = message->job.id;
            kept.queue = message->job.queue;
            out.push_back(exchange(message->job, std::move(kept)));
        }
        return out;
    }
    void decide(held_message& message, verb decided) {
        message.decided = decided;
        message.now = state::due;
        wake_.notify();
    }

    // ---- publications; the mutex is held ----

    void publish_failed(held_message& message, const fail_request& request, bool is_last) {
        const ref<publication> what =
            make_publication(message, message.is_buffered ? message.job.body : request.job->body);
        if (is_last) {
            make_dead_letter(*what, cat({request.error.code, ": ", request.error.message}));
        } else {
            what->attempt = message.attempt + 1;
            set_delay(*what, message.attempt);
        }
        begin_publishing(message, what);
    }
    void begin_publishing(held_message& message, const ref<publication>& what) {
        message.decided = verb::fail;
        message.now = state::publishing;
        message.published = what;
        message.changed_at = steady_clock::now();
        publisher_->submit(what);
    }
    ref<publication> make_publication(const held_message& message, std::string body) const {
        ref<publication> out = make_ref<publication>();
        out->queue = message.job.queue;
        out->properties = message.properties;
        out->body = std::move(body);
        out->attempt = message.attempt;
        return out;
    }
    void make_dead_letter(publication& out, const std::string& why) const {
        out.error = printable(why, 1000);
        out.queue =
            options_.dead_letter_queue.empty() ? cat({out.queue, ".dead"}) : options_.dead_letter_queue;
    }
    void set_delay(publication& out, std::int64_t attempt) const {
        const std::vector<std::chrono::milliseconds>& delays = options_.retry_delays;
        if (!delays.empty())
            out.delay = delays[detail::min(static_cast<std::size_t>(attempt), delays.size()) - 1];
        out.is_declared = out.delay.count() <= 0;
        if (out.is_declared) return;
        out.returns_to = out.queue;
        out.queue = cat({out.queue, ".retry.", out.delay.count()});
    }
    // After a confirm the original is acknowledged. A FAIL that failed is repeated by the worker, a dead
    // letter here.
    void advance_publications() {
        const unique_lock held(mutex_);
        for (const message_ref& message : held_) {
            if (message->now != state::publishing) continue;
            const publication::state now = publisher_->state_of(*message->published);
            if (now == publication::state::confirmed) decide(*message, verb::fail);
            if (now != publication::state::failed) continue;
            if (!message->claim.empty()) {
                message->now = state::held;
            } else if (steady_clock::now() > message->changed_at + std::chrono::seconds(1)) {
                begin_publishing(*message, message->published);
            }
        }
        changed_.notify_all();
    }

    // ---- the thread ----

    void run() {
        backoff pause({std::chrono::milliseconds(100), std::chrono::milliseconds(5000)});
        while (may_connect()) {
            if (connection_.open(broker_, options_.heartbeat)) {
                pause.reset();
                set_connected();
                serve();
            }
            lose_connection();
            wait_to_reconnect(pause.next());
        }
        connection_.close(true);
    }
    // Waits for the end if it drains: the broker has requeued everything.
    bool may_connect() {
        unique_lock held(mutex_);
        while (is_draining() && !is_ending_) changed_.wait(held);
        return !is_ending_;
    }
    bool is_ending() const {
        const unique_lock held(mutex_);
        return is_ending_;
    }
    void wait_to_reconnect(std::chrono::milliseconds pause) {
        const time_point until = deadline_after(pause);
        unique_lock held(mutex_);
        while (!is_ending_ && !is_draining() && changed_.wait_until(held, until)) {
        }
    }
    void set_connected() {
        events_->report(severity::info, "connection",
                        cat({"connected to RabbitMQ at ", broker_.host, ":", broker_.port}));
        const unique_lock held(mutex_);
        is_connected_ = true;
        problem_.clear();
        changed_.notify_all();
    }
    void lose_connection() {
        const bool is_orderly = is_ending();
        if (!is_orderly)
            events_->report(severity::warning, "connection",
                            cat({"no connection to RabbitMQ: ", connection_.fault()}));
        for (queue_channel& channel : channels_) lose_channel(channel);
        connection_.close(is_orderly);
        channels_.clear();
        const unique_lock held(mutex_);
        is_connected_ = false;
        consumed_queues_ = 0;
        problem_ = cat({"RabbitMQ: ", connection_.fault()});
        changed_.notify_all();
    }
    // The broker requeues its messages. Those that are in progress here may come back.
    void lose_channel(queue_channel& channel) {
        channel.is_open = false;
        channel.consumers.clear();
        channel.retry_at = deadline_after(queue_retry_time);
        const unique_lock held(mutex_);
        held_.remove_if([&](const message_ref& message) {
            if (message->job.queue != channel.queue || message->now == state::lost) return false;
            message->now = state::lost;
            message->is_buffered = false;
            message->changed_at = steady_clock::now();
            return message->claim.empty();
        });
        changed_.notify_all();
    }
    // After an error of a channel. False: disconnected.
    bool handle(rpc_status status, queue_channel& channel) {
        if (status == rpc_status::done) return true;
        lose_channel(channel);
        return status == rpc_status::channel_closed && report_queue(channel, connection_.fault());
    }
    bool report_queue(const queue_channel& channel, const std::string& text) {
        const std::string about = cat({"queue ", channel.queue, ": ", text});
        events_->report(severity::warning, channel.queue, about);
        set_problem(about);
        return true;
    }
    void set_problem(std::string text) {
        const unique_lock held(mutex_);
        problem_ = std::move(text);
    }

    void serve() {
        while (!is_ending()) {
            const std::uint64_t round_trips = wanted_round_trips();
            if (!adjust_consumers() || !send_settlements(round_trips) || !read()) return;
            hand_back_unwanted();
            advance_publications();
            end_round_trips(round_trips);
            if (!connection_.has_frames()) await_event();
        }
        static_cast<void>(send_settlements(0));
    }
    std::uint64_t wanted_round_trips() const {
        const unique_lock held(mutex_);
        return round_trips_wanted_;
    }
    void end_round_trips(std::uint64_t number) {
        bool has_jobs = false;
        {
            const unique_lock held(mutex_);
            consumed_queues_ = 0;
            for (const queue_channel& channel : channels_)
                consumed_queues_ += channel.consumers.empty() ? 0 : 1;
            round_trips_done_ = number;
            changed_.notify_all();
            has_jobs = exchange(has_new_jobs_, false);
        }
        const unique_lock held(callback_mutex_);
        if (has_jobs) on_work_();
    }
    void await_event() const {
        pollfd polled[] = {{wake_.fd(), POLLIN, 0}, {connection_.socket(), POLLIN, 0}};
        ::poll(polled, 2, 1000);  // for heartbeats, and queues to try again
        wake_.clear();
    }

    // ---- consumers ----

    bool adjust_consumers() {
        std::vector<std::string> queues;
        std::int64_t slots = 0;
        {
            const unique_lock held(mutex_);
            if (phase_ == phase::running) queues = queues_;
            slots = concurrency_;
        }
        for (queue_channel& channel : channels_) {
            if (!contains(queues, channel.queue) && !cancel(channel)) return false;
        }
        const auto count = static_cast<std::int64_t>(queues.size());
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t share = slots / count + (i < slots % count ? 1 : 0);
            if (!consume(channel_of(queues[static_cast<std::size_t>(i)]),
                         detail::max(share, std::int64_t{1})))
                return false;
        }
        return true;
    }
    queue_channel& channel_of(const std::string& queue) {
        for (queue_channel& channel : channels_) {
            if (channel.queue == queue) return channel;
        }
        channels_.emplace_back();
        channels_.back().queue = queue;
        channels_.back().number = static_cast<amqp_channel_t>(channels_.size());
        return channels_.back();
    }
    bool cancel(queue_channel& channel) {
        while (!channel.consumers.empty()) {
            amqp_basic_cancel(connection_.state(), channel.number, bytes_of(channel.consumers.back().tag));
            const rpc_status status = connection_.check(channel.number);
            if (status != rpc_status::done) return handle(status, channel);
            channel.consumers.pop_back();
        }
        return true;
    }
    // Messages of cancelled consumers count, too. As they are settled, further consumers begin: RabbitMQ
    // cannot change a consumer's prefetch, and quorum queues know no other limit.
    bool consume(queue_channel& channel, std::int64_t share) {
        if (steady_clock::now() < channel.retry_at) return true;
        rpc_status status = open(channel);
        const std::int64_t prefetch = share - limited_already(channel);
        if (status == rpc_status::done && prefetch <= 0) return true;
        const std::string tag = cat({"ojs.", ++last_consumer_});
        if (status == rpc_status::done) status = set_prefetch(channel, prefetch);
        if (status == rpc_status::done) {
            amqp_basic_consume(connection_.state(), channel.number, bytes_of(channel.queue), bytes_of(tag), 0,
                               0, 0, amqp_empty_table);
            status = connection_.check(channel.number);
        }
        if (status != rpc_status::done) return handle(status, channel);
        channel.consumers.push_back({tag, prefetch});
        set_problem("");
        events_->report(severity::info, channel.queue, cat({"consuming queue ", channel.queue}));
        return true;
    }
    rpc_status open(queue_channel& channel) {
        if (channel.is_open) return rpc_status::done;
        amqp_channel_open(connection_.state(), channel.number);
        const rpc_status status = connection_.check(channel.number);
        channel.is_open = status == rpc_status::done;
        channel.generation = ++last_generation_;
        channel.incoming = {};
        return status;
    }
    // The prefetch of the channel's consumers, and the messages of those that are cancelled.
    std::int64_t limited_already(const queue_channel& channel) const {
        std::int64_t out = 0;
        for (const queue_channel::consumer& active : channel.consumers) out += active.prefetch;
        const unique_lock held(mutex_);
        for (const message_ref& message : held_) {
            bool counts = message->job.queue == channel.queue && message->now != state::lost;
            for (const queue_channel::consumer& active : channel.consumers)
                counts = counts && message->consumer_tag != active.tag;
            out += counts ? 1 : 0;
        }
        return out;
    }
    rpc_status set_prefetch(const queue_channel& channel, std::int64_t prefetch) {
        const auto limited = static_cast<std::uint16_t>(detail::min(prefetch, std::int64_t{65535}));
        amqp_basic_qos(connection_.state(), channel.number, 0, limited, 0);
        return connection_.check(channel.number);
    }

    // ---- settlements ----

    bool send_settlements(std::uint64_t round_trips) {
        std::vector<message_ref> due;
        {
            const unique_lock held(mutex_);
            for (const message_ref& message : held_) {
                if (message->now == state::due) due.push_back(message);
            }
        }
        for (const message_ref& message : due) {
            if (!send(*message, channel_of(message->job.queue).number)) return false;
        }
        for (queue_channel& channel : channels_) {
            bool is_used = round_trips > round_trips_done_;
            for (const message_ref& message : due) is_used = is_used || message->job.queue == channel.queue;
            if (is_used && channel.is_open && !confirm(channel)) return false;
        }
        return true;
    }
    bool send(held_message& message, amqp_channel_t channel) {
        const bool is_ack = message.decided == verb::ack || message.decided == verb::fail;
        const bool requeues = message.decided == verb::requeue;
        const int status = is_ack ? amqp_basic_ack(connection_.state(), channel, message.tag, 0)
                                  : amqp_basic_nack(connection_.state(), channel, message.tag, 0, requeues);
        const unique_lock held(mutex_);
        message.now = state::sent;
        return connection_.check_sent(status);
    }
    // The response to any synchronous method says that the broker has read what was sent before it.
    bool confirm(queue_channel& channel) {
        const rpc_status status = set_prefetch(channel, 1);
        if (status != rpc_status::done) return handle(status, channel);
        const unique_lock held(mutex_);
        held_.remove_if([&](const message_ref& message) {
            const bool is_read = message->now == state::sent && message->job.queue == channel.queue;
            if (is_read) message->now = state::settled;
            return is_read;
        });
        changed_.notify_all();
        return true;
    }
    void hand_back_unwanted() {
        const unique_lock held(mutex_);
        for (const message_ref& message : held_) {
            const bool is_wanted = phase_ == phase::running && contains(queues_, message->job.queue);
            // A redelivery of what is in progress here stays: that run's report settles it.
            const bool is_new = message->is_ready() && message->claim.empty();
            if (is_new && !is_wanted) decide(*message, verb::requeue);
        }
    }

    // ---- frames ----

    bool read() {
        return connection_.read_frames([this](const amqp_frame_t& frame) { return on_frame(frame); });
    }
    bool on_frame(const amqp_frame_t& frame) {
        for (queue_channel& channel : channels_) {
            if (channel.number == frame.channel) return on_frame(channel, frame);
        }
        return true;
    }
    bool on_frame(queue_channel& channel, const amqp_frame_t& frame) {
        delivery& incoming = channel.incoming;
        if (frame.frame_type == AMQP_FRAME_METHOD) return on_method(channel, frame.payload.method);
        if (frame.frame_type == AMQP_FRAME_HEADER) read_properties(frame, incoming);
        if (frame.frame_type == AMQP_FRAME_BODY) incoming.body += view_of(frame.payload.body_fragment);
        if (incoming.tag != 0 && incoming.body.size() >= incoming.body_size)
            add(channel, exchange(incoming, {}));
        return true;
    }
    bool on_method(queue_channel& channel, const amqp_method_t& method) {
        if (method.id == AMQP_BASIC_DELIVER_METHOD) {
            const auto& from = *static_cast<const amqp_basic_deliver_t*>(method.decoded);
            channel.incoming = {};
            channel.incoming.tag = from.delivery_tag;
            channel.incoming.redelivered = from.redelivered != 0;
            channel.incoming.consumer_tag = view_of(from.consumer_tag);
            channel.incoming.body_size = UINT64_MAX;  // until its header comes
        }
        if (method.id == AMQP_BASIC_CANCEL_METHOD) {
            channel.consumers.clear();
            channel.retry_at = deadline_after(queue_retry_time);
            return report_queue(channel, "the broker ended its consumer: it was deleted, or has moved");
        }
        if (method.id != AMQP_CHANNEL_CLOSE_METHOD) return true;
        const auto& closed = *static_cast<const amqp_channel_close_t*>(method.decoded);
        const std::string why = connection::text_of(closed.reply_text, closed.reply_code);
        if (!connection_.confirm_close(channel.number)) return false;
        lose_channel(channel);
        return report_queue(channel, why);
    }

    void add(const queue_channel& channel, delivery from) {
        const unique_lock held(mutex_);
        held_message& message = *find_or_add(channel, from);
        message.consumer_tag = std::move(from.consumer_tag);
        message.tag = from.tag;
        message.attempt = from.attempt;
        message.max_attempts = from.max_attempts > 0 ? from.max_attempts : options_.max_attempts;
        message.properties = std::move(from.properties);
        message.is_buffered = true;
        message.now =
            message.published ? state::publishing : state::held;  // of a FAIL that its connection outlived
        job& next = message.job;
        next.type = from.type.empty() ? options_.default_type : std::move(from.type);
        next.attempt = message.attempt;
        next.max_attempts = message.max_attempts;
        next.claim = cat({channel.generation, ".", from.tag});
        read_args(from, next);
        next.body = std::move(from.body);
        has_new_jobs_ = true;
        if (message.claim.empty() && message.attempt > message.max_attempts) reject_unrun(message);
    }
    // A redelivery of a message that is in progress here is recognized by its message-id. Another message
    // with that message-id is another job.
    message_ref find_or_add(const queue_channel& channel, const delivery& from) {
        const std::size_t fingerprint = std::hash<std::string_view>()(from.body);
        bool is_used = from.message_id.empty();
        for (const message_ref& message : held_) {
            is_used = is_used || message->job.id == from.message_id;
            const bool may_be = message->now == state::lost && from.redelivered && !from.message_id.empty();
            if (may_be && message->message_id == from.message_id && message->fingerprint == fingerprint &&
                message->job.queue == channel.queue)
                return message;
        }
        message_ref out = make_ref<held_message>();
        const std::string& prefix = from.message_id.empty() ? channel.queue : from.message_id;
        const std::string made = cat({prefix, "#", nonce_, ".", channel.generation, ".", from.tag});
        out->job.id = is_used ? made : from.message_id;
        out->job.queue = channel.queue;
        out->message_id = from.message_id;
        out->fingerprint = fingerprint;
        held_.push_back(out);
        return out;
    }
    // Its attempts were used up before it came.
    void reject_unrun(held_message& message) {
        events_->report(severity::warning, cat({message.job.queue, " attempts"}),
                        cat({"message ", printable(message.job.id), " of queue ", message.job.queue,
                             " has used up its attempts, and is not run"}));
        if (options_.use_dead_letter_exchange) return decide(message, verb::reject);
        const ref<publication> what = make_publication(message, message.job.body);
        make_dead_letter(*what, "attempts_used_up: its runs ended without a report");
        begin_publishing(message, what);
    }

    const endpoint broker_;
    const amqp_options options_;
    const ref<event_log> events_;
    const ref<publisher> publisher_;
    const std::uint32_t nonce_;  // tells ids of this process from those of others

    mutable mutex mutex_;
    condition changed_;
    std::list<message_ref> held_;  // in the order of their deliveries
    std::vector<std::string> queues_;
    std::int64_t concurrency_ = 1;
    phase phase_ = phase::running;
    bool is_connected_ = false, is_ending_ = false, has_new_jobs_ = false;
    int consumed_queues_ = 0;
    std::string problem_;  // why there is no connection, or no consumer
    std::uint64_t round_trips_wanted_ = 0, round_trips_done_ = 0;
    wake wake_;
    thread thread_;

    mutex callback_mutex_;
    function<void()> on_work_;

    // Used only by the thread.
    connection connection_;
    std::list<queue_channel> channels_;
    std::uint64_t last_generation_ = 0, last_consumer_ = 0;
};

}  // namespace rabbitmq
}  // namespace detail
}  // namespace v0_1_0
}  // namespace ojs
