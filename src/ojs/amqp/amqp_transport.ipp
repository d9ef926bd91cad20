#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <list>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../base/detail/clock.ipp"
#include "../core/detail/wake.hpp"
#include "../worker/worker_options.hpp"
#include "amqp_transport.hpp"
#include "detail/message.ipp"
#include "detail/publisher.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace rabbitmq {
enum class verb { ack, fail, requeue, reject };  // fail: publish, then ack

// A message that is not settled. A call that waits for its end shares it.
struct held_message : ref_counted {
    // publishing: for a FAIL, or as a dead letter. lost: with its channel, so the broker has requeued it.
    enum class state { held, publishing, due, settled, lost };
    state now = state::held;
    verb decided = verb::ack;      // from `publishing` or `due` on
    std::string id, queue;         // job::id and job::queue
    std::string claim;             // that the worker knows; empty: none
    delivery from;                 // the body moves to the worker
    bool is_buffered = false;      // no FETCH has returned it
    bool is_counted = false;       // in its queue_channel's prefetch
    bool is_refused = false;       // its FAIL: it stays the broker's, and another one is prefetched
    std::size_t fingerprint = 0;   // of the body
    std::uint64_t generation = 0;  // of its channel
    ref<publication> published;
    bool is_published = false;
    time_point lost_at;

    bool is_waiting() const { return is_buffered && now == state::held; }
    // Its runs ended without a report.
    bool is_used_up() const { return claim.empty() && from.attempt > from.max_attempts; }
};
using message_ref = ref<held_message>;

// The channel of a queue. Another queue's errors do not close it.
struct queue_channel {
    std::string queue;
    amqp_channel_t number = 0;
    bool is_open = false;
    std::uint64_t generation = 0;   // of the channel, unique
    std::vector<std::string> tags;  // of its consumers
    std::int64_t prefetch = 0;      // of all of them
    time_point retry_at;            // when to open or consume again
    delivery incoming;
    std::string event;  // the last one
};

// The consuming connection belongs to the thread. Calls wait for it, and publish by themselves.
class amqp_transport : public transport {
  public:
    amqp_transport(broker_address broker, amqp_options options)
        : broker_(std::move(broker)),
          options_(std::move(options)),
          publisher_(broker_),
          nonce_(static_cast<std::uint32_t>(random_number())) {}
    // Waits for the thread, whose calls of librabbitmq end after rpc_timeout.
    ~amqp_transport() override {
        is_ending_ = true;
        notify();
        thread_.join();
    }
    // Connects.
    result<void> start() {
        result<wake> created = wake::create();
        if (!created) return created.error();
        wake_ = std::move(*created);
        result<thread> started = thread::start([this] { run(); }, {0, false, "ojs-amqp"});
        if (!started) return started.error();
        thread_ = std::move(*started);
        return {};
    }

