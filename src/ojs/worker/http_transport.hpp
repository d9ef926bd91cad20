// http_transport: the OJS worker protocol over HTTP/1.1. [WP, HTTP binding]
#pragma once

#include "../net/http_client.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Creates a client that sends the headers of every OJS request. Errors: those of http_client::create().
result<http_client> make_backend_client(std::string_view url, http_client_options options = {});

/// The OJS worker protocol, by a client of make_backend_client(). `active_jobs_as_count`: see ojs::profile.
/// A heartbeat or FAIL rejected with an API error (400 or 422) is sent again at once with the published schema's fields
/// only, a FAIL first without its checkpoint. Once a heartbeat was accepted so, all later ones have this form. A 2xx
/// response that is not JSON is errc::unavailable, and so is a 4xx without `error.code`, which may be a proxy's, but a
/// 400 or 422 to ACK and FAIL is errc::bad_response. The API's 404, 409 and 410 to these are `gone`.
transport_ref make_http_transport(http_client client, bool active_jobs_as_count = false);
}  // namespace v0_1_0
}  // namespace ojs
