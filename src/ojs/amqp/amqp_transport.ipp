#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <string>
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
enum class verb { ack, fail, requeue };  // fail: acknowledge it once it is published; without a publication, reject it

class consumer;

// due: its verb is to be sent. lost: with its connection, so the broker has requeued it.
enum class state { held, due, settled, lost };

// A message that is not settled. A call that waits for its end shares it.
struct held_message : ref_counted {
    state now = state::held;
    verb decided = verb::ack;                      // from `due` on
    consumer* from = nullptr;                      // its queue's
    std::string id;                                // job::id
    std::string claim;                             // that the worker knows; empty: none
    std::string error;                             // of a dead letter
    delivery content;                              // the body moves to the worker
    bool is_buffered = false;                      // no FETCH has returned it
    std::uint64_t generation = 0, tag_number = 0;  // of its connection, and of its consumer
    ref<publication> published;
    bool is_refused = false;  // its publication, for good
    time_point retry_at = time_point::min();
    time_point gone_at;  // lost: when the broker knows of that, so that it does not come back

    bool is_waiting() const { return is_buffered && now == state::held; }
    bool has_failed() const { return published && !published->outcome; }
    bool is_ready() const { return now == state::due && (!published || (published->has_ended && !has_failed())); }
};
using message_ref = ref<held_message>;

// What the calls and the queues' threads share.
struct shared_state : monitor {
    using monitor::monitor;

    bool is_runnable(const delivery& content) const {
        return content.attempt <= content.max_attempts && unknown_types.count(content.type) == 0;
    }

    const std::uint32_t nonce = static_cast<std::uint32_t>(random_number());  // tells ids of processes apart
    // Guarded.
    std::list<message_ref> messages;  // in the order of their deliveries
    // Ids of messages acknowledged since the last heartbeat, and the one before. The worker may not have let go of their
    // jobs: another message with such an id is another job.
    std::set<std::string> ended, ended_before;
    std::set<std::string> unknown_types;  // those the worker has no handler for
    std::vector<std::string> queues;
    std::int64_t slots = 1;
    phase now = phase::running;
    const consumer* busy = nullptr;  // it may hold as many messages as there are slots
    time_point next_busy = time_point::min();
    consumer* alive = nullptr;    // the last to which RabbitMQ has responded
    consumer* asked = nullptr;    // for a response, by a FETCH
    std::uint64_t responses = 0;  // to all

    mutex callback_mutex;
    function<void()> on_work;
};

// The connection of a queue.
class consumer : public link {
  public:
    consumer(std::string name, shared_state& on) : link(on), queue(std::move(name)), publisher_(*this, on), on_(on) {}
    ~consumer() override {
        publisher_.end();
        end();
    }

    const std::string queue;

    // ---- guarded ----

    static error late() { return {errc::timed_out, 0, "RabbitMQ did not respond before the deadline"}; }
    // Why it is not open; null: it is, and consumes if it is wanted.
    const error* problem() const { return opened_ ? nullptr : &opened_.error(); }
    void decide(held_message& message, verb decided) const {
        message.decided = decided;
        message.now = state::due;
        notify();
    }
    // Publishes the message again: as a retry, or with an error as a dead letter.
    void publish(held_message& message, const std::string& body, const std::string& error, bool is_attempt) {
        decide(message, verb::fail);
        message.error = printable(error, 1000);
        if (!error.empty() && on_.options.use_dead_letter_exchange) return;
        const std::vector<std::chrono::milliseconds>& delays = on_.options.retry_delays;
        const std::int64_t attempt = message.content.attempt;
        const ref<publication> what = message.published = make_ref<publication>();
        what->properties = message.content.properties;
        what->body = body;
        what->attempt = attempt + (is_attempt && error.empty() ? 1 : 0);
        what->error = message.error;
        what->origin = what->queue = queue;
        if (!error.empty()) {
            const std::string& dead = on_.options.dead_letter_queue;
            what->queue = dead.empty() ? cat({queue, ".dead"}) : dead;
        } else {
            what->delay = is_attempt ? delays[detail::min(static_cast<std::size_t>(attempt), delays.size()) - 1]
                                     : std::chrono::milliseconds(5000);  // it has no handler here
            if (what->delay.count() > 0) what->queue = cat({queue, ".retry.", what->delay.count()});
        }
        publisher_.submit(what);
    }

