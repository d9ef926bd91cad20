// http_transport: the OJS worker protocol over HTTP/1.1. [WP, HTTP binding]
#pragma once

#include "../../base/detail/light.hpp"
#include "../../net/http_client.hpp"
#include "../transport.hpp"

namespace ojs {
inline namespace v0_1_0 {

struct http_transport_options {
    // Where register_worker() POSTs the worker's particulars, and deregister_worker() sends DELETE with "/" and the
    // worker's id behind it; empty: nowhere. No published binding has such a route, but some backends do. A 404 or 405
    // from it is no error.
    std::string registration_path;
    bool active_jobs_as_count = false;  // see ojs::dialect
    // A form the backend refused is tried again after that.
    std::chrono::milliseconds full_body_retry_interval{60000};
    // Called when an operation ("heartbeat", "nack") goes on in another form: `dropped` names what is not said any
    // more, or is empty where all is said again; `why` is the last answer that refused a form. Thread-safe, short.
    function<void(std::string_view operation, std::string_view dropped, const error& why)> on_form_change;
};

// What an answer to a worker may weigh: jobs name their data, they do not carry it. Give http_transport a client with
// other limits where they do. An answer to FETCH that is larger is refused, and its jobs come back after their
// visibility timeout.
inline constexpr http_limits worker_answer_limits = {16 * 1024, 4 * 1024 * 1024};

// A heartbeat or FAIL that gets an API error (400 or 422) is sent again, at once, in another form: a heartbeat with
// the other form of `active_jobs`, then with only what the published schema knows; a FAIL with a checkpoint without
// it, then in the schema's form. The form the backend takes is kept for that operation (but a checkpoint is left out
// of that one FAIL). The full one is tried again after full_body_retry_interval, with every heartbeat that matters, and with every
// FAIL that says `requeue`. If the backend takes none, the first answer stands and nothing changes. ACK and FETCH
// have only the schema's fields to begin with. An answer 2xx with a body that is not JSON is errc::unavailable; a 400
// or 422 without `error.code`, to ACK or FAIL, is errc::bad_response.
class http_transport : public transport {
  public:
    // A client for the protocol: http_client::create(), with the headers every OJS request has.
    static result<http_client> make_client(std::string_view url, http_client_options options = {});

    // `client` should be from make_client(), or have those headers. The routes below /ojs/v1 are appended to its URL.
    explicit http_transport(http_client client, http_transport_options options = {});
    OJS_SHUTDOWN_INLINE ~http_transport() override;

    OJS_SHUTDOWN_INLINE result<std::vector<job>> fetch(const fetch_request& request,
                                                       time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> ack(const ack_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settled> fail(const fail_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<heartbeat_response> heartbeat(const heartbeat_request& request,
                                                             time_point deadline) override;
    // By `GET /jobs/{id}`: its `state`, and its `worker_id` if present.
    OJS_SHUTDOWN_INLINE result<bool> confirm_claim(const claim_query& query, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<void> register_worker(const worker_identity& worker,
                                                     time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<void> deregister_worker(const worker_identity& worker,
                                                       time_point deadline) override;
    // By POST, or PUT if the answer to POST is 405. errc::unsupported, from then on without a request: the backend
    // has no route for checkpoints.
    OJS_SHUTDOWN_INLINE result<settled> save_checkpoint(const checkpoint_request& request,
                                                        time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<std::string> load_checkpoint(const std::string& job_id,
                                                            time_point deadline) override;

  private:
    struct body_variants {
        const char* operation;
        int count;                                           // of its forms, from 0, the one we like best
        std::string_view dropped[3];                         // what each does not say
        detail::atomic<int> in_use{0};                       // that the backend takes
        detail::atomic<steady_clock::rep> retry_full_at{0};  // when the first one is tried again
    };
    using body_maker = function<std::string(int variant)>;
    result<http_response> send(const char* method, std::string_view route, std::string body,
                               const http_call& call);
    result<void> call_registration(const char* method, const std::string& path, std::string body,
                                   time_point deadline);
    result<settled> interpret_404(const std::string& job_id, const http_response& missing,
                                  const http_call& call);
    result<http_response> post_variant(body_variants& variants, bool must_arrive, const body_maker& body,
                                       const http_call& call);
    bool is_full_due(body_variants& variants) noexcept;
    void remember_variant(body_variants& variants, int before, int taken, int status, const error& why);

    http_client client_;
    const http_transport_options options_;
    body_variants heartbeat_variants_;
    body_variants fail_variants_;
    detail::atomic<bool> keeps_checkpoints_{true};  // until the backend proves to have no route for them
    detail::atomic<bool> checkpoint_route_seen_{false};
    detail::atomic<bool> puts_checkpoints_{false};
};

}  // namespace v0_1_0
}  // namespace ojs
