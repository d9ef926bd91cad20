// http_transport: the OJS worker protocol over HTTP/1.1. [WP, HTTP binding]
#pragma once

#include "../net/http_client.hpp"
#include "transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
/// Creates a client that sends the headers of every OJS request. Errors: those of http_client::create().
result<http_client> make_backend_client(std::string_view url, http_client_options options = {});

/// The OJS worker protocol, by a client of make_backend_client(); docs/protocol.md says what each response means.
/// `active_jobs_as_count`: see ojs::profile.
transport_ref make_http_transport(http_client client, bool active_jobs_as_count = false);
}  // namespace v0_1_0
}  // namespace ojs
