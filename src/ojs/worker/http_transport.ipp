#pragma once

#include <cstdio>

#include "detail/http_bodies.ipp"
#include "http_transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {
// Escapes a job's id as one segment of a path; dots too, because an id may be "..".
inline std::string path_segment(std::string_view text) {
    std::string out;
    for (const char c : text) {
        char escaped[] = {c, 0, 0, 0};
        if (!is_alphanumeric(c) && c != '-' && c != '_')
            std::snprintf(escaped, sizeof escaped, "%%%02X", static_cast<unsigned char>(c));
        out += escaped;
    }
    return out;
}

class http_transport : public transport {
  public:
    http_transport(http_client client, bool active_jobs_as_count)
        : client_(std::move(client)), active_jobs_as_count_(active_jobs_as_count) {}

    result<std::vector<job>> fetch(const fetch_request& request, time_point deadline) override {
        constexpr std::string_view call = "POST /workers/fetch";
        const worker_identity& worker = *request.worker;
        std::string body = cat({"{\"queues\":", json_strings(worker.queues), ",\"count\":", request.count,
                                ",\"worker_id\":", json_quote(worker.worker_id),
                                ",\"visibility_timeout_ms\":", worker.visibility_timeout.count(), "}"});
        result<http_response> response = send(call, std::move(body), {deadline, request.should_send});
        if (!response && response.error().code == errc::bad_response) return refused_response(response.error().text);
        // read_jobs() checks each job by itself.
        if (!response || !is_success(response->status)) return checked(call, std::move(response)).error();
        if (response->status == 204) return std::vector<job>();
        return named(read_jobs(response->body, request.count), [&] { return name_of(call); });
    }

    result<settle_result> ack(const ack_request& request, time_point deadline) override {
        constexpr std::string_view call = "POST /workers/ack";
        const char* const key = request.result_json.empty() ? "" : ",\"result\":";
        std::string body = cat({"{\"job_id\":", json_quote(request.job_id), key, request.result_json, "}"});
        return read_settlement(call, send(call, std::move(body), {deadline, request.should_send, true}));
    }

    result<settle_result> fail(const fail_request& request, time_point deadline) override {
        constexpr std::string_view call = "POST /workers/nack";
        result<http_response> response = error{};
        for (const fail_form form : {fail_form::full, fail_form::without_checkpoint, fail_form::schema}) {
            if (form == fail_form::without_checkpoint && request.checkpoint_json.empty()) continue;
            // Not repeated here: once it has arrived, this worker may get the job again.
            response = send(call, fail_body(request, form), {deadline, request.should_send});
            if (!response || !rejects_body(*response)) break;
        }
        return read_settlement(call, std::move(response));
    }

    result<heartbeat_response> heartbeat(const heartbeat_request& request, time_point deadline) override {
        constexpr std::string_view call = "POST /workers/heartbeat";
        const auto send_form = [&](bool is_full) {
            return send(call, heartbeat_body(request, is_full, active_jobs_as_count_),
                        {deadline, request.should_send, true});
        };
        const bool is_full = !beats_by_schema_;
        result<http_response> response = send_form(is_full);
        if (is_full && response && rejects_body(*response)) {
            response = send_form(false);
            if (response && is_success(response->status)) beats_by_schema_ = true;
        }
        response = checked(call, std::move(response));
        if (!response) return response.error();
        return read_heartbeat(response->body, request.active_jobs);
    }

    result<bool> confirm_claim(const job_request& query, time_point deadline) override {
        const std::string call = "GET /jobs/" + path_segment(query.job_id);
        const result<http_response> response = checked(call, send(call, "", {deadline, query.should_send}));
        if (!response) return response.error();
        return named(is_claim_ours(response->body, query), [&] { return name_of(call); });
    }

  private:
    // `call` is a method and a route, here and below.
    std::string name_of(std::string_view call) const {
        const std::string_view method = next_part(call, " ");
        return client_.describe(method, cat({"/ojs/v1", call}));
    }

    // Statuses other than 2xx are responses, too.
    result<http_response> send(std::string_view call, std::string body, const http_call& options) {
        std::string method(next_part(call, " "));
        return client_.send({std::move(method), cat({"/ojs/v1", call}), {}, std::move(body)}, options);
    }

    // The error of any other response than a success with JSON, or without a body.
    result<http_response> checked(std::string_view call, result<http_response> response) const {
        if (!response) return response;
        if (!is_success(response->status)) return status_error(name_of(call), *response);
        if (response->body.empty() || is_json(response->body)) return response;
        return error{errc::unavailable, 0,
                     cat({name_of(call), " answered ", response->status, " with a body that is not JSON"}),
                     response->status};
    }

    result<settle_result> read_settlement(std::string_view call, result<http_response> response) const {
        if (response && is_api_error(*response, "404 409 410")) return settle_result::gone;
        response = checked(call, std::move(response));
        if (response) return settle_result::accepted;
        return response.error();
    }

    http_client client_;
    const bool active_jobs_as_count_;
    atomic<bool> beats_by_schema_{false};
};
}  // namespace detail

OJS_SHUTDOWN_INLINE result<http_client> make_backend_client(std::string_view url, http_client_options options) {
    detail::add_header(options.headers, "Content-Type", "application/openjobspec+json");
    detail::add_header(options.headers, "Accept", "application/openjobspec+json");
    detail::add_header(options.headers, "OJS-Version", "1.0");
    return http_client::create(url, std::move(options));
}

OJS_SHUTDOWN_INLINE transport_ref make_http_transport(http_client client, bool active_jobs_as_count) {
    return transport_ref(new detail::http_transport(std::move(client), active_jobs_as_count));
}
}  // namespace v0_1_0
}  // namespace ojs
