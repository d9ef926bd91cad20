#pragma once

#include "detail/http_requests.ipp"
#include "detail/http_responses.ipp"
#include "http_transport.hpp"

namespace ojs {
inline namespace v0_1_0 {
namespace detail {

// Escapes a job's id as one segment of a path; dots too, because an id may be "..".
inline std::string path_segment(std::string_view text) {
    static const char digits[] = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (is_alphanumeric(c) || c == '-' || c == '_')
            out += c;
        else
            out += {'%', digits[byte >> 4U], digits[byte & 0xfU]};
    }
    return out;
}

}  // namespace detail

OJS_SHUTDOWN_INLINE http_transport::http_transport(http_client client, bool active_jobs_as_count)
    : client_(std::move(client)), active_jobs_as_count_(active_jobs_as_count) {}
OJS_SHUTDOWN_INLINE http_transport::~http_transport() = default;

OJS_SHUTDOWN_INLINE result<http_client> http_transport::make_client(std::string_view url,
                                                                    http_client_options options) {
    options.headers.push_back({"Content-Type", "application/openjobspec+json"});
    options.headers.push_back({"Accept", "application/openjobspec+json"});
    options.headers.push_back({"OJS-Version", "1.0"});
    return http_client::create(url, std::move(options));
}

// `call` is a method and a route, here and below.
OJS_SHUTDOWN_INLINE std::string http_transport::name_of(std::string_view call) const {
    const std::string_view method = detail::next_part(call, " ");
    return client_.describe(method, detail::cat({"/ojs/v1", call}));
}

// Statuses other than 2xx are responses, too.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::send(std::string_view call, std::string body,
                                                               const http_call& options) {
    std::string_view route = call;
    http_request sent;
    sent.method = detail::next_part(route, " ");
    sent.target = detail::cat({"/ojs/v1", route});
    sent.body = std::move(body);
    return client_.send(sent, options);
}

// The error of any other response than a success with JSON, or without a body.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::checked(std::string_view call,
                                                                  result<http_response> response) const {
    if (!response) return response;
    if (!detail::is_success(response->status)) return detail::status_error(name_of(call), *response);
    if (response->body.empty() || detail::is_json(response->body)) return response;
    return error{
        errc::unavailable, 0,
        detail::cat({name_of(call), " answered ", response->status, " with a body that is not JSON"}),
        response->status};
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> http_transport::fetch(const fetch_request& request,
                                                                   time_point deadline) {
    constexpr std::string_view call = "POST /workers/fetch";
    const result<http_response> response =
        send(call, detail::fetch_body(request), {deadline, request.should_send});
    if (!response && response.error().code == errc::bad_response)
        return detail::refused_response(response.error().text);
    // read_jobs() checks each job by itself.
    if (!response || !detail::is_success(response->status)) return checked(call, response).error();
    if (response->status == 204) return std::vector<job>();
    return detail::named(detail::read_jobs(response->body, request.count), [&] { return name_of(call); });
}

OJS_SHUTDOWN_INLINE result<settle_result> http_transport::read_settlement(
    std::string_view call, const result<http_response>& response) const {
    if (response && detail::ends_claim(*response)) return settle_result::gone;
    const result<http_response> valid = checked(call, response);
    if (valid) return settle_result::accepted;
    error why = valid.error();
    const bool is_bad_request = why.http_status == 400 || why.http_status == 422;
    if (is_bad_request && why.code == errc::unavailable) why.code = errc::bad_response;  // a proxy's
    return why;
}

OJS_SHUTDOWN_INLINE result<settle_result> http_transport::ack(const ack_request& request,
                                                              time_point deadline) {
    constexpr std::string_view call = "POST /workers/ack";
    return read_settlement(call,
                           send(call, detail::ack_body(request), {deadline, request.should_send, true}));
}

OJS_SHUTDOWN_INLINE result<settle_result> http_transport::fail(const fail_request& request,
                                                               time_point deadline) {
    using detail::fail_form;
    constexpr std::string_view call = "POST /workers/nack";
    result<http_response> response = error{};
    for (const fail_form form : {fail_form::full, fail_form::without_checkpoint, fail_form::schema}) {
        if (form == fail_form::without_checkpoint && request.checkpoint_json.empty()) continue;
        // Not repeated here: once it has arrived, this worker may get the job again.
        response = send(call, detail::fail_body(request, form), {deadline, request.should_send});
        if (!response || !detail::rejects_body(*response)) break;
    }
    return read_settlement(call, response);
}

OJS_SHUTDOWN_INLINE result<heartbeat_response> http_transport::heartbeat(const heartbeat_request& request,
                                                                         time_point deadline) {
    constexpr std::string_view call = "POST /workers/heartbeat";
    const auto send_form = [&](bool is_full) {
        return send(call, detail::heartbeat_body(request, is_full, active_jobs_as_count_),
                    {deadline, request.should_send, true});
    };
    const bool is_full = !beats_by_schema_;
    result<http_response> response = send_form(is_full);
    if (is_full && response && detail::rejects_body(*response)) {
        response = send_form(false);
        if (response && detail::is_success(response->status)) beats_by_schema_ = true;
    }
    response = checked(call, std::move(response));
    if (!response) return response.error();
    return detail::read_heartbeat(response->body, request.active_jobs);
}

OJS_SHUTDOWN_INLINE result<bool> http_transport::confirm_claim(const job_request& query,
                                                               time_point deadline) {
    const std::string call = "GET /jobs/" + detail::path_segment(query.job_id);
    const result<http_response> response = checked(call, send(call, "", {deadline, query.should_send}));
    if (!response) return response.error();
    return detail::named(detail::read_claim(response->body, query), [&] { return name_of(call); });
}

}  // namespace v0_1_0
}  // namespace ojs