  private:
    bool turn() override {
        const bool is_alive = read([this](const amqp_frame_t& frame) { return on_frame(frame); });
        std::vector<message_ref> due;
        std::string problem;
        std::int64_t claimed = 0;  // as many as it prefetches: some may wait in the worker for their turn
        unique_lock held(on_.guard);
        for (const message_ref& message : on_.messages) {
            if (message->from != this) continue;
            if (message->has_failed()) {
                if (message->claim.empty()) problem = message->published->outcome.error().text;
                give_up_publishing(*message);
            }
            put_back(*message);
            if (message->is_ready()) due.push_back(message);
            if (message->tag_number == last_tag_ && !message->claim.empty()) ++claimed;
        }
        const std::int64_t prefetch = wanted_prefetch();
        const bool needs_response = on_.asked == this || !opened_ || !due.empty();
        is_short_ = is_short_ || (on_.asked == this && prefetch_ > 0 && claimed >= prefetch_);
        if (on_.asked == this) on_.asked = nullptr;
        held.unlock();
        if (exchange(has_new_jobs_, false)) {
            const unique_lock calling(on_.callback_mutex);
            on_.on_work();
        }
        if (!problem.empty())
            report(log_level::warn, "cannot move the message; it stays in its queue", field("error", problem));
        if (!is_alive) return false;
        if ((exchange(is_short_, false) || prefetch != prefetch_) && !consume(prefetch)) return false;
        return !needs_response || settle(due);
    }
    // The broker requeues its messages. Those that are in progress here may come back.
    void lose() override {
        unique_lock held(on_.guard);
        prefetch_ = 0;
        incoming_ = {};
        opened_ = error{fault_.code == errc::rejected ? errc::unavailable : fault_.code, 0,
                        cat({"queue ", queue, ": ", fault_.text})};
        on_.messages.remove_if([&](const message_ref& message) {
            if (message->from != this || message->now == state::lost) return false;
            message->now = state::lost;
            message->is_buffered = false;
            message->gone_at = deadline_after(on_.options.heartbeat * 2 + std::chrono::seconds(1));
            return message->claim.empty() && !message->published;
        });
        on_.changed.notify_all();
        held.unlock();
        if (!on_.is_ending())
            report(log_level::warn, "cannot consume the queue; retrying", field("error", fault_.text));
    }
    // Each change once.
    void report(log_level level, const char* message, log_field detail) {
        std::string text = cat({message, detail.value});
        if (text == last_report_) return;
        last_report_ = std::move(text);
        on_.options.log({level, message, {field("queue", queue), std::move(detail)}, {}, "worker"});
    }

    // ---- consuming ----

    // 0: it is not to be consumed. Split over the queues. What is in flight, or was refused, is beside it: RabbitMQ cannot
    // change a consumer's prefetch.
    std::int64_t wanted_prefetch() const {
        const auto at = std::find(on_.queues.begin(), on_.queues.end(), queue);
        if (on_.now != phase::running || at == on_.queues.end()) return 0;
        const auto count = static_cast<std::int64_t>(on_.queues.size());
        const std::int64_t share = (on_.slots + count - 1 - (at - on_.queues.begin())) / count;
        return detail::min(detail::max(on_.busy == this ? on_.slots : share, std::int64_t{1}), std::int64_t{65535});
    }
    bool consume(std::int64_t prefetch) {
        if (prefetch_ > 0) {
            amqp_basic_cancel(state_, channel, bytes_of(tag_));
            if (!check()) return false;
        }
        prefetch_ = prefetch;
        if (prefetch == 0) return true;
        amqp_basic_qos(state_, channel, 0, static_cast<std::uint16_t>(prefetch), 0);
        if (!check()) return false;
        tag_ = cat({"ojs.", ++last_tag_});  // a new one: RabbitMQ counts the messages of a tag
        amqp_table_entry_t priority = number_entry("x-priority", 0);  // which a stream refuses: it has no claims
        amqp_basic_consume(state_, channel, bytes_of(queue), bytes_of(tag_), 0, 0, 0, {1, &priority});
        if (!check()) return false;
        report(log_level::info, "consuming the queue", field("broker", on_.broker.at.name));
        return true;
    }

