// redis_streams: a consumer group of Redis Streams as the queue, by hiredis. Link with -lhiredis.
//
// A queue is a stream with the key PREFIX + QUEUE. Beside it are KEY.GROUP.retry (a sorted set: when failed entries
// are due), KEY.dead (a stream: entries that are given up) and KEY.GROUP.meta (a hash). In a cluster all keys of a
// worker's queues need one slot: write a hash tag into the prefix ("{jobs}:").
// Fields of an entry, all optional: `id` (else, or while another entry has it, the entry's own), `type`, `args` (a JSON
// array), `body` (any bytes), `max_attempts`. Handlers read the others as strings, as job.meta("traceparent"). Do not
// trim the stream: that loses entries, and cancels the jobs of those that run.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../base/log.hpp"
#include "../worker/worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Options of redis_streams() and open_redis_streams().
struct redis_streams_options {
    /// redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], with percent-encoding; or redis:/PATH of a unix socket.
    /// redis_streams() takes it from OJS_URL.
    std::string url = "redis://127.0.0.1:6379";
    std::string username;                  ///< if the URL has none; empty: Redis' default user
    std::string password;                  ///< if the URL has none
    std::string prefix;                    ///< of the streams' keys
    std::string group = "ojs";             ///< created if it is missing, from the stream's first entry on
    std::string default_type = "message";  ///< of entries without `type`
    std::int64_t max_attempts = 20;        ///< of entries without `max_attempts`
    /// Delays before the second, third, ... attempt; the last one repeats.
    std::vector<std::chrono::milliseconds> retry_delays = {std::chrono::seconds(1), std::chrono::seconds(5),
                                                           std::chrono::seconds(30), std::chrono::minutes(2),
                                                           std::chrono::minutes(10)};
    bool keep_entries = false;  ///< a settled entry stays in the stream: another group needs it
    /// A consumer without pending entries is deleted from the group after this time without a request.
    std::chrono::milliseconds max_consumer_idle = std::chrono::hours(24);
    log_hook log;  ///< what no call returns; empty: the worker's log, with redis_streams()
};

/// The scheme redis: for worker_options::transports. Neither TLS nor Sentinel.
///
/// A claim is an entry that is pending for the consumer `worker_id`, which must be unique. After visibility_timeout
/// without a renewal or another claim of that worker, others take its entries. That costs an attempt, a requeue does
/// not. Without attempts left, and if malformed, an entry goes to KEY.dead with error_code and error_message; added to
/// the stream again, it begins with attempt 1. An idle worker gets new entries at once. Those that are requeued, due
/// or left by a dead worker, it gets after its poll_interval, or a second if that is longer.
///
/// Needs Redis 6.2. Errors have Redis' own text, the command and the key. unavailable: it refuses the request (OOM,
/// MISCONF, READONLY, ...), and nothing has changed. rejected: it always will (WRONGTYPE, NOPERM, ...). What it refuses
/// for one queue is logged, and does not hold up the others. Results and checkpoints are not stored. After fork() the
/// child must neither use nor destroy the transport.
transport_scheme redis_streams(redis_streams_options options = {});

/// The transport itself, for worker's constructor. Connects with the first request. Error: invalid_argument.
result<transport_ref> open_redis_streams(redis_streams_options options);
}  // namespace v0_1_0
}  // namespace ojs
