// redis_streams: a consumer group of Redis Streams as the queue, by hiredis. Link with -lhiredis.
//
// Each queue of the worker is a stream with the key PREFIX + QUEUE. Beside it are KEY.retry (a sorted set: failed entries
// and when they are due), KEY.dead (a stream: entries that are given up) and KEY.meta (a hash). In a cluster all four need
// one slot, and so do all queues of a worker: write a hash tag into the prefix ("{jobs}:").
//
// Fields of an entry, all optional: `id` (job::id; else the entry's id), `type`, `args` (a JSON array), `body` (any bytes) and
// `max_attempts`. A handler reads all other fields in job::envelope_json, an object of strings. Do not trim the stream: an
// entry that is deleted cancels its job, and one that waits is lost.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "../base/error.hpp"
#include "../base/log.hpp"
#include "../worker/transport_scheme.hpp"

namespace ojs {
inline namespace v0_1_0 {

// Options of redis_streams() and open_redis_streams().
struct redis_streams_options {
    // redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE], or redis:/PATH of a unix socket. USER and PASSWORD percent-encoded.
    // redis_streams() takes it from OJS_URL.
    std::string url = "redis://127.0.0.1:6379";
    std::string username;                  // if the URL has none; empty: Redis' default user
    std::string password;                  // if the URL has none
    std::string prefix;                    // of the streams' keys
    std::string group = "ojs";             // created if it is missing, from the stream's first entry on
    std::string default_type = "message";  // of entries without `type`
    std::int64_t max_attempts = 20;        // of entries without `max_attempts`
    // Delays before the second, third, ... attempt; the last one repeats.
    std::vector<std::chrono::milliseconds> retry_delays = {std::chrono::seconds(1), std::chrono::seconds(5),
                                                           std::chrono::seconds(30), std::chrono::minutes(2),
                                                           std::chrono::minutes(10)};
    bool keep_entries = false;  // a settled entry stays in the stream, acknowledged
    // A consumer without pending entries is deleted from the group after this time without a request.
    std::chrono::milliseconds max_consumer_idle = std::chrono::hours(24);
    log_hook log;  // what no call returns; empty: the worker's log, with redis_streams()
};

// The scheme redis: for worker_options::transports. Not TLS (redis:// through a local TLS proxy), not Sentinel.
//
// A claim is an entry that is pending for the consumer `worker_id`, which must be unique. It holds while the worker sends
// requests; after its visibility_timeout without one, other workers take the entry. That uses up an attempt, a hand-back uses
// up none. An entry whose attempts are used up goes to KEY.dead with error_code and error_message, also without another
// run if the last one did not end. An idle worker gets new entries at once, and within its poll_interval those that are
// handed back, due for a retry, or left by a dead worker. Malformed entries go to KEY.dead.
//
// Needs Redis 6.2 or later. Errors are errc::unavailable if Redis refuses a request, with the reason: no memory, a full
// disk, a replica, a wrong password. Nothing is lost then. bad_response: the key is no stream. Results and checkpoints
// are not stored. A child made by fork() must neither use nor destroy a transport.
transport_scheme redis_streams(redis_streams_options options = {});

// The transport itself, for worker's constructor. Connects with the first request. Error: invalid_argument.
result<transport_ref> open_redis_streams(redis_streams_options options);

}  // namespace v0_1_0
}  // namespace ojs