    // ---- settlements ----

    // Sends what is decided, and waits for a response.
    bool settle(const std::vector<message_ref>& due) {
        for (const message_ref& message : due) {
            const bool is_ack = message->decided == verb::ack || message->published;
            const bool is_requeue = message->decided == verb::requeue;
            if (!check_sent(is_ack ? amqp_basic_ack(state_, channel, message->content.tag, 0)
                                   : amqp_basic_nack(state_, channel, message->content.tag, 0, is_requeue)))
                return false;
        }
        // The response to any synchronous method says that the broker has read what was sent before it.
        amqp_basic_qos(state_, channel, 0, 1, 0);  // of the next consumer
        if (!check()) return false;
        for (const message_ref& message : due) report_dead_letter(*message);
        const unique_lock held(on_.guard);
        for (const message_ref& message : due) {
            message->now = state::settled;
            if (message->decided == verb::ack) on_.ended.insert(message->id);
            on_.messages.remove(message);
        }
        ++on_.responses;
        if (!opened_) generation_ = on_.responses;
        opened_ = {};
        on_.alive = this;
        on_.changed.notify_all();
        has_worked_ = has_worked_ || !due.empty();
        return true;
    }
    void report_dead_letter(const held_message& message) const {
        if (message.decided != verb::fail || message.error.empty()) return;
        const std::string to = message.published ? message.published->queue : "";  // none: its dead-letter exchange
        std::vector<log_field> fields = {field("job_id", printable(message.id)), field("queue", queue),
                                         field("dead_letter_queue", to), field("error", message.error)};
        on_.options.log({log_level::warn, "message dead-lettered", std::move(fields), {}, "worker"});
    }
    // If no FETCH is to return it.
    void put_back(held_message& message) {
        if (!message.is_waiting() || !message.claim.empty() || steady_clock::now() < message.retry_at) return;
        const delivery& content = message.content;
        const bool is_used_up = content.attempt > content.max_attempts;
        if (wanted_prefetch() == 0)
            decide(message, verb::requeue);
        else if (!on_.is_runnable(content))
            publish(message, content.body, is_used_up ? "attempts_used_up: its runs ended without a report" : "",
                    false);
    }
    // A message that is refused for good stays the broker's: another one is prefetched.
    void give_up_publishing(held_message& message) {
        if (message.published->outcome.error().code == errc::rejected && !exchange(message.is_refused, true))
            is_short_ = true;
        message.published = {};
        if (message.now == state::due) message.now = state::held;
        message.retry_at = deadline_after(std::chrono::seconds(1));
    }

    // ---- frames ----

