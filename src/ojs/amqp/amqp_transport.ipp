#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../base/detail/clock.ipp"
#include "../worker/worker_options.hpp"
#include "amqp_transport.hpp"
#include "detail/message.ipp"
#include "detail/publisher.ipp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
namespace rabbitmq {
enum class verb { ack, fail, requeue, reject };  // fail: publish, then ack

class consumer;

// A message that is not settled. A call that waits for its end shares it.
struct held_message : ref_counted {
    // due: its verb is to be sent. lost: with its connection, so the broker has requeued it.
    enum class state { held, due, settled, lost };
    state now = state::held;
    verb decided = verb::ack;      // from `due` on
    consumer* from = nullptr;      // its queue's
    std::string id;                // job::id
    std::string claim;             // that the worker knows; empty: none
    delivery content;              // the body moves to the worker
    bool is_buffered = false;      // no FETCH has returned it
    std::size_t fingerprint = 0;   // of the body
    std::uint64_t generation = 0;  // of its connection
    ref<publication> published;
    bool is_refused = false;  // its publication, for good
    time_point retry_at = time_point::min(), lost_at;

    bool is_waiting() const { return is_buffered && now == state::held; }
    bool is_confirmed() const { return published && published->now == publication::state::confirmed; }
    bool has_failed() const { return published && published->now == publication::state::failed; }
    bool is_ready() const { return now == state::due && (decided != verb::fail || is_confirmed()); }
};
using message_ref = ref<held_message>;

// What the calls and the queues' threads share.
struct shared_state : monitor {
    shared_state(broker_address at, amqp_options with) : broker(std::move(at)), options(std::move(with)) {}

    // The worker may not have let go of the job: for 5 to 10 s another message with its id is another job.
    void keep_id(const std::string& id) {
        if (steady_clock::now() >= next_swap) {
            ended_before = std::exchange(ended, {});
            next_swap = deadline_after(std::chrono::seconds(5));
        }
        ended.insert(id);
    }
    const std::string& type_of(const delivery& from) const {
        return from.type.empty() ? options.default_type : from.type;
    }
    void notify_work() {
        const unique_lock held(callback_mutex);
        on_work();
    }

    const broker_address broker;
    const amqp_options options;
    const std::uint32_t nonce = static_cast<std::uint32_t>(random_number());  // tells ids of processes apart
    // Guarded.
    std::list<message_ref> messages;            // in the order of their deliveries
    std::set<std::string> ended, ended_before;  // see keep_id()
    time_point next_swap = time_point::min(), next_busy = time_point::min();
    std::set<std::string> unknown_types;  // those the worker has no handler for
    std::vector<std::string> queues;
    std::int64_t slots = 1;
    phase now = phase::running;
    const consumer* busy = nullptr;  // it may hold as many messages as there are slots
    consumer* alive = nullptr;       // the last to which RabbitMQ has responded
    std::uint64_t responses = 0;     // to all
    std::uint64_t last_generation = 0;

    mutex callback_mutex;
    function<void()> on_work;
};

// The connection of a queue.
class consumer : public link {
  public:
    consumer(std::string name, shared_state& on)
        : link(on.broker, on.options.heartbeat, on),
          queue(std::move(name)),
          publisher_(*this, on.broker, on.options.heartbeat, on),
          on_(on) {}

    const std::string queue;

    // ---- guarded ----

