// http_transport: the OJS worker protocol over HTTP/1.1. [WP, HTTP binding]
#pragma once

#include "../../net/http_client.hpp"
#include "../transport.hpp"

namespace ojs {
inline namespace v1 {

class http_transport : public transport {
  public:
    // A client for the protocol: http_client::create(), with the headers every OJS request has.
    static result<http_client> make_client(std::string_view url, http_client_options options = {});

    // `client` should be from make_client(), or have those headers. The routes below /ojs/v1 are appended to its URL.
    // `registration_path`, if not empty, is where register_worker() POSTs the worker's particulars: no published
    // binding has such a route, but some backends do. A 404 or 405 from it is no error.
    explicit http_transport(http_client client, std::string registration_path = {});
    ~http_transport() override;

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override;
    result<settled> ack(const ack_request& request, time_point deadline) override;
    result<settled> fail(const fail_request& request, time_point deadline) override;
    result<heartbeat_answer> heartbeat(const heartbeat_request& request, time_point deadline) override;
    result<void> register_worker(const worker_identity& worker, time_point deadline) override;

  private:
    result<http_response> post(std::string_view route, std::string body, const http_call& call);
    result<settled> settle(std::string_view route, std::string body, time_point deadline);

    http_client client_;
    const std::string registration_path_;
};

}  // namespace v1
}  // namespace ojs
