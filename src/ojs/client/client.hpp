// client: enqueues jobs at an OJS server, shows and cancels them, and lists queues. [OJS HTTP binding]
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "../core/cancel_token.hpp"
#include "../net/http_client.hpp"
#include "../stop/job.hpp"
#include "../worker/worker_options.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Options of a client: the server, and how to reach it.
struct client_options {
    std::string url = "http://127.0.0.1:8080";        ///< http://HOST[:PORT][/BASE], https:// or unix:/PATH
    http_client_options http;                         ///< token, headers, TLS; a response to a batch has all its jobs
    std::chrono::milliseconds request_timeout{5000};  ///< of one try, from connect to the last byte; at least 10 ms
    client_options() = default;
    client_options(const worker_options& worker);  ///< a worker's, or read by its from_environment()
};

/// How a job that fails is retried; 0: the server's default. Times are up to 24 days. [OJS retry]
struct job_retry_policy {
    std::int64_t max_attempts = 0;                  ///< in all, up to 1000
    std::chrono::milliseconds initial_interval{0};  ///< before the second attempt
    std::chrono::milliseconds max_interval{0};      ///< before any attempt; not less than initial_interval
};

/// Which unfinished jobs make a new one a duplicate, which the server refuses with 409. [OJS unique jobs]
struct job_unique_policy {
    std::vector<std::string> keys;        ///< what is equal: "type", "queue", "args", "meta"; empty: no policy
    std::chrono::milliseconds period{0};  ///< compares with younger jobs only, up to 24 days; 0: of any age
};

/// A job to enqueue. [OJS core 5]
struct enqueue_request {
    std::string type;               ///< such as "mail.send": names of a-z, 0-9, _ with dots between, up to 255 bytes
    std::string args_json = "[]";   ///< a JSON array
    std::string queue = "default";  ///< of a-z, 0-9, - and ., up to 128 bytes
    std::string id;                 ///< new_job_id(), follow_up_id() or another UUIDv7; empty: the server's choice
    int priority = 0;               ///< -100 to 100; higher ones first
    std::chrono::system_clock::time_point scheduled_at{};  ///< runs then or later, up to the year 9999; 1970: at once
    std::string meta_json = "{}";                          ///< a JSON object
    std::string traceparent;                               ///< W3C trace context, sent as meta.traceparent; empty: none
    job_retry_policy retry;                                ///< default: the server's
    job_unique_policy unique;                              ///< default: none
};

/// A job as the server shows it.
struct job_info {
    ojs::job job;         ///< envelope_json has all members; in a response to a batch the args may be missing
    std::string state;    ///< "scheduled", "available", "pending", "active", "completed", "retryable", ...
    bool is_new = false;  ///< this call has enqueued it; false: it was there, by its id or its unique policy
};

/// A queue as the server shows it: how many jobs are in which state.
struct queue_info {
    std::string name;            ///< the name in enqueue_request::queue
    std::string status;          ///< "active" or "paused"
    std::int64_t available = 0;  ///< its depth: jobs that may be fetched now
    std::int64_t active = 0;     ///< claimed by workers
    std::int64_t scheduled = 0;  ///< wait for their time; 0 also if the server does not count them
    std::int64_t retryable = 0;  ///< wait for their next attempt; 0 as above
};

/// Returns a new id for a job, a UUIDv7. Thread-safe.
std::string new_job_id();
/// Returns the id, a UUIDv7, of a job that follows another: the same for the same parameters, so that each run of a
/// handler enqueues the same follow-up job. `name` tells several of them apart. Thread-safe.
std::string follow_up_id(std::string_view job_id, std::string_view name = {});

/// The limits of one call.
struct client_call {
    time_point deadline;   ///< of all tries; the call returns by then
    cancel_token until{};  ///< cancelled: the call returns errc::cancelled, after a connect in up to request_timeout
};

namespace detail {
class client_connection;
}

/// A client of an OJS server. Every member is thread-safe; copies share connections. Errors: invalid_argument names the
/// field, and nothing was sent; rejected is a 3xx or 4xx response, with its http_status and the server's code and message
/// in the text; the others are those of http_client::send(), and unavailable. A request is repeated, after 100 ms to 3 s,
/// if it was not processed (unreachable, 429), or if a repetition is harmless, as of all but an enqueue without an id.
/// That may have been processed if it fails otherwise.
class client {
  public:
    /// Creates a client, which connects at its first request. errc::invalid_argument; unsupported: no https_stream.
    static result<client> create(const client_options& options);
    /// Enqueues a job. A job that the server refuses because it has it (equal id, type, queue and args) is a success:
    /// after a lost response, or in a second run of a handler. An ended job counts until the server deletes it.
    result<job_info> enqueue(const enqueue_request& job, const client_call& call) const;
    /// Enqueues 1 to 10,000 jobs, all or none. The request has an id if each job has one.
    result<std::vector<job_info>> enqueue_batch(const std::vector<enqueue_request>& jobs,
                                                const client_call& call) const;
    /// Returns a job. errc::rejected with http_status 404: there is no such job.
    result<job_info> get(std::string_view job_id, const client_call& call) const;
    /// Cancels a job; a job that was cancelled before is a success. errc::rejected: 404, or 409: it has ended.
    result<job_info> cancel(std::string_view job_id, const client_call& call) const;
    /// Returns the queues that the server lists, by one request and one more for each queue. [HTTP 11, or L4-STATS-001]
    result<std::vector<queue_info>> queues(const client_call& call) const;

  private:
    friend class result<client>;
    client() = default;
    explicit client(detail::ref<detail::client_connection> to) noexcept : server_(std::move(to)) {}
    result<std::vector<job_info>> enqueue_all(const std::vector<enqueue_request>& jobs, bool is_batch,
                                              const client_call& call) const;
    detail::ref<detail::client_connection> server_;
};
}  // namespace v0_1_0
}  // namespace ojs