    static error late() { return {errc::timed_out, 0, "RabbitMQ did not respond in time"}; }
    bool is_open() const { return is_open_; }
    const error& problem() const { return problem_; }
    bool is_wanted() const { return on_.now == phase::running && contains(on_.queues, queue); }
    // Counts a response soon.
    void ask() {
        is_asked_ = true;
        notify();
    }
    void decide(held_message& message, verb decided) const {
        message.decided = decided;
        message.now = held_message::state::due;
        notify();
    }
    // As a retry, for later, or with an error as a dead letter.
    void publish(held_message& message, const std::string& body, const std::string& error, bool is_attempt) {
        if (!error.empty() && on_.options.use_dead_letter_exchange) return decide(message, verb::reject);
        const ref<publication> what = make_ref<publication>();
        const std::vector<std::chrono::milliseconds>& delays = on_.options.retry_delays;
        const std::int64_t attempt = message.content.attempt;
        what->properties = message.content.properties;
        what->body = body;
        what->attempt = attempt + (is_attempt && error.empty() ? 1 : 0);
        what->error = printable(error, 1000);
        what->origin = what->queue = queue;
        if (!error.empty()) {
            const std::string& dead = on_.options.dead_letter_queue;
            what->queue = dead.empty() ? cat({queue, ".dead"}) : dead;
        } else {
            what->delay = is_attempt ? delays[detail::min(static_cast<std::size_t>(attempt), delays.size()) - 1]
                                     : std::chrono::milliseconds(put_back_time);
            if (what->delay.count() > 0) what->queue = cat({queue, ".retry.", what->delay.count()});
        }
        message.published = what;
        decide(message, verb::fail);
        publisher_.submit(what);
    }
    void request_end() {
        link::request_end();
        publisher_.request_end();
    }

    void join(time_point deadline) {
        link::join(deadline);
        publisher_.join(deadline);
    }

  private:
    using state = held_message::state;
    static constexpr amqp_channel_t channel = 1;
    static constexpr std::chrono::seconds put_back_time{5};  // of what has no handler here

    bool begin() override {
        amqp_channel_open(connection_.state(), channel);
        return connection_.check();
    }
    bool turn() override {
        if (!adjust() || !settle()) return false;
        const bool is_alive = connection_.read([this](const amqp_frame_t& frame) { return on_frame(frame); });
        put_back();
        if (exchange(has_new_jobs_, false)) on_.notify_work();
        return is_alive;
    }
    // The broker requeues its messages. Those that are in progress here may come back.
    void lose(const error& why) override {
        const error about = {why.code == errc::rejected ? errc::unavailable : why.code, 0,
                             cat({"queue ", queue, ": ", why.text})};
        unique_lock held(on_.guard);
        is_open_ = false;
        prefetch_ = 0;
        incoming_ = {};
        problem_ = about;
        on_.messages.remove_if([&](const message_ref& message) {
            if (message->from != this || message->now == state::lost) return false;
            message->now = state::lost;
            message->is_buffered = false;
            message->lost_at = steady_clock::now();
            return message->claim.empty() && !message->published;
        });
        on_.changed.notify_all();
        const bool is_orderly = is_ending_;
        held.unlock();
        if (!is_orderly) report(log_level::warn, about.text);
    }
    // Each change once.
    void report(log_level level, const std::string& text) {
        if (detail::exchange(event_, text) != text) on_.options.on_event(level, text);
    }

    // ---- consuming ----

    // Split over the queues. What is in flight, or was refused, is beside it: RabbitMQ cannot change a consumer's prefetch.
    std::int64_t wanted_prefetch() const {
        if (!is_wanted()) return 0;
        const auto count = static_cast<std::int64_t>(on_.queues.size());
        const auto index = std::find(on_.queues.begin(), on_.queues.end(), queue) - on_.queues.begin();
        const std::int64_t share = on_.busy == this ? on_.slots : (on_.slots + count - 1 - index) / count;
        return detail::min(detail::max(share, std::int64_t{1}), std::int64_t{65535});
    }
    bool adjust() {
        unique_lock held(on_.guard);
        const std::int64_t next = wanted_prefetch();
        const bool is_due = exchange(is_short_, false) || next != prefetch_;
        held.unlock();
        if (is_due && !consume(next)) return false;
        held.lock();
        if (!exchange(is_open_, true)) {
            generation_ = ++on_.last_generation;
            note_response();
        }
        return true;
    }
    void note_response() {
        on_.alive = this;
        ++on_.responses;
        on_.changed.notify_all();
    }
    bool consume(std::int64_t prefetch) {
        if (prefetch_ > 0) {
            amqp_basic_cancel(connection_.state(), channel, bytes_of(tag_));
            if (!connection_.check()) return false;
        }
        prefetch_ = prefetch;
        if (prefetch == 0) return true;
        amqp_basic_qos(connection_.state(), channel, 0, static_cast<std::uint16_t>(prefetch), 0);
        if (!connection_.check()) return false;
        tag_ = cat({"ojs.", ++last_tag_});  // a new one: RabbitMQ counts the messages of a tag
        amqp_table_entry_t priority = number_entry("x-priority", 0);  // which a stream refuses: it has no claims
        amqp_basic_consume(connection_.state(), channel, bytes_of(queue), bytes_of(tag_), 0, 0, 0, {1, &priority});
        if (!connection_.check()) return false;
        report(log_level::info, cat({"consuming queue ", queue, " of RabbitMQ at ", on_.broker.name}));
        return true;
    }

