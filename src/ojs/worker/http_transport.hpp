// http_transport: the OJS worker protocol over HTTP/1.1. [WP, HTTP binding]
#pragma once

#include "../base/detail/light.hpp"
#include "../net/http_client.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
struct request_name;
}

/// Options of an http_transport.
struct http_transport_options {
    bool active_jobs_as_count = false;  ///< see ojs::dialect
    /// After this time the full body is retried on a backend that rejected it.
    std::chrono::milliseconds full_body_retry_interval{60000};
    /// Called when an operation ("heartbeat", "nack") switches to another variant of its body: `dropped` names the
    /// fields left out, empty: none; `why` is the latest rejection. Called from several threads; must return quickly.
    function<void(std::string_view operation, std::string_view dropped, const error& why)>
        on_body_variant_change;
};

/// Limits of a response: 16 KiB of headers, 4 MiB of body. Jobs of a larger response to FETCH come back after their
/// visibility timeout, but a FETCH of one returns the job as malformed if the response has its id first. Where jobs
/// carry more data, give http_transport a client with other limits.
inline constexpr http_limits worker_response_limits = {16 * 1024, 4 * 1024 * 1024};

/// A heartbeat or FAIL rejected with an API error (400 or 422) is sent again at once with another body: a heartbeat
/// with the other type of `active_jobs`, then with the published schema's fields only; a FAIL without its checkpoint,
/// then by the schema. The accepted variant stays in use for that operation; a checkpoint is left out of that one FAIL
/// only. The full body is retried after full_body_retry_interval, with each heartbeat that must arrive, and with each
/// FAIL that has `requeue`. If all are rejected, the first response counts. ACK and FETCH have the schema's fields
/// only. A 2xx response that is not JSON is errc::unavailable, and so is a 4xx without `error.code`, which may be a
/// proxy's, but for ACK and FAIL a 400 or 422 is errc::bad_response. The API's 404, 409 and 410 to ACK and FAIL are `gone`.
class http_transport : public transport {
  public:
    /// Creates a client that sends the headers of every OJS request. Errors: those of http_client::create().
    static result<http_client> make_client(std::string_view url, http_client_options options = {});

    /// `client` must send the headers of make_client(). Routes below /ojs/v1 are appended to its URL.
    explicit http_transport(http_client client, http_transport_options options = {});
    OJS_SHUTDOWN_INLINE ~http_transport() override;

    OJS_SHUTDOWN_INLINE result<std::vector<job>> fetch(const fetch_request& request,
                                                       time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settle_result> ack(const ack_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settle_result> fail(const fail_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<heartbeat_response> heartbeat(const heartbeat_request& request,
                                                             time_point deadline) override;
    /// Reads `state`, and `worker_id` if present, from `GET /jobs/{id}`.
    OJS_SHUTDOWN_INLINE result<bool> confirm_claim(const claim_query& query, time_point deadline) override;

  private:
    struct body_variants {
        const char* operation;
        int count;                    // 0 is the full body
        std::string_view dropped[3];  // fields that each leaves out
        detail::atomic<int> in_use{0};
        detail::atomic<time_point> retry_full_at{time_point()};
    };
    using body_maker = function<std::string(int variant)>;
    detail::request_name name_of(std::string_view request) const;
    result<http_response> send(std::string_view request, std::string body, const http_call& call);
    result<http_response> success(result<http_response> response, std::string_view request) const;
    result<http_response> post_variant(body_variants& variants, bool must_arrive, const body_maker& body,
                                       const http_call& call);

    http_client client_;
    const http_transport_options options_;
    body_variants beat_variants_ = {
        "heartbeat",
        3,
        {"", "active_jobs in its preferred type",
         "state, active_job_ids, active_job_count, hostname, pid, queues, concurrency, labels, started_at"}};
    body_variants fail_variants_ = {
        "nack", 2, {"", "error.type, requeue, meta.checkpoint; error.code is in details.error_class"}};
};

}  // namespace v0_1_0
}  // namespace ojs
