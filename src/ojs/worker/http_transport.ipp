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
        if (is_alphanumeric(c) || c == '-' || c == '_') {
            out += c;
        } else {
            out += {'%', digits[byte >> 4U], digits[byte & 0xfU]};
        }
    }
    return out;
}

inline constexpr std::string_view fetch_call = "POST /workers/fetch";

}  // namespace detail

OJS_SHUTDOWN_INLINE http_transport::http_transport(http_client client, http_transport_options options)
    : client_(std::move(client)), options_(std::move(options)) {}
OJS_SHUTDOWN_INLINE http_transport::~http_transport() = default;

OJS_SHUTDOWN_INLINE result<http_client> http_transport::make_client(std::string_view url,
                                                                    http_client_options options) {
    options.headers.push_back({"Content-Type", "application/openjobspec+json"});
    options.headers.push_back({"Accept", "application/openjobspec+json"});
    options.headers.push_back({"OJS-Version", "1.0"});
    return http_client::create(url, std::move(options));
}

OJS_SHUTDOWN_INLINE detail::request_name http_transport::name_of(std::string_view request) const {
    const std::string_view method = detail::next_part(request, " ");
    return {client_.describe(method, detail::cat({"/ojs/v1", request})), client_.sends_authorization()};
}

// `request` is a method and a route.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::send(std::string_view request, std::string body,
                                                               const http_call& call) {
    std::string_view route = request;
    http_request sent;
    sent.method = detail::next_part(route, " ");
    sent.target = detail::cat({"/ojs/v1", route});
    sent.body = std::move(body);
    result<http_response> response = client_.send(sent, call);
    // read_jobs() checks each job of a FETCH.
    if (!response || !detail::is_success(response->status) || request == detail::fetch_call ||
        response->body.empty() || detail::is_json(response->body))
        return response;
    return error{
        errc::unavailable, 0,
        detail::cat({name_of(request).text, " answered ", response->status, " with a body that is not JSON"}),
        response->status};
}

// Turns a status other than 2xx into an error, which quotes the body unless that may repeat a secret.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::success(result<http_response> response,
                                                                  std::string_view request) const {
    if (!response || detail::is_success(response->status)) return response;
    return detail::status_error(name_of(request), *response, !client_.may_repeat_secret(response->body));
}

// Tries variants until the backend does not reject one. Begins with the one in use, or with the full one if that is due
// or the request must arrive.
OJS_SHUTDOWN_INLINE result<http_response> http_transport::post_variant(body_variants& variants,
                                                                       bool must_arrive,
                                                                       const body_maker& body,
                                                                       const http_call& call) {
    const std::string request = detail::cat({"POST /workers/", variants.operation});
    const int in_use = variants.in_use;
    const time_point now = steady_clock::now();
    const bool due = now >= variants.retry_full_at.load();
    if (due) variants.retry_full_at = now + options_.full_body_retry_interval;
    result<http_response> first = error{};
    error rejection;
    for (int i = 0; i < variants.count; ++i) {
        const int variant = ((due || must_arrive ? 0 : in_use) + i) % variants.count;
        result<http_response> response = send(request, body(variant), call);
        if (response && detail::rejects_body(*response)) {
            if (i == 0) first = *response;
            rejection = detail::status_error(name_of(request), *response);
            continue;
        }
        // Only success proves that a fuller body is accepted again.
        const bool is_accepted = response && (detail::is_success(response->status) ||
                                              (variant > in_use && detail::ends_claim(*response)));
        int before = in_use;
        if (variant != in_use && is_accepted && variants.in_use.compare_exchange_strong(before, variant)) {
            variants.retry_full_at = deadline_after(options_.full_body_retry_interval);
            if (options_.on_body_variant_change)
                options_.on_body_variant_change(variants.operation, variants.dropped[variant], rejection);
        }
        return response;
    }
    return first;
}

OJS_SHUTDOWN_INLINE result<std::vector<job>> http_transport::fetch(const fetch_request& request,
                                                                   time_point deadline) {
    std::string cut_body;
    const http_call call = {deadline, resend::if_unsent, request.should_send, -1, &cut_body};
    result<http_response> response = send(detail::fetch_call, detail::fetch_body(request), call);
    if (!response && !cut_body.empty()) {
        std::vector<job> claimed =
            detail::read_cut_jobs(cut_body, response.error().code == errc::bad_response);
        if (!claimed.empty()) return claimed;
    }
    if (!response && response.error().code == errc::bad_response)
        return detail::refused_response(response.error().text);
    response = success(std::move(response), detail::fetch_call);
    if (!response) return response.error();
    if (response->status == 204) return std::vector<job>();
    return detail::named(detail::read_jobs(response->body, request.count),
                         [this] { return name_of(detail::fetch_call).text; });
}

OJS_SHUTDOWN_INLINE result<settle_result> http_transport::ack(const ack_request& request,
                                                              time_point deadline) {
    const http_call call = {deadline, resend::always, request.should_send};
    constexpr std::string_view name = "POST /workers/ack";
    return detail::read_settlement([&] { return name_of(name); },
                                   send(name, detail::ack_body(request), call));
}

OJS_SHUTDOWN_INLINE result<settle_result> http_transport::fail(const fail_request& request,
                                                               time_point deadline) {
    // Not repeated here: once it has arrived, this worker may get the job again.
    const http_call call = {deadline, resend::if_unsent, request.should_send};
    const bool in_full = request.requeue || fail_variants_.in_use == 0;
    const auto describe = [this] { return name_of("POST /workers/nack"); };
    if (!request.checkpoint_json.empty() && in_full) {
        const result<http_response> full =
            send("POST /workers/nack", detail::fail_body(request, true, true), call);
        if (!full || !detail::rejects_body(*full)) return detail::read_fail(describe, full);
        // Only this checkpoint may be rejected: other FAILs stay full.
    }
    const auto body = [&](int variant) { return detail::fail_body(request, variant == 0); };
    return detail::read_fail(describe, post_variant(fail_variants_, request.requeue, body, call));
}

OJS_SHUTDOWN_INLINE result<heartbeat_response> http_transport::heartbeat(const heartbeat_request& request,
                                                                         time_point deadline) {
    const auto body = [&, as_count = options_.active_jobs_as_count](int variant) {
        return detail::heartbeat_body(request, variant < 2, (variant == 0) == as_count);
    };
    const http_call call = {deadline, resend::always, request.should_send};
    const result<http_response> response =
        success(post_variant(beat_variants_, request.is_last, body, call), "POST /workers/heartbeat");
    if (!response) return response.error();
    if (response->body.empty()) return heartbeat_response();
    return detail::read_heartbeat(response->body, request.active_jobs);
}

OJS_SHUTDOWN_INLINE result<bool> http_transport::confirm_claim(const claim_query& query,
                                                               time_point deadline) {
    const http_call call = {deadline, resend::if_unsent, query.should_send};
    const std::string name = "GET /jobs/" + detail::path_segment(query.job_id);
    const result<http_response> response = send(name, "", call);
    if (!response) return response.error();
    if (!detail::is_success(response->status)) return detail::status_error(name_of(name), *response);
    return detail::named(detail::read_claim(response->body, query), [&] { return name_of(name).text; });
}

}  // namespace v0_1_0
}  // namespace ojs
