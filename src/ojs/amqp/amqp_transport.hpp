// amqp_transport: RabbitMQ's queues, by librabbitmq. Link with -lrabbitmq.
//
// The worker's queues are AMQP queues, which must exist. A job is a message:
// - job::id is its message-id. Without one, or if two messages in progress have the same, it is made of the queue or the
//   message-id, the connection's generation and the delivery tag. Without one, a job that runs over a reconnect runs again.
// - job::type is its type. job::body is its bytes; args_json, too, if its content-type is application/json:
//   an array as it is, any other value as the only element. Its headers that are text are members of meta_json.
// - job::attempt is its header x-ojs-attempt (1 if it is missing) plus x-delivery-count, by which a quorum
//   queue counts returns. A classic queue counts nothing: `redelivered` does not change the attempt.
// Each queue has a connection, and another one once a message of it is published again. Prefetched is a message per slot,
// split over the queues, or all from the only queue that has any; and what waits in the worker for max_concurrency.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../base/log.hpp"
#include "../worker/transport.hpp"
#include "../worker/worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Options of RabbitMQ's queues.
struct amqp_options {
    /// The broker's, in the form of OJS_URL in ojs_amqp.hpp's first lines, percent-encoded; default: guest, guest, 5672
    /// and /. amqp() sets it.
    std::string url;
    std::string default_type = "message";  ///< job::type of a message without the property `type`
    /// For messages without the header x-ojs-max-attempts. An attempt is a run, or on a quorum queue any return.
    std::int64_t max_attempts = 20;
    /// Delays before the second, third, ... run; the last one repeats; 0: at once; none: 1 s, 10 s, 60 s. Each
    /// waits in a queue NAME.retry.MS, declared as a quorum queue (RabbitMQ 3.10 or later) if it is missing.
    std::vector<std::chrono::milliseconds> retry_delays;
    /// Gets messages whose attempts are used up, whose error is not retryable, or that cannot be read, with the
    /// headers x-ojs-error and x-ojs-attempt. Declared as a quorum queue if it is missing. Empty: NAME.dead.
    std::string dead_letter_queue;
    /// True: such messages are rejected instead: the queue's own dead-letter exchange gets them, if it has one.
    bool use_dead_letter_exchange = false;
    /// The interval of AMQP's heartbeats; a broker that is silent for twice as long is disconnected.
    std::chrono::seconds heartbeat{10};
    log_hook log;  ///< changes of a queue, messages that leave it without success; empty: the worker's log, with amqp()
};

/// RabbitMQ's queues for one worker, for worker's constructor. The worker connects. Claims end with their connection; a
/// job that runs meanwhile is settled by its redelivery if its message has a message-id. FETCH returns errc::unreachable
/// without a connection, errc::unavailable if no queue can be consumed. Error: errc::invalid_argument, without the
/// password. Thread-safe. A child made by fork() must neither use nor destroy the transport.
result<transport_ref> open_amqp(amqp_options options);

/// The scheme amqp: for worker_options::transports, see the header's first lines.
transport_scheme amqp(amqp_options options = {});
}  // namespace v0_1_0
}  // namespace ojs