    // ---- settlements ----

    bool settle() {
        std::vector<message_ref> due;
        unique_lock held(on_.guard);
        for (const message_ref& message : on_.messages) {
            if (message->from == this && message->is_ready()) due.push_back(message);
        }
        const bool is_asked = exchange(is_asked_, false);
        held.unlock();
        if (due.empty() && !is_asked) return true;
        for (const message_ref& message : due) {
            if (!connection_.check_sent(send(*message))) return false;
        }
        // The response to any synchronous method says that the broker has read what was sent before it.
        amqp_basic_qos(connection_.state(), channel, 0, 1, 0);  // of the next consumer
        if (!connection_.check()) return false;
        for (const message_ref& message : due) report_end(*message);
        held.lock();
        for (const message_ref& message : due) {
            message->now = state::settled;
            if (message->decided == verb::ack) on_.keep_id(message->id);
            on_.messages.remove(message);
        }
        note_response();
        has_worked_ = has_worked_ || !due.empty();
        return true;
    }
    int send(const held_message& message) const {
        const amqp_connection_state_t to = connection_.state();
        const bool is_ack = message.decided == verb::ack || message.decided == verb::fail;
        return is_ack ? amqp_basic_ack(to, channel, message.content.tag, 0)
                      : amqp_basic_nack(to, channel, message.content.tag, 0, message.decided == verb::requeue);
    }
    void report_end(const held_message& message) const {
        const bool is_rejected = message.decided == verb::reject;
        if (!is_rejected && (message.decided != verb::fail || message.published->error.empty())) return;
        const std::string where = is_rejected
                                      ? "rejected, for its dead-letter exchange"
                                      : cat({"moved to ", message.published->queue, ": ", message.published->error});
        on_.options.on_event(log_level::warn,
                             cat({"message ", printable(message.id), " of queue ", queue, " is ", where}));
    }
    // Of the messages that no FETCH has returned, those it is not to return; and what could not be published.
    void put_back() {
        std::string problem;
        unique_lock held(on_.guard);
        for (const message_ref& message : on_.messages) {
            if (message->from != this) continue;
            if (message->has_failed()) {
                if (message->claim.empty()) problem = message->published->why.text;
                give_up_publishing(*message);
            }
            if (message->is_waiting() && message->claim.empty() && steady_clock::now() >= message->retry_at)
                put_back(*message);
        }
        held.unlock();
        if (!problem.empty()) report(log_level::warn, cat({"queue ", queue, ": ", problem}));
    }
    void put_back(held_message& message) {
        const delivery& content = message.content;
        if (!is_wanted())
            decide(message, verb::requeue);
        else if (content.attempt > content.max_attempts)
            publish(message, content.body, "attempts_used_up: its runs ended without a report", false);
        else if (on_.unknown_types.count(on_.type_of(content)) != 0)
            publish(message, content.body, "", false);
    }
    // A message that is refused for good stays the broker's: another one is prefetched.
    void give_up_publishing(held_message& message) {
        if (message.published->why.code == errc::rejected && !exchange(message.is_refused, true)) is_short_ = true;
        message.published = {};
        if (message.now == state::due) message.now = state::held;
        message.retry_at = deadline_after(std::chrono::seconds(1));
    }

    // ---- frames ----

