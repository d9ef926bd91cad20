// http_transport: the OJS worker protocol over HTTP/1.1. [WP, HTTP binding]
#pragma once

#include "../base/detail/light.hpp"
#include "../net/http_client.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Limits of a response: 16 KiB of headers, 4 MiB of body. Jobs of a larger response to FETCH come back after their
/// visibility timeout. Where jobs carry more data, give http_transport a client with other limits.
inline constexpr std::size_t max_worker_response = 4 * 1024 * 1024;

/// A heartbeat or FAIL rejected with an API error (400 or 422) is sent again at once with the published schema's fields
/// only, a FAIL first without its checkpoint. Once a heartbeat was accepted in this form, all later ones have it. ACK
/// and FETCH have the schema's fields only. A 2xx response that is not JSON is errc::unavailable, and so is a 4xx
/// without `error.code`, which may be a proxy's, but for ACK and FAIL a 400 or 422 is errc::bad_response. The API's
/// 404, 409 and 410 to ACK and FAIL are `gone`.
class http_transport : public transport {
  public:
    /// Creates a client that sends the headers of every OJS request. Errors: those of http_client::create().
    static result<http_client> make_client(std::string_view url, http_client_options options = {});

    /// `client` must send the headers of make_client(). Routes below /ojs/v1 are appended to its URL.
    /// `active_jobs_as_count`: see ojs::dialect.
    explicit http_transport(http_client client, bool active_jobs_as_count = false);
    OJS_SHUTDOWN_INLINE ~http_transport() override;

    OJS_SHUTDOWN_INLINE result<std::vector<job>> fetch(const fetch_request& request,
                                                       time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settle_result> ack(const ack_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<settle_result> fail(const fail_request& request, time_point deadline) override;
    OJS_SHUTDOWN_INLINE result<heartbeat_response> heartbeat(const heartbeat_request& request,
                                                             time_point deadline) override;
    /// Reads `state`, and `worker_id` if present, from `GET /jobs/{id}`.
    OJS_SHUTDOWN_INLINE result<bool> confirm_claim(const job_request& query, time_point deadline) override;

  private:
    std::string name_of(std::string_view call) const;
    result<http_response> checked(std::string_view call, result<http_response> response) const;
    result<http_response> send(std::string_view call, std::string body, const http_call& options);
    result<settle_result> read_settlement(std::string_view call, const result<http_response>& response) const;

    http_client client_;
    const bool active_jobs_as_count_;
    detail::atomic<bool> beats_by_schema_{false};
};

}  // namespace v0_1_0
}  // namespace ojs