    bool on_frame(const amqp_frame_t& frame) {
        if (frame.frame_type == AMQP_FRAME_METHOD) return on_method(frame.payload.method);
        const bool is_header = frame.frame_type == AMQP_FRAME_HEADER;
        if (is_header && frame.payload.properties.class_id != AMQP_BASIC_CLASS) return fail("not a message's header");
        if (is_header) read_properties(frame, incoming_);
        if (frame.frame_type == AMQP_FRAME_BODY) incoming_.body += view_of(frame.payload.body_fragment);
        if (incoming_.tag != 0 && incoming_.body.size() >= incoming_.body_size) hold(exchange(incoming_, {}));
        return true;
    }
    bool on_method(const amqp_method_t& method) {
        if (method.id == AMQP_BASIC_CANCEL_METHOD)
            return fail("the broker cancelled the consumer, as it does when a queue is deleted or moves", true);
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
        content.fingerprint = std::hash<std::string_view>()(content.body);
        if (content.type.empty()) content.type = on_.options.default_type;
        if (content.max_attempts == 0) content.max_attempts = on_.options.max_attempts;
        const std::string& id = content.message_id;
        const unique_lock held(on_.guard);
        bool is_used = id.empty() || on_.ended.count(id) != 0 || on_.ended_before.count(id) != 0;
        bool has_busy = on_.busy == this || on_.cut_at != never;  // at the end that one may be destroyed
        message_ref message;
        for (const message_ref& other : on_.messages) {
            is_used = is_used || other->id == id;
            has_busy = has_busy || (other->from == on_.busy && other->now != state::lost);
            if (!message && is_redelivery(content, *other)) message = other;
        }
        if (!message) {
            message = make_ref<held_message>();
            message->id =
                is_used ? cat({id.empty() ? queue : id, "#", on_.nonce, ".", generation_, ".", content.tag}) : id;
            message->from = this;
            on_.messages.push_back(message);
        }
        message->now = message->published ? state::due : state::held;
        message->generation = generation_;
        message->tag_number = last_tag_;
        message->is_refused = false;
        message->is_buffered = has_new_jobs_ = true;
        message->content = std::move(content);
        if (has_busy || steady_clock::now() < on_.next_busy) return;
        if (on_.busy != nullptr) on_.busy->notify();
        on_.busy = this;  // the first queue with messages, until it has none
        on_.next_busy = deadline_after(std::chrono::seconds(1));
    }
    // It is in progress here. Another message with its message-id, and another body, is another job.
    bool is_redelivery(const delivery& content, const held_message& of) const {
        return of.now == state::lost && of.from == this && content.redelivered && !content.message_id.empty() &&
               of.content.message_id == content.message_id && of.content.fingerprint == content.fingerprint;
    }

    publisher publisher_;
    shared_state& on_;
    result<void> opened_ = late();  // guarded
    // Used only by the thread.
    std::int64_t prefetch_ = 0;  // of its consumer; 0: none
    bool is_short_ = false;      // it needs another consumer
    std::string tag_;
    std::uint64_t last_tag_ = 0, generation_ = 0;
    delivery incoming_;
    bool has_new_jobs_ = false;
    std::string last_report_;
};

// Calls wait for the queues' threads.
class amqp_transport : public transport {
  public:
    amqp_transport(broker_address broker, amqp_options options) : on_(std::move(broker), std::move(options)) {}
    ~amqp_transport() override {
        change([this] { on_.cut_at = deadline_after(std::chrono::milliseconds(250)); });
    }