    bool on_frame(const amqp_frame_t& frame) {
        if (frame.frame_type == AMQP_FRAME_METHOD) return on_method(frame.payload.method);
        if (frame.frame_type == AMQP_FRAME_HEADER) read_properties(frame, incoming_);
        if (frame.frame_type == AMQP_FRAME_BODY) incoming_.body += view_of(frame.payload.body_fragment);
        if (incoming_.tag != 0 && incoming_.body.size() >= incoming_.body_size) hold(exchange(incoming_, {}));
        return true;
    }
    bool on_method(const amqp_method_t& method) {
        if (method.id == AMQP_BASIC_CANCEL_METHOD)
            return connection_.fail("the broker ended its consumer: it was deleted, or has moved", true);
        if (method.id != AMQP_BASIC_DELIVER_METHOD) return true;
        const auto& from = *static_cast<const amqp_basic_deliver_t*>(method.decoded);
        incoming_ = {};
        incoming_.tag = from.delivery_tag;
        incoming_.redelivered = from.redelivered != 0;
        incoming_.body_size = UINT64_MAX;  // until its header comes
        return true;
    }

    // For a FETCH. A lost message that is redelivered keeps its entry; an id that is used gets a suffix.
    void hold(delivery content) {
        const unique_lock held(on_.guard);
        const std::size_t fingerprint = std::hash<std::string_view>()(content.body);
        message_ref message;
        const std::string& id = content.message_id;
        bool is_used = id.empty() || on_.ended.count(id) != 0 || on_.ended_before.count(id) != 0;
        for (const message_ref& other : on_.messages) {
            is_used = is_used || other->id == id;
            if (!message && is_redelivered(*other, content) && other->fingerprint == fingerprint) message = other;
        }
        if (!message) {
            message = make_ref<held_message>();
            const std::string& prefix = id.empty() ? queue : id;
            message->id = is_used ? cat({prefix, "#", on_.nonce, ".", generation_, ".", content.tag}) : prefix;
            message->from = this;
            message->fingerprint = fingerprint;
            on_.messages.push_back(message);
        }
        message->now = message->published ? state::due : state::held;
        message->generation = generation_;
        message->is_refused = false;
        message->is_buffered = has_new_jobs_ = true;
        message->content = std::move(content);
        if (message->content.max_attempts == 0) message->content.max_attempts = on_.options.max_attempts;
        note_busy();
    }
    // It is in progress here. Another message with its message-id, and another body, is another job.
    bool is_redelivered(const held_message& message, const delivery& content) const {
        return message.now == state::lost && message.from == this && content.redelivered &&
               !content.message_id.empty() && message.content.message_id == content.message_id;
    }
    // The first queue with messages, until it has none.
    void note_busy() {
        if (on_.busy == this || steady_clock::now() < on_.next_busy) return;
        for (const message_ref& message : on_.messages) {
            if (message->from == on_.busy && message->now != state::lost) return;
        }
        if (on_.busy != nullptr) on_.busy->notify();
        on_.busy = this;
        on_.next_busy = deadline_after(std::chrono::seconds(1));
    }

    publisher publisher_;
    shared_state& on_;
    // Guarded.
    bool is_open_ = false;  // and consumes, if it is wanted
    bool is_asked_ = false, is_short_ = false;
    error problem_ = late();  // why it is not open
    // Used only by the thread.
    std::int64_t prefetch_ = 0;  // of its consumer; 0: none
    std::string tag_;
    std::uint64_t last_tag_ = 0, generation_ = 0;
    delivery incoming_;
    bool has_new_jobs_ = false;
    std::string event_;  // the last one
};

// Calls wait for the queues' threads.
class amqp_transport : public transport {
  public:
    amqp_transport(broker_address broker, amqp_options options) : on_(std::move(broker), std::move(options)) {}
    ~amqp_transport() override {
        unique_lock held(on_.guard);
        for (consumer& each : consumers_) each.request_end();
        held.unlock();
        const time_point deadline = deadline_after(std::chrono::milliseconds(250));
        for (consumer& each : consumers_) each.join(deadline);
    }