    // What has arrived, or else what arrives before the broker has responded to a request.
    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        if (request.should_send && !request.should_send()) return unwanted();
        const cancel_registration ends = request.until.on_cancel([this] { notify(); });
        unique_lock held(mutex_);
        set_worker(*request.worker);
        std::vector<job> out = take_waiting(request);
        const auto is_over = [&] {
            if (out.empty()) out = take_waiting(request);
            return !out.empty() || request.until.cancelled();
        };
        if (is_over()) return out;
        discard_used_up(held);
        const result<void> waited = await_next_turn(held, deadline, is_over);
        if (!is_over() && !waited) return waited.error();
        return out;
    }
    result<settle_result> ack(const ack_request& request, time_point deadline) override {
        return settle(request, verb::ack, deadline);
    }
    // Publishes it, for a retry or as a dead letter; then it is acknowledged.
    result<settle_result> fail(const fail_request& request, time_point deadline) override {
        return settle(request, request.requeue ? verb::requeue : verb::fail, deadline);
    }
    // The ids whose claims hold; and whether all others are lost for good.
    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override {
        unique_lock held(mutex_);
        set_worker(*request.worker);
        while (!is_connected_ && problem_.empty() && !is_draining() && changed_.wait_until(held, deadline)) {
        }
        if (!is_connected_ && !is_draining()) return unreachable();
        heartbeat_response out;
        held_.remove_if([&](const message_ref& message) {
            const bool is_lost = message->now == state::lost;
            if (!contains(request.active_jobs, message->id)) return is_lost;
            if (!is_lost && !message->claim.empty()) out.jobs_extended.push_back(message->id);
            out.claims_lost = out.claims_lost || (is_lost && is_draining());
            return false;
        });
        return out;
    }
    result<bool> confirm_claim(const job_request& query, time_point) override {
        const unique_lock held(mutex_);
        const result<message_ref> found = find_claim(query.job_id, query.claim);
        if (!found) return found.error();
        return bool(*found);
    }
    void on_work_available(function<void()> callback) override {
        const unique_lock held(callback_mutex_);
        on_work_ = std::move(callback);
    }
    void on_phase(phase now) override {
        phase_ = now;
        notify();
    }

  private:
    using state = held_message::state;
    static constexpr std::chrono::seconds rpc_timeout{5}, queue_retry_time{2};
    // The broker requeues messages when it knows that their connection is gone.
    std::chrono::seconds return_time() const { return options_.heartbeat * 2 + std::chrono::seconds(1); }

    error unreachable() const {
        return {errc::unreachable, 0, problem_.empty() ? "no connection to RabbitMQ" : problem_};
    }
    bool is_draining() const { return phase_.load() >= phase::draining; }

    static error unwanted() { return {errc::cancelled, 0, "cancelled: the worker stopped fetching"}; }
    // Of the thread, and of calls that wait.
    void notify() {
        const unique_lock held(mutex_);
        changed_.notify_all();
        wake_.notify();
    }

    // ---- calls; the mutex is held ----

    void set_worker(const worker_identity& worker) {
        queues_ = worker.queues;
        concurrency_ = detail::max(worker.concurrency, std::int64_t{1});
    }

    template <class IsOver>
    result<void> await_next_turn(unique_lock& held, time_point deadline, const IsOver& is_over) {
        while (!is_connected_ && problem_.empty() && changed_.wait_until(held, deadline)) {
        }
        const std::uint64_t number = turns_wanted_ + 1;  // under the lock
        turns_wanted_ = number;
        wake_.notify();
        const auto is_done = [&] { return turns_done_ >= number || !is_connected_; };
        while (!is_over() && !is_done() && changed_.wait_until(held, deadline)) {
        }
        if (!is_connected_) return unreachable();
        if (!is_done()) return error{errc::timed_out, 0, "RabbitMQ did not respond in time"};
        if (!is_consuming_ && !problem_.empty()) return error{errc::unavailable, 0, problem_};
        return {};
    }
    // None: its claim is gone. Error: it may come back, or a FETCH has just returned it again.
    result<message_ref> find_claim(const std::string& id, const std::string& claim) const {
        for (const message_ref& message : held_) {
            if (message->id != id || message->claim.empty()) continue;
            const bool is_lost = message->now == state::lost;
            if (message->claim == claim && !is_lost) return message;
            if (is_lost && (is_draining() || steady_clock::now() > message->lost_at + return_time())) break;
            return disconnected();
        }
        return message_ref();
    }
    static error disconnected() {
        return {errc::disconnected, 0, "the connection to RabbitMQ broke, and the message was not delivered again"};
    }
    template <class Request>
    result<settle_result> settle(const Request& request, verb decided, time_point deadline) {
        if (request.should_send && !request.should_send()) return unwanted();
        unique_lock held(mutex_);
        const result<message_ref> found = find_claim(request.job_id, request.claim);
        if (!found) return found.error();
        if (!*found) return settle_result::gone;
        if constexpr (std::is_same_v<Request, fail_request>) {
            if (decided == verb::fail) return fail(held, *found, request, deadline);
        }
        return settle(held, *found, decided, deadline);
    }
    result<settle_result> fail(unique_lock& held, const message_ref& message, const fail_request& request,
                               time_point deadline) {
        const delivery& from = message->from;
        const bool is_last = !request.error.retryable || from.attempt >= from.max_attempts;
        const bool rejects = is_last && options_.use_dead_letter_exchange;
        if (!message->is_buffered && request.job == nullptr)
            return error{errc::rejected, 0, "the FAIL of a message needs its job"};
        if (message->now < state::due && !rejects && !message->published) {
            const std::string why = cat({request.error.code, ": ", request.error.message});
            message->published =
                publication_of(*message, message->is_buffered ? from.body : request.job->body, is_last ? why : "");
        }
        return settle(held, message, rejects ? verb::reject : verb::fail, deadline);
    }
    // Waits until the broker has read it. Errors: disconnected, while the message may come back; timed_out;
    // those of the publisher.
    result<settle_result> settle(unique_lock& held, const message_ref& message, verb decided, time_point deadline) {
        if (decided == verb::fail && message->now < state::due) {
            const result<void> published = publish(held, message, deadline);
            if (!published) return published.error();
        }
        if (message->now == state::held) decide(*message, decided);
        while (message->now < state::settled && changed_.wait_until(held, deadline)) {
        }
        if (message->now == state::settled || message->is_published)
            return message->decided == decided ? settle_result::accepted : settle_result::gone;
        if (message->now == state::lost) return disconnected();
        return error{errc::timed_out, 0, "RabbitMQ did not respond to a report in time"};
    }
    void decide(held_message& message, verb decided) {
        message.decided = decided;
        message.now = state::due;
        wake_.notify();
    }
    std::vector<job> take_waiting(const fetch_request& request) {
        std::vector<job> out;
        for (const message_ref& message : held_) {
            if (out.size() >= request.count) break;
            if (!message->is_waiting() || message->is_used_up()) continue;
            message->is_buffered = false;
            out.push_back(make_job(*message));
            message->claim = out.back().claim;
        }
        return out;
    }
    job make_job(held_message& message) const {
        job out;
        out.id = message.id;
        out.queue = message.queue;
        out.type = message.from.type.empty() ? options_.default_type : message.from.type;
        out.attempt = message.from.attempt;
        out.max_attempts = message.from.max_attempts;
        out.visibility_timeout = no_limit;  // ours as long as its connection lasts
        out.meta_json = cat({"{", message.from.meta, "}"});
        out.claim = cat({message.generation, ".", message.from.tag});
        read_args(message.from, out);
        out.body = std::move(message.from.body);
        return out;
    }

    // ---- publications; the mutex is held, but while it publishes ----

    result<void> publish(unique_lock& held, const message_ref& message, time_point deadline) {
        message->now = state::publishing;
        message->decided = verb::fail;
        const ref<publication> what = message->published;
        held.unlock();
        result<void> out = publisher_.publish(what, deadline);
        held.lock();
        message->is_published = message->is_published || out;
        message->is_refused = !out && out.error().code == errc::rejected;
        if (!out && out.error().code != errc::timed_out) message->published = {};
        if (message->now == state::publishing) message->now = state::held;
        return out;
    }
    // A retry, or with an error a dead letter.
    ref<publication> publication_of(const held_message& message, const std::string& body,
                                    const std::string& error) const {
        ref<publication> out = make_ref<publication>();
        out->properties = message.from.properties;
        out->body = body;
        out->attempt = message.from.attempt + (error.empty() ? 1 : 0);
        out->error = printable(error, 1000);
        out->queue = message.queue;
        const std::string& dead = options_.dead_letter_queue;
        if (!error.empty()) {
            out->queue = dead.empty() ? cat({message.queue, ".dead"}) : dead;
            return out;
        }
        const std::vector<std::chrono::milliseconds>& delays = options_.retry_delays;
        out->delay = delays[detail::min(static_cast<std::size_t>(message.from.attempt), delays.size()) - 1];
        out->returns_to = message.queue;
        if (out->delay.count() > 0) out->queue = cat({message.queue, ".retry.", out->delay.count()});
        return out;
    }
    // A failure is repeated by the next FETCH.
    void discard_used_up(unique_lock& held) {
        for (const message_ref& message : std::list<message_ref>(held_)) {
            if (!message->is_waiting() || !message->is_used_up()) continue;
            const verb decided = options_.use_dead_letter_exchange ? verb::reject : verb::fail;
            const char* const why = "attempts_used_up: its runs ended without a report";
            if (decided == verb::fail && !message->published)
                message->published = publication_of(*message, message->from.body, why);
            if (settle(held, message, decided, deadline_after(std::chrono::seconds(1))))
                options_.on_event(log_level::warn, cat({"message ", printable(message->id), " of queue ",
                                                        message->queue, " has used up its attempts, and is not run"}));
        }
    }

    // ---- the thread; false: disconnected ----

    void run() {
        backoff pause(std::chrono::milliseconds(100), std::chrono::milliseconds(5000));
        while (!is_ending_) {
            if (connection_.open(broker_, options_.heartbeat, deadline_after(rpc_timeout))) {
                connection_.set_deadline(deadline_after(rpc_timeout));
                pause.reset();
                set_connected();
                serve();
            }
            lose_connection();
            const time_point until = deadline_after(pause.next());
            unique_lock held(mutex_);
            while (!is_ending_ && changed_.wait_until(held, until)) {
            }
        }
    }
    // Each change once.
    void report(log_level level, std::string& last, const std::string& text) {
        if (detail::exchange(last, text) != text) options_.on_event(level, text);
    }
    void set_connected() {
        report(log_level::info, event_, cat({"connected to RabbitMQ at ", broker_.name}));
        const unique_lock held(mutex_);
        is_connected_ = true;
        problem_.clear();
        changed_.notify_all();
    }
    void lose_connection() {
        const bool is_orderly = is_ending_;
        const std::string text = cat({"no connection to RabbitMQ: ", connection_.fault()});
        if (!is_orderly) report(log_level::warn, event_, text);
        for (queue_channel& channel : channels_) lose_channel(channel);
        connection_.close(is_orderly);
        channels_.clear();
        const unique_lock held(mutex_);
        is_connected_ = is_consuming_ = false;
        problem_ = text;
        changed_.notify_all();
    }
    // The broker requeues its messages. Those that are in progress here may come back.
    void lose_channel(queue_channel& channel) {
        channel.is_open = false;
        channel.retry_at = deadline_after(queue_retry_time);
        forget_consumers(channel);
        const unique_lock held(mutex_);
        held_.remove_if([&](const message_ref& message) {
            if (message->queue != channel.queue || message->now == state::lost) return false;
            message->now = state::lost;
            message->is_buffered = false;
            message->lost_at = steady_clock::now();
            return message->claim.empty();
        });
        changed_.notify_all();
    }
    // After an error of a channel.
    bool handle(rpc_status status, queue_channel& channel) {
        if (status == rpc_status::done) return true;
        lose_channel(channel);
        return status == rpc_status::channel_closed && report_queue(channel, connection_.fault());
    }
    bool report_queue(queue_channel& channel, const std::string& text) {
        const std::string about = cat({"queue ", channel.queue, ": ", text});
        report(log_level::warn, channel.event, about);
        const unique_lock held(mutex_);
        problem_ = about;
        return true;
    }

    void serve() {
        for (bool ends = false; !ends;) {
            ends = is_ending_;
            const std::uint64_t turn = turns_wanted_;
            if (!adjust_consumers() || !send_settlements(turn > turns_done_) || !read()) return;
            hand_back_unwanted();
            end_turn(turn);
            if (!ends && !connection_.has_frames()) await_event();
        }
    }
    void end_turn(std::uint64_t number) {
        bool has_jobs = false;
        {
            const unique_lock held(mutex_);
            is_consuming_ = false;
            for (const queue_channel& channel : channels_) is_consuming_ = is_consuming_ || !channel.tags.empty();
            turns_done_ = number;
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
            if (phase_.load() == phase::running) queues = queues_;
            slots = concurrency_;
        }
        for (queue_channel& channel : channels_) {
            if (!contains(queues, channel.queue) && !cancel_consumers(channel)) return false;
        }
        const auto count = static_cast<std::int64_t>(queues.size());
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t share = slots / count + (i < slots % count ? 1 : 0);
            if (!consume(channel_of(queues[static_cast<std::size_t>(i)]), detail::max(share, std::int64_t{1})))
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
    bool cancel_consumers(queue_channel& channel) {
        for (const std::string& tag : channel.tags) {
            amqp_basic_cancel(connection_.state(), channel.number, bytes_of(tag));
            const rpc_status status = connection_.check(channel.number);
            if (status != rpc_status::done) return handle(status, channel);
        }
        forget_consumers(channel);
        return true;
    }
    // Their messages count beside the prefetch of the next consumers.
    void forget_consumers(queue_channel& channel) {
        channel.tags.clear();
        channel.prefetch = 0;
        const unique_lock held(mutex_);
        for (const message_ref& message : held_)
            message->is_counted = message->is_counted && message->queue != channel.queue;
    }
    // As messages of cancelled consumers are settled, further consumers begin: RabbitMQ cannot change a
    // consumer's prefetch, and quorum queues know no other limit.
    bool consume(queue_channel& channel, std::int64_t share) {
        if (steady_clock::now() < channel.retry_at) return true;
        rpc_status status = open(channel);
        const std::int64_t prefetch = share - limited_already(channel);
        if (status == rpc_status::done && prefetch <= 0) return true;
        // A new one: RabbitMQ counts the messages of a tag.
        const std::string tag = cat({"ojs.", ++last_consumer_});
        if (status == rpc_status::done) status = set_prefetch(channel, prefetch);
        if (status == rpc_status::done) {
            amqp_basic_consume(connection_.state(), channel.number, bytes_of(channel.queue), bytes_of(tag), 0, 0, 0,
                               amqp_empty_table);
            status = connection_.check(channel.number);
        }
        if (status != rpc_status::done) return handle(status, channel);
        channel.tags.push_back(tag);
        channel.prefetch += prefetch;
        report(log_level::info, channel.event, cat({"consuming queue ", channel.queue}));
        const unique_lock held(mutex_);
        problem_.clear();
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
    // The prefetch of the channel's consumers, and the messages of those that are cancelled, but for refused ones.
    std::int64_t limited_already(const queue_channel& channel) const {
        std::int64_t out = channel.prefetch;
        const unique_lock held(mutex_);
        for (const message_ref& message : held_)
            if (message->queue == channel.queue && message->now != state::lost)
                out += !message->is_counted - message->is_refused;
        return out;
    }
    rpc_status set_prefetch(const queue_channel& channel, std::int64_t prefetch) {
        const auto limited = static_cast<std::uint16_t>(detail::min(prefetch, std::int64_t{65535}));
        amqp_basic_qos(connection_.state(), channel.number, 0, limited, 0);
        return connection_.check(channel.number);
    }

    // ---- settlements ----

    bool send_settlements(bool is_awaited) {
        for (queue_channel& channel : channels_) {
            std::vector<message_ref> due;
            unique_lock held(mutex_);
            for (const message_ref& message : held_) {
                if (message->now == state::due && message->queue == channel.queue) due.push_back(message);
            }
            held.unlock();
            for (const message_ref& message : due) {
                if (!connection_.check_sent(send(*message, channel.number))) return false;
            }
            if (!channel.is_open || (due.empty() && !is_awaited)) continue;
            // The response to any synchronous method says that the broker has read what was sent before it.
            if (!handle(set_prefetch(channel, 1), channel)) return false;
            held.lock();
            for (const message_ref& message : due) {
                if (message->now != state::due) continue;  // lost
                message->now = state::settled;
                if (message->decided == verb::ack) keep_id(message->id);
                held_.remove(message);
            }
            changed_.notify_all();
        }
        return true;
    }
    // The worker may not have let go of the job: for 5 to 10 s another message with its id is another job.
    void keep_id(const std::string& id) {
        if (steady_clock::now() >= next_swap_) {
            ended_before_ = std::exchange(ended_, {});
            next_swap_ = deadline_after(std::chrono::seconds(5));
        }
        ended_.insert(id);
    }
    int send(const held_message& message, amqp_channel_t channel) const {
        const amqp_connection_state_t to = connection_.state();
        const bool is_ack = message.decided == verb::ack || message.decided == verb::fail;
        return is_ack ? amqp_basic_ack(to, channel, message.from.tag, 0)
                      : amqp_basic_nack(to, channel, message.from.tag, 0, message.decided == verb::requeue);
    }
    // A redelivery of what is in progress here stays: that run's report settles it.
    void hand_back_unwanted() {
        const unique_lock held(mutex_);
        for (const message_ref& message : held_) {
            const bool is_wanted = phase_.load() == phase::running && contains(queues_, message->queue);
            if (message->is_waiting() && message->claim.empty() && !is_wanted) decide(*message, verb::requeue);
        }
    }

    // ---- frames ----

    bool read() {
        for (;;) {
            amqp_frame_t frame;
            const rpc_status status = connection_.read(frame, time_point());
            if (status != rpc_status::done) return status == rpc_status::timed_out;
            for (queue_channel& channel : channels_) {
                if (channel.number == frame.channel && !on_frame(channel, frame)) return false;
            }
        }
    }
    bool on_frame(queue_channel& channel, const amqp_frame_t& frame) {
        delivery& incoming = channel.incoming;
        if (frame.frame_type == AMQP_FRAME_METHOD) return on_method(channel, frame.payload.method);
        if (frame.frame_type == AMQP_FRAME_HEADER) read_properties(frame, incoming);
        if (frame.frame_type == AMQP_FRAME_BODY) incoming.body += view_of(frame.payload.body_fragment);
        if (incoming.tag != 0 && incoming.body.size() >= incoming.body_size) hold(channel, exchange(incoming, {}));
        return true;
    }
    bool on_method(queue_channel& channel, const amqp_method_t& method) {
        if (method.id == AMQP_BASIC_DELIVER_METHOD) {
            const auto& from = *static_cast<const amqp_basic_deliver_t*>(method.decoded);
            channel.incoming = {};
            channel.incoming.tag = from.delivery_tag;
            channel.incoming.redelivered = from.redelivered != 0;
            channel.incoming.body_size = UINT64_MAX;  // until its header comes
        }
        if (method.id == AMQP_BASIC_CANCEL_METHOD) {
            forget_consumers(channel);
            channel.retry_at = deadline_after(queue_retry_time);
            return report_queue(channel, "the broker ended its consumer: it was deleted, or has moved");
        }
        if (method.id != AMQP_CHANNEL_CLOSE_METHOD) return true;
        const std::string why = connection::text_of<amqp_channel_close_t>(method.decoded);
        if (!connection_.confirm_close(channel.number)) return false;
        lose_channel(channel);
        return report_queue(channel, why);
    }

    // For a FETCH. A lost message that is redelivered keeps its entry; an id that is used gets a suffix.
    void hold(const queue_channel& channel, delivery from) {
        const unique_lock held(mutex_);
        const std::size_t fingerprint = std::hash<std::string_view>()(from.body);
        message_ref message;
        bool is_used =
            from.message_id.empty() || ended_.count(from.message_id) != 0 || ended_before_.count(from.message_id) != 0;
        for (const message_ref& other : held_) {
            is_used = is_used || other->id == from.message_id;
            if (!message && is_redelivered(*other, channel, from) && other->fingerprint == fingerprint) message = other;
        }
        if (!message) {
            message = make_ref<held_message>();
            const std::string& prefix = from.message_id.empty() ? channel.queue : from.message_id;
            message->id = is_used ? cat({prefix, "#", nonce_, ".", channel.generation, ".", from.tag}) : prefix;
            message->queue = channel.queue;
            message->fingerprint = fingerprint;
            held_.push_back(message);
        }
        message->now = message->is_published ? state::due : message->published ? state::publishing : state::held;
        message->generation = channel.generation;
        message->is_counted = !channel.tags.empty();
        message->is_refused = false;
        message->is_buffered = has_new_jobs_ = true;
        message->from = std::move(from);
        if (message->from.max_attempts == 0) message->from.max_attempts = options_.max_attempts;
    }
    // It is in progress here. Another message with its message-id, and another body, is another job.
    static bool is_redelivered(const held_message& message, const queue_channel& channel, const delivery& from) {
        return message.now == state::lost && from.redelivered && !from.message_id.empty() &&
               message.from.message_id == from.message_id && message.queue == channel.queue;
    }

    const broker_address broker_;
    const amqp_options options_;
    publisher publisher_;
    const std::uint32_t nonce_;  // tells ids of this process from those of others

    mutable mutex mutex_;
    condition changed_;
    std::list<message_ref> held_;                 // in the order of their deliveries
    std::set<std::string> ended_, ended_before_;  // see keep_id()
    time_point next_swap_ = time_point::min();
    std::vector<std::string> queues_;
    std::int64_t concurrency_ = 1;
    bool is_connected_ = false, is_consuming_ = false, has_new_jobs_ = false;
    std::string problem_;  // why there is no connection, or no consumer
    atomic<std::uint64_t> turns_wanted_{0};
    std::uint64_t turns_done_ = 0;
    atomic<phase> phase_{phase::running};
    atomic<bool> is_ending_{false};
    wake wake_;
    thread thread_;

    mutex callback_mutex_;
    function<void()> on_work_;

    // Used only by the thread.
    connection connection_;
    std::list<queue_channel> channels_;
    std::string event_;  // the last one of the connection
    std::uint64_t last_generation_ = 0, last_consumer_ = 0;
};

OJS_SHUTDOWN_INLINE result<transport_ref> open_scheme(const amqp_options& base, const detail::transport_setup& setup) {
    amqp_options options = base;
    options.url = cat({"amqp:", setup.address});
    if (!options.on_event)
        options.on_event = [log = setup.log](log_level level, const std::string& text) {
            log({level, "RabbitMQ event", {field("event", text)}, {}});
        };
    return open_amqp(std::move(options));
}
}  // namespace rabbitmq
}  // namespace detail

OJS_SHUTDOWN_INLINE result<transport_ref> open_amqp(amqp_options options) {
    result<detail::rabbitmq::broker_address> broker = detail::rabbitmq::parse_url(options.url);
    if (!broker) return broker.error();
    if (options.max_attempts < 1 || options.heartbeat.count() < 1 || options.heartbeat.count() > 3600)
        return error{errc::invalid_argument, 0, "amqp_options: max_attempts or heartbeat is out of range"};
    if (options.retry_delays.empty())
        options.retry_delays = {std::chrono::seconds(1), std::chrono::seconds(10), std::chrono::seconds(60)};
    auto* const made = new detail::rabbitmq::amqp_transport(std::move(*broker), std::move(options));
    transport_ref out(made);
    const result<void> started = made->start();
    if (!started) return started.error();
    return out;
}

OJS_SHUTDOWN_INLINE transport_scheme amqp(amqp_options options) {
    const auto open = [base = std::move(options)](const detail::transport_setup& setup) {
        return detail::rabbitmq::open_scheme(base, setup);
    };
    return {"amqp", open, nullptr};
}
}  // namespace v0_1_0
}  // namespace ojs