    // What has arrived, or else what arrives before the broker has responded.
    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        if (request.should_send && !request.should_send()) return unwanted();
        const cancel_registration ends = request.until.on_cancel([this] { change([] {}); });
        unique_lock held(on_.guard);
        const result<void> known = set_worker(*request.worker);
        if (!known) return known.error();
        const std::uint64_t responses = on_.responses;
        std::vector<job> out = take_waiting(request);
        if (out.empty()) ask();
        const error* problem = find_problem();
        while (out.empty() && !request.until.cancelled() && on_.responses == responses && !is_known(problem)) {
            const bool is_late = !on_.changed.wait_until(held, deadline);
            out = take_waiting(request);
            problem = find_problem();
            if (is_late && out.empty()) return problem != nullptr ? *problem : consumer::late();
        }
        if (out.empty() && is_known(problem)) return *problem;
        return out;
    }
    result<settle_result> ack(const ack_request& request, time_point deadline) override {
        return settle(request, verb::ack, deadline);
    }
    // Publishes it, for a retry or as a dead letter; then it is acknowledged. What cannot be read fails. What cannot be run
    // for now waits in a retry queue, as a requeue would count, and bring it back at once.
    result<settle_result> fail(const fail_request& request, time_point deadline) override {
        if (request.job == nullptr)
            return error{errc::rejected, 0, "fail_request::job is empty: the message is published again from it"};
        const bool is_requeue =
            request.requeue && !is_listed(request.error.code, "invalid_payload unsupported rate_limited");
        return settle(request, is_requeue ? verb::requeue : verb::fail, deadline, &request);
    }
    // The ids whose claims hold; and whether all others are lost for good.
    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override {
        unique_lock held(on_.guard);
        const result<void> known = set_worker(*request.worker);
        if (!known) return known.error();
        const error* problem = find_problem();
        while (!is_draining() && problem != nullptr && !is_known(problem) && on_.changed.wait_until(held, deadline))
            problem = find_problem();
        if (problem != nullptr && !is_draining()) return *problem;
        on_.ended_before = exchange(on_.ended, {});
        heartbeat_response out;
        on_.messages.remove_if([&](const message_ref& message) {
            const bool is_lost = message->now == state::lost;
            if (!contains(request.active_jobs, message->id)) return is_lost;
            if (!is_lost && !message->claim.empty()) out.jobs_extended.push_back(message->id);
            out.claims_lost = out.claims_lost || (is_lost && is_draining());
            return false;
        });
        if (problem != nullptr && !out.claims_lost && !request.is_last) return unwanted();
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
        change([&] { on_.now = now; });
    }

  private:
    static error unwanted() { return {errc::cancelled, 0, "cancelled: the worker stopped fetching"}; }
    template <class Make>
    void change(const Make& make) {
        const unique_lock held(on_.guard);
        make();
        on_.changed.notify_all();
        for (const auto& [queue, each] : consumers_) each.notify();
    }

    // ---- the guard is held ----

    bool is_draining() const { return on_.now >= phase::draining; }
    // Each queue gets a connection.
    result<void> set_worker(const worker_identity& worker) {
        const bool is_new =
            exchange(on_.slots, worker.concurrency) != worker.concurrency || on_.queues != worker.queues;
        on_.queues = worker.queues;
        for (const std::string& queue : worker.queues) consumers_.try_emplace(queue, queue, on_);
        for (auto& [queue, each] : consumers_) {
            const result<void> started = each.start("ojs-amqp");
            if (!started) return started.error();
            if (is_new) each.notify();
        }
        return {};
    }
    // Why no queue is open; null: one is.
    const error* find_problem() const {
        const error* out = nullptr;
        for (const auto& [queue, each] : consumers_) {
            if (!contains(on_.queues, queue)) continue;
            if (each.problem() == nullptr) return nullptr;
            if (!is_known(out)) out = each.problem();
        }
        return out;
    }
    static bool is_known(const error* problem) { return problem != nullptr && problem->code != errc::timed_out; }
    // For a response: the queue that had the last one, or any other.
    void ask() {
        on_.asked = on_.alive;
        for (auto& [queue, each] : consumers_) {
            if (on_.asked == nullptr || on_.asked->problem() != nullptr) on_.asked = &each;
        }
        if (on_.asked != nullptr) on_.asked->notify();
    }

    // None: its claim is gone. Error: it may come back, or a FETCH has just returned it again.
    result<message_ref> find_claim(const std::string& id, const std::string& claim) const {
        for (const message_ref& message : on_.messages) {
            if (message->id != id || message->claim.empty()) continue;
            const bool is_lost = message->now == state::lost;
            if (message->claim == claim && !is_lost) return message;
            if (is_lost && (is_draining() || steady_clock::now() > message->gone_at)) break;
            return disconnected();
        }
        return message_ref();
    }
    static error disconnected() {
        return {errc::disconnected, 0, "the connection to RabbitMQ broke, and the message was not delivered again"};
    }
    // Waits until the broker has read it. Errors: disconnected, while the message may come back; timed_out; those of a
    // publication.
    result<settle_result> settle(const job_request& request, verb decided, time_point deadline,
                                 const fail_request* failed = nullptr) {
        if (request.should_send && !request.should_send()) return unwanted();
        unique_lock held(on_.guard);
        const result<message_ref> found = find_claim(request.job_id, request.claim);
        if (!found) return found.error();
        if (!*found) return settle_result::gone;
        const message_ref message = *found;
        if (decided == verb::fail && message->now == state::held) begin_fail(*message, *failed);
        if (message->now == state::held) message->from->decide(*message, decided);
        const ref<publication> published = message->published;
        const auto has_failed = [&] { return published && !published->outcome; };
        while (message->now == state::due && !has_failed() && on_.changed.wait_until(held, deadline)) continue;
        if (message->now == state::settled || (published && published->has_ended && published->outcome))
            return message->decided == decided ? settle_result::accepted : settle_result::gone;
        if (has_failed()) return published->outcome.error();
        if (message->now == state::lost) return disconnected();
        return error{errc::timed_out, 0,
                     published ? cat({"RabbitMQ has not confirmed a publication to ", published->queue,
                                      " in time; it accepts none while short of memory, disk or a majority"})
                               : "RabbitMQ did not confirm an ACK or FAIL before the deadline"};
    }
    // Begins the FAIL, or tries again after a publication that failed.
    void begin_fail(held_message& message, const fail_request& request) {
        const delivery& content = message.content;
        const bool is_unreadable = request.error.code == "invalid_payload";
        const bool is_put_back = request.requeue && !is_unreadable;
        const bool is_last = is_unreadable || !request.error.retryable || content.attempt >= content.max_attempts;
        if (is_put_back && request.error.code == "unsupported") on_.unknown_types.insert(content.type);
        const std::string error = is_last && !is_put_back ? cat({request.error.code, ": ", request.error.message}) : "";
        message.from->publish(message, request.job->body, error, !is_put_back);
    }
    std::vector<job> take_waiting(const fetch_request& request) {
        std::vector<job> out;
        for (const message_ref& message : on_.messages) {
            if (out.size() >= request.count) break;
            if (!message->is_waiting() || (message->claim.empty() && !on_.is_runnable(message->content))) continue;
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
        out.type = message.content.type;
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
    std::map<std::string, consumer> consumers_;  // by queue
};
}  // namespace rabbitmq
}  // namespace detail