    // What has arrived, or else what arrives before the broker has responded.
    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        if (request.should_send && !request.should_send()) return unwanted();
        const cancel_registration ends = request.until.on_cancel([this] { notify(); });
        unique_lock held(on_.guard);
        const result<void> known = set_worker(*request.worker);
        if (!known) return known.error();
        const std::uint64_t responses = on_.responses;
        std::vector<job> out = take_waiting(request);
        if (out.empty()) ask();
        const auto is_over = [&] {
            if (out.empty()) out = take_waiting(request);
            return !out.empty() || request.until.cancelled() || on_.responses != responses;
        };
        while (!is_over() && !is_known(find_problem()) && on_.changed.wait_until(held, deadline)) continue;
        if (is_over()) return out;
        const error* const problem = find_problem();
        return problem != nullptr ? *problem : consumer::late();
    }
    result<settle_result> ack(const ack_request& request, time_point deadline) override {
        return settle(request, verb::ack, deadline);
    }
    // Publishes it, for a retry or as a dead letter; then it is acknowledged. What cannot be read fails. What has no
    // handler here waits in a retry queue, as a requeue would count, and bring it back at once.
    result<settle_result> fail(const fail_request& request, time_point deadline) override {
        if (request.job == nullptr) return error{errc::rejected, 0, "the FAIL of a message needs its job"};
        const bool is_requeue = request.requeue && !is_listed(request.error.code, "invalid_payload unsupported");
        return settle(request, is_requeue ? verb::requeue : verb::fail, deadline);
    }
    // The ids whose claims hold; and whether all others are lost for good.
    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override {
        unique_lock held(on_.guard);
        const result<void> known = set_worker(*request.worker);
        if (!known) return known.error();
        while (!is_draining() && find_problem() != nullptr && !is_known(find_problem()) &&
               on_.changed.wait_until(held, deadline))
            continue;
        const error* const problem = find_problem();
        if (problem != nullptr && !is_draining()) return *problem;
        heartbeat_response out;
        on_.messages.remove_if([&](const message_ref& message) {
            const bool is_lost = message->now == state::lost;
            if (!contains(request.active_jobs, message->id)) return is_lost;
            if (!is_lost && !message->claim.empty()) out.jobs_extended.push_back(message->id);
            out.claims_lost = out.claims_lost || (is_lost && is_draining());
            return false;
        });
        return out;
    }
    result<bool> confirm_claim(const job_request& query, time_point) override {
        const unique_lock held(on_.guard);
        const result<message_ref> found = find_claim(query.job_id, query.claim);
        if (!found) return found.error();
        return bool(*found);
    }
    void on_work_available(function<void()> callback) override {
        const unique_lock held(on_.callback_mutex);
        on_.on_work = std::move(callback);
    }
    void on_phase(phase now) override {
        {
            const unique_lock held(on_.guard);
            on_.now = now;
        }
        notify();
    }

  private:
    using state = held_message::state;
    // The broker requeues messages when it knows that their connection is gone.
    std::chrono::seconds return_time() const { return on_.options.heartbeat * 2 + std::chrono::seconds(1); }

    static error unwanted() { return {errc::cancelled, 0, "cancelled: the worker stopped fetching"}; }
    void notify() {
        const unique_lock held(on_.guard);
        on_.changed.notify_all();
        for (const consumer& each : consumers_) each.notify();
    }

    // ---- the guard is held ----

    bool is_draining() const { return on_.now >= phase::draining; }
    // Each queue gets a connection.
    result<void> set_worker(const worker_identity& worker) {
        const bool is_new =
            on_.queues != worker.queues || on_.slots != detail::max(worker.concurrency, std::int64_t{1});
        on_.queues = worker.queues;
        on_.slots = detail::max(worker.concurrency, std::int64_t{1});
        for (const std::string& queue : worker.queues) {
            bool is_known = false;
            for (const consumer& each : consumers_) is_known = is_known || each.queue == queue;
            if (!is_known) consumers_.emplace_back(queue, on_);
        }
        for (consumer& each : consumers_) {
            const result<void> started = each.start("ojs-amqp");
            if (!started) return started.error();
            if (is_new) each.notify();
        }
        return {};
    }
    // Why no queue is open; null: one is.
    const error* find_problem() const {
        const error* out = nullptr;
        for (const consumer& each : consumers_) {
            if (!contains(on_.queues, each.queue)) continue;
            if (each.is_open()) return nullptr;
            if (!is_known(out)) out = &each.problem();
        }
        return out;
    }
    static bool is_known(const error* problem) { return problem != nullptr && problem->code != errc::timed_out; }
    // For a response: the queue that had the last one, or any other.
    void ask() {
        consumer* asked = on_.alive;
        for (consumer& each : consumers_) {
            if (asked == nullptr || !asked->is_open()) asked = &each;
        }
        if (asked != nullptr) asked->ask();
    }

