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

// An ACK or FAIL that is in progress.
struct settlement : ref_counted {
    enum class state { publishing, due, sent, accepted, broken };
    verb what = verb::ack;
    state now = state::due;
};

// A message that is not settled.
struct held_message {
    ojs::job job;              // without its body once a FETCH has returned it
    bool is_buffered = false;  // no FETCH has returned it
    std::string claim;         // that the worker knows; empty: none
    std::string consumer_tag, message_id, properties;
    std::size_t fingerprint = 0;  // of the body
    std::uint64_t tag = 0;
    std::int64_t attempt = 1, max_attempts = 0;
    ref<settlement> settling;
    ref<publication> published;   // of a FAIL
    bool is_dead_letter = false;  // its attempts were used up before it was delivered
    time_point retry_at;          // when to publish that one again
    bool is_lost = false;         // with its channel: the broker has requeued it
    time_point lost_at;

    bool is_ready() const { return is_buffered && !is_lost && !settling && !published; }
};

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
    result<settled> settle(const std::string& id, const std::string& claim, verb what, settled accepted,
                           time_point deadline) {
        unique_lock held(mutex_);
        held_message* const message = find_claim(claim);
        if (message == nullptr || message->is_lost) return settle_lost(message, id, what);
        if (!message->settling) begin_settling(*message, what, settlement::state::due);
        return await_settled(held, message->settling, what, accepted, deadline);
    }
    // Publishes it, for a retry or as a dead letter, and then acknowledges it.
    result<settled> fail(const fail_request& request, time_point deadline) {
        unique_lock held(mutex_);
        held_message* const message = find_claim(request.claim);
        if (message == nullptr || message->is_lost) return settle_lost(message, request.job_id, verb::fail);
        const bool is_last = !request.error.retryable || message->attempt >= max_attempts_of(*message);
        const settled accepted = is_last ? settled::discarded : settled::will_retry;
        if (message->settling) return await_settled(held, message->settling, verb::fail, accepted, deadline);
        if (is_last && options_.use_dead_letter_exchange) {
            begin_settling(*message, verb::reject, settlement::state::due);
            return await_settled(held, message->settling, verb::reject, accepted, deadline);
        }
        if (!message->is_buffered && request.job == nullptr)
            return error{errc::rejected, 0, "the FAIL of a message needs its job"};
        if (!message->published) message->published = make_publication(*message, request, is_last);
        begin_settling(*message, verb::fail, settlement::state::publishing);
        const ref<settlement> settling = message->settling;
        const ref<publication> published = message->published;
        held.unlock();
        const result<void> confirmed = publisher_->publish(published, deadline);
        held.lock();
        if (!confirmed) return end_failed(request.claim, settling, published, confirmed.error());
        acknowledge_published(request.claim, settling);
        static_cast<void>(await_settled(held, settling, verb::fail, accepted, deadline));
        return accepted;
    }

    // The ids whose claims hold; and whether all others are lost for good.
    result<heartbeat_response> renew(const std::vector<std::string>& ids) {
        const unique_lock held(mutex_);
        if (!is_connected_ && !is_draining()) return unreachable();
        heartbeat_response out;
        for (auto message = held_.begin(); message != held_.end();) {
            const bool is_active = contains(ids, message->job.id);
            if (is_active && !message->is_lost && !message->claim.empty())
                out.jobs_extended.push_back(message->job.id);
            out.claims_lost = out.claims_lost || (is_active && message->is_lost && is_draining());
            message = message->is_lost && !is_active ? held_.erase(message) : std::next(message);
        }
        return out;
    }
    // Error: disconnected, if the message may come back.
    result<bool> holds(const std::string& id, const std::string& claim) {
        const unique_lock held(mutex_);
        const held_message* const message = find_claim(claim);
        if (message != nullptr && !message->is_lost) return true;
        if (message != nullptr ? !may_come_back(*message) : !is_claimed_anew(id)) return false;
        return disconnected();
    }

  private:
    using state = settlement::state;
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
    result<settled> await_settled(unique_lock& held, ref<settlement> settling, verb what, settled accepted,
                                  time_point deadline) {
        const auto is_over = [&] {
            return settling->now == state::accepted || settling->now == state::broken;
        };
        while (!is_over() && changed_.wait_until(held, deadline)) {
        }
        if (settling->now == state::accepted) return settling->what == what ? accepted : settled::gone;
        if (settling->now == state::broken) return disconnected();
        return error{errc::timed_out, 0, "RabbitMQ did not respond to the report in time"};
    }

    // ---- held messages; the mutex is held ----

    held_message* find_claim(const std::string& claim) {
        for (held_message& message : held_) {
            if (!claim.empty() && message.claim == claim) return &message;
        }
        return nullptr;
    }
    // A later FETCH has returned it: the worker is about to know.
    bool is_claimed_anew(const std::string& id) const {
        for (const held_message& message : held_) {
            if (message.job.id == id && !message.claim.empty()) return true;
        }
        return false;
    }
    bool may_come_back(const held_message& message) const {
        return !is_draining() && steady_clock::now() < message.lost_at + return_time();
    }
    // Null: no message has that claim.
    result<settled> settle_lost(const held_message* message, const std::string& id, verb what) {
        if (message == nullptr) return is_claimed_anew(id) ? result<settled>(disconnected()) : settled::gone;
        const bool is_requeued = what == verb::requeue;
        if (!is_requeued && may_come_back(*message)) return disconnected();
        held_.remove_if([&](const held_message& other) { return &other == message; });
        return is_requeued ? settled::accepted : settled::gone;
    }
    bool has_ready(const worker_identity& worker) const {
        for (const held_message& message : held_) {
            if (message.is_ready() && contains(worker.queues, message.job.queue)) return true;
        }
        return false;
    }
    std::vector<job> take_ready(const fetch_request& request) {
        std::vector<job> out;
        for (held_message& message : held_) {
            if (out.size() >= request.count) break;
            if (!message.is_ready() || !contains(request.worker->queues, message.job.queue)) continue;
            message.is_buffered = false;
            message.claim = message.job.claim;
            const std::string id = message.job.id, queue = message.job.queue;
            out.push_back(std::move(message.job));
            message.job.id = id;
            message.job.queue = queue;
        }
        return out;
    }
    void begin_settling(held_message& message, verb what, state now) {
        message.settling = make_ref<settlement>();
        message.settling->what = what;
        message.settling->now = now;
        wake_.notify();
    }
    std::int64_t max_attempts_of(const held_message& message) const {
        return message.max_attempts > 0 ? message.max_attempts : options_.max_attempts;
    }

    // ---- publications; the mutex is held ----

    ref<publication> make_publication(const held_message& message, std::string body) const {
        ref<publication> out = make_ref<publication>();
        out->queue = message.job.queue;
        out->properties = message.properties;
        out->body = std::move(body);
        out->attempt = message.attempt;
        return out;
    }
    ref<publication> make_publication(const held_message& message, const fail_request& request,
                                      bool is_last) const {
        ref<publication> out =
            make_publication(message, message.is_buffered ? message.job.body : request.job->body);
        if (is_last) {
            make_dead_letter(*out, cat({request.error.code, ": ", request.error.message}));
        } else {
            ++out->attempt;
            set_delay(*out, message.attempt);
        }
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
    error end_failed(const std::string& claim, const ref<settlement>& settling,
                     const ref<publication>& published, const error& why) {
        held_message* const message = find_claim(claim);
        if (message != nullptr && message->settling == settling) message->settling = {};
        const bool has_failed = publisher_->state_of(*published) == publication::state::failed;
        if (message != nullptr && has_failed) message->published = {};
        settling->now = state::broken;
        changed_.notify_all();
        return why;
    }
    // It may have been lost, and delivered again, meanwhile.
    void acknowledge_published(const std::string& claim, const ref<settlement>& settling) {
        held_message* const message = find_claim(claim);
        if (message == nullptr || message->is_lost) {
            settling->now = state::broken;
            return;
        }
        message->settling = settling;
        settling->now = state::due;
        wake_.notify();
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
        for (auto message = held_.begin(); message != held_.end();) {
            if (message->job.queue != channel.queue || message->is_lost) {
                ++message;
                continue;
            }
            if (message->settling) message->settling->now = state::broken;
            message->settling = {};
            message->is_lost = true;
            message->is_buffered = false;
            message->lost_at = steady_clock::now();
            message = message->claim.empty() ? held_.erase(message) : std::next(message);
        }
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
            advance_dead_letters();
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
    // Messages of cancelled consumers count, too. As they are settled, further consumers begin: RabbitMQ cannot change a
    // consumer's prefetch, and quorum queues know no other limit.
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
        for (const held_message& message : held_) {
            bool counts = message.job.queue == channel.queue && !message.is_lost;
            for (const queue_channel::consumer& active : channel.consumers)
                counts = counts && message.consumer_tag != active.tag;
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

    struct order {
        queue_channel* channel;
        std::uint64_t tag;
        verb what;
    };
    std::vector<order> take_due() {
        std::vector<order> out;
        const unique_lock held(mutex_);
        for (held_message& message : held_) {
            if (message.is_lost || !message.settling || message.settling->now != state::due) continue;
            message.settling->now = state::sent;
            out.push_back({&channel_of(message.job.queue), message.tag, message.settling->what});
        }
        return out;
    }
    bool send_settlements(std::uint64_t round_trips) {
        const std::vector<order> due = take_due();
        for (const order& each : due) {
            const amqp_channel_t number = each.channel->number;
            const bool is_ack = each.what == verb::ack || each.what == verb::fail;
            const int status = is_ack ? amqp_basic_ack(connection_.state(), number, each.tag, 0)
                                      : amqp_basic_nack(connection_.state(), number, each.tag, 0,
                                                        each.what == verb::requeue);
            if (!connection_.check_sent(status)) return false;
        }
        for (queue_channel& channel : channels_) {
            bool is_used = round_trips > round_trips_done_;
            for (const order& each : due) is_used = is_used || each.channel == &channel;
            if (is_used && channel.is_open && !confirm(channel)) return false;
        }
        return true;
    }
    // The response to any synchronous method says that the broker has read what was sent before it.
    bool confirm(queue_channel& channel) {
        const rpc_status status = set_prefetch(channel, 1);
        if (status != rpc_status::done) return handle(status, channel);
        const unique_lock held(mutex_);
        held_.remove_if([&](const held_message& message) {
            if (message.job.queue != channel.queue || !message.settling ||
                message.settling->now != state::sent)
                return false;
            message.settling->now = state::accepted;
            return true;
        });
        changed_.notify_all();
        return true;
    }
    void hand_back_unwanted() {
        const unique_lock held(mutex_);
        for (held_message& message : held_) {
            const bool is_wanted = phase_ == phase::running && contains(queues_, message.job.queue);
            if (message.is_ready() && !is_wanted) begin_settling(message, verb::requeue, state::due);
        }
    }
    // Messages whose attempts were used up when they came.
    void advance_dead_letters() {
        const unique_lock held(mutex_);
        for (held_message& message : held_) {
            if (!message.is_dead_letter || message.settling) continue;
            const publication::state now = publisher_->state_of(*message.published);
            if (now == publication::state::confirmed) begin_settling(message, verb::ack, state::due);
            if (now != publication::state::failed || steady_clock::now() < message.retry_at) continue;
            message.retry_at = deadline_after(std::chrono::seconds(1));
            publisher_->submit(message.published);
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
        const std::size_t fingerprint = std::hash<std::string_view>()(from.body);
        const unique_lock held(mutex_);
        held_message& message = find_or_add(channel, from, fingerprint);
        message.consumer_tag = std::move(from.consumer_tag);
        message.tag = from.tag;
        message.attempt = from.attempt;
        message.max_attempts = from.max_attempts;
        message.properties = std::move(from.properties);
        message.is_buffered = true;
        job& next = message.job;
        next.type = from.type.empty() ? options_.default_type : std::move(from.type);
        next.attempt = from.attempt;
        next.max_attempts = max_attempts_of(message);
        next.claim = cat({channel.generation, ".", from.tag});
        read_args(from, next);
        next.body = std::move(from.body);
        has_new_jobs_ = true;
        const bool is_republished =
            message.published && publisher_->state_of(*message.published) == publication::state::confirmed;
        if (is_republished) return begin_settling(message, verb::ack, state::due);
        if (message.claim.empty() && message.attempt > next.max_attempts) begin_dead_letter(message);
    }
    // A redelivery of a message that is in progress here is recognized by its message-id. Another message with that
    // message-id is another job.
    held_message& find_or_add(const queue_channel& channel, const delivery& from, std::size_t fingerprint) {
        bool is_used = from.message_id.empty();
        for (held_message& message : held_) {
            is_used = is_used || message.job.id == from.message_id;
            const bool is_same = message.is_lost && from.redelivered && !from.message_id.empty() &&
                                 message.message_id == from.message_id &&
                                 message.fingerprint == fingerprint && message.job.queue == channel.queue;
            if (!is_same) continue;
            message.is_lost = false;
            return message;
        }
        held_.emplace_back();
        held_message& out = held_.back();
        const std::string prefix = from.message_id.empty() ? channel.queue : from.message_id;
        const std::string made = cat({prefix, "#", nonce_, ".", channel.generation, ".", from.tag});
        out.job.id = is_used ? made : from.message_id;
        out.job.queue = channel.queue;
        out.message_id = from.message_id;
        out.fingerprint = fingerprint;
        return out;
    }
    void begin_dead_letter(held_message& message) {
        events_->report(severity::warning, cat({message.job.queue, " attempts"}),
                        cat({"message ", printable(message.job.id), " of queue ", message.job.queue,
                             " has used up its attempts, and is not run"}));
        if (options_.use_dead_letter_exchange) return begin_settling(message, verb::reject, state::due);
        message.published = make_publication(message, message.job.body);
        --message.published->attempt;
        make_dead_letter(*message.published, "attempts_used_up: the runs ended without a report");
        message.is_dead_letter = true;
        publisher_->submit(message.published);
    }

    const endpoint broker_;
    const amqp_options options_;
    const ref<event_log> events_;
    const ref<publisher> publisher_;
    const std::uint32_t nonce_;  // tells ids of this process from those of others

    mutable mutex mutex_;
    condition changed_;
    std::list<held_message> held_;  // in the order of their deliveries
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