OJS_SHUTDOWN_INLINE result<transport_ref> open_amqp(amqp_options options) {
    result<detail::rabbitmq::broker_address> broker = detail::rabbitmq::parse_url(options.url);
    if (!broker) return broker.error();
    if (options.max_attempts < 1)
        return error{errc::invalid_argument, 0, "amqp_options: max_attempts must be at least 1"};
    if (options.heartbeat.count() < 1 || options.heartbeat.count() > 3600)
        return error{errc::invalid_argument, 0, "amqp_options: heartbeat must be 1s to 1h"};
    if (options.retry_delays.empty())
        options.retry_delays = {std::chrono::seconds(1), std::chrono::seconds(10), std::chrono::seconds(60)};
    return transport_ref(new detail::rabbitmq::amqp_transport(std::move(*broker), std::move(options)));
}

OJS_SHUTDOWN_INLINE transport_scheme amqp(amqp_options options) {
    const auto open = [options = std::move(options)](const detail::transport_setup& setup) {
        amqp_options with_url = options;
        with_url.url = detail::cat({"amqp:", setup.address});
        if (!with_url.log) with_url.log = setup.log;
        return open_amqp(std::move(with_url));
    };
    return {"amqp", open, nullptr};
}
}  // namespace v0_1_0
}  // namespace ojs