    // None: its claim is gone. Error: it may come back, or a FETCH has just returned it again.
    result<message_ref> find_claim(const std::string& id, const std::string& claim) const {
        for (const message_ref& message : on_.messages) {
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
    // Waits until the broker has read it. Errors: disconnected, while the message may come back; timed_out; those of a
    // publication.
    template <class Request>
    result<settle_result> settle(const Request& request, verb decided, time_point deadline) {
        if (request.should_send && !request.should_send()) return unwanted();
        unique_lock held(on_.guard);
        const result<message_ref> found = find_claim(request.job_id, request.claim);
        if (!found) return found.error();
        if (!*found) return settle_result::gone;
        const message_ref message = *found;
        if constexpr (std::is_same_v<Request, fail_request>) {
            if (decided == verb::fail && message->now == state::held) begin_fail(*message, request);
            if (decided == verb::fail && message->decided == verb::reject) decided = verb::reject;
        }
        if (message->now == state::held) message->from->decide(*message, decided);
        const ref<publication> published = message->published;
        const auto has_failed = [&] { return published && published->now == publication::state::failed; };
        while (message->now == state::due && !has_failed() && on_.changed.wait_until(held, deadline)) continue;
        const bool is_published = published && published->now == publication::state::confirmed;
        if (message->now == state::settled || is_published)
            return message->decided == decided ? settle_result::accepted : settle_result::gone;
        if (has_failed()) return published->why;
        if (message->now == state::lost) return disconnected();
        return error{errc::timed_out, 0,
                     published ? cat({"RabbitMQ has not confirmed a publication to ", published->queue,
                                      " in time; while it is short of memory or disk, it accepts none"})
                               : "RabbitMQ did not respond to a report in time"};
    }
    // Also after a publication that failed.
    void begin_fail(held_message& message, const fail_request& request) {
        const delivery& content = message.content;
        const bool is_unreadable = request.error.code == "invalid_payload";
        const bool is_put_back = request.requeue && !is_unreadable;
        const bool is_last =
            !is_put_back && (is_unreadable || !request.error.retryable || content.attempt >= content.max_attempts);
        if (is_put_back) on_.unknown_types.insert(on_.type_of(content));
        const std::string error = is_last ? cat({request.error.code, ": ", request.error.message}) : "";
        message.from->publish(message, request.job->body, error, !is_put_back);
    }
    std::vector<job> take_waiting(const fetch_request& request) {
        std::vector<job> out;
        for (const message_ref& message : on_.messages) {
            if (out.size() >= request.count) break;
            const delivery& content = message->content;
            const bool is_runnable =
                content.attempt <= content.max_attempts && on_.unknown_types.count(on_.type_of(content)) == 0;
            if (!message->is_waiting() || (message->claim.empty() && !is_runnable)) continue;
            message->is_buffered = false;
            out.push_back(make_job(*message));
            message->claim = out.back().claim;
        }
        return out;
    }
    job make_job(held_message& message) const {
        job out;
        out.id = message.id;
        out.queue = message.from->queue;
        out.type = on_.type_of(message.content);
        out.attempt = message.content.attempt;
        out.max_attempts = message.content.max_attempts;
        out.visibility_timeout = no_limit;  // ours as long as its connection lasts
        out.meta_json = cat({"{", message.content.meta, "}"});
        out.claim = cat({message.generation, ".", message.content.tag});
        read_args(message.content, out);
        out.body = std::move(message.content.body);
        return out;
    }

    shared_state on_;
    std::list<consumer> consumers_;
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
    return transport_ref(new detail::rabbitmq::amqp_transport(std::move(*broker), std::move(options)));
}

OJS_SHUTDOWN_INLINE transport_scheme amqp(amqp_options options) {
    const auto open = [base = std::move(options)](const detail::transport_setup& setup) {
        return detail::rabbitmq::open_scheme(base, setup);
    };
    return {"amqp", open, nullptr};
}
}  // namespace v0_1_0
}  // namespace ojs
